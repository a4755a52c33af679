"""`bench capacity`: the highest rate at which the objectives hold and the backlog is steady, an interval."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from loadgen.cli.options import TIME, RunOptions, takes_options
from loadgen.cli.plans import make_plan
from loadgen.cli.run import check_flags
from loadgen.cli.several import (
    make_folder,
    measure_one,
    plain_options,
    show_series,
    with_seed,
    write_document,
)
from loadgen.cli.signals import Interruption
from loadgen.errors import EXIT_INVALID, EXIT_OK, EXIT_UNDECIDED, UsageError

if TYPE_CHECKING:
    from loadgen.measure.capacity import CapacityPoint
    from loadgen.measure.slo import Objective
    from loadgen.stats.capacity import Search, Trial

PANEL = "Capacity"
DOCUMENT = "capacity.json"
DEFAULT_DURATION_S = 30.0
PROBE_SHARE = 6
MIN_REQUESTS = 10
# of the flags, those that do not change what is searched for
PRESENTATION = (
    "out",
    "name",
    "json",
    "quiet",
    "wide",
    "config",
    "budget",
    "resume",
    "precision",
    "repeat",
    "rate",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions(RunOptions):
    """The flags of a run; `--rate` is where the search starts, `--repeat` fixes the number of replicates."""

    REFUSED: ClassVar = ("trace", "concurrency", "max_in_flight")

    budget: Annotated[
        float,
        typer.Option(
            help="No run is begun that would end after this.",
            parser=TIME,
            metavar="TIME",
            show_default="10m",
            rich_help_panel=PANEL,
        ),
    ] = 600.0
    precision: Annotated[
        float, typer.Option(help="Wanted half width of the interval, in %.", min=0.5, rich_help_panel=PANEL)
    ] = 5.0
    max_rate: Annotated[float, typer.Option(help="Highest rate that is tried.", rich_help_panel=PANEL)] = (
        10_000.0
    )
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the search in this folder.", metavar="DIR", rich_help_panel=PANEL),
    ] = None


@takes_options
def capacity(ctx: typer.Context, options: CapacityOptions) -> None:
    """Find the highest rate at which every objective holds and the backlog stays steady."""
    from loadgen.measure.capacity import describe, parse_objectives
    from loadgen.stats.capacity import conclude

    if options.resume is not None and not options.slo:
        options = replace(options, slo=slo_of(options.resume))
    objectives = parse_objectives(options.slo)
    if options.trace is not None or options.concurrency is not None:
        raise UsageError("a capacity is a rate of its own: --trace and --concurrency do not go with it")
    if options.max_in_flight is not None:
        raise UsageError("--max-in-flight closes the loop: the rate would no longer be the one that is tried")
    check_flags(options)
    base = plain_options(options)
    if base.duration is None and base.requests is None:
        base = replace(base, duration=DEFAULT_DURATION_S)
    search = make_search(options, base)
    make_plan(
        replace(base, rate=search.start_per_s)
    )  # what is wrong with the load is told before the first run
    question = ask(options)
    points, folder = [], options.resume
    if folder is None:
        folder = make_folder(options, "capacity")
    else:
        points = read_earlier(folder, question)

    def keep(point: CapacityPoint | None) -> dict[str, Any]:
        if point is not None:
            points.append(point)
        answer = conclude([p.evidence() for p in points], search)
        document = {**describe(answer, points, options.slo), "question": question}
        write_document(folder, DOCUMENT, document)
        return document

    with Interruption() as interruption:
        measure_until_known(
            ctx, replace(base, out=folder), (search, objectives), points, keep, options.budget, interruption
        )
    document = keep(None)
    from reports.capacity import print_capacity

    show_series(document, options, print_capacity, folder)
    raise typer.Exit(interruption.exit_code or exit_code(document))


def make_search(options: CapacityOptions, base: RunOptions) -> Search:
    """Say where the search starts, and between which rates it stays: at least ten requests a run."""
    from loadgen.stats.capacity import Search

    lowest = MIN_REQUESTS / base.duration if base.duration else 0.01
    if not options.max_rate > lowest:
        raise UsageError(f"--max-rate {options.max_rate:g} leaves no rate to try above {lowest:g}/s")
    found = Search(
        start_per_s=max(options.rate or 1.0, lowest),
        lowest_per_s=lowest,
        highest_per_s=options.max_rate,
        precision=options.precision / 100,
    )
    if options.repeat is None:
        return found
    if options.repeat < 2:
        raise UsageError("--repeat 1: an interval needs two replicates or more")
    return replace(found, num_pilot=options.repeat, max_replicates=options.repeat)


def ask(options: CapacityOptions) -> dict[str, Any]:
    """What is searched for, as a search that goes on must ask it again."""
    from dataclasses import asdict

    values = {name: value for name, value in asdict(options).items() if name not in PRESENTATION}
    values["header"] = [line.partition(":")[0] for line in options.header]
    return json.loads(json.dumps(values, default=str))  # type: ignore[no-any-return]


def slo_of(folder: Path) -> list[str]:
    """Read the objectives of an earlier search; empty where it has none."""
    from loadgen.measure.replicates import read_document

    question = read_document(folder / DOCUMENT).get("question") or {}
    return list(question.get("slo") or ())


def read_earlier(folder: Path, question: dict[str, Any]) -> list[CapacityPoint]:
    """Read the points of a search that was cut short; UsageError where it asked something else."""
    from loadgen.measure.capacity import read_points
    from loadgen.measure.replicates import read_document

    path = folder / DOCUMENT
    document = read_document(path)
    earlier = document.get("question") or {}
    for name, value in question.items():
        if earlier.get(name) != value:
            flag = name.replace("_", "-")
            raise UsageError(
                f"--resume {folder}: it was asked with --{flag} {earlier.get(name)}, not {value}"
            )
    return read_points(document, str(path))


def measure_until_known(
    ctx: typer.Context,
    base: RunOptions,
    task: tuple[Search, list[Objective]],
    points: list[CapacityPoint],
    keep: Callable[[CapacityPoint], dict[str, Any]],
    budget_s: float,
    interruption: Interruption,
) -> None:
    """Make the runs that the search asks for, until it is content or the budget of wall time is spent."""
    from loadgen.measure.capacity import CapacityPoint
    from loadgen.stats.capacity import next_trial

    search, objectives = task
    # a simulated second takes no time: there, all that a run takes is overhead
    scale = 0.0 if base.simulate else 1.0
    began, overheads = time.monotonic(), [0.0]
    while (trial := next_trial([point.evidence() for point in points], search)) is not None:
        one = options_of(base, trial)
        plan = make_plan(one)
        elapsed = time.monotonic() - began
        span_s = scale * plan.span_s
        wanted_s = span_s + median(overheads)
        if len(overheads) > 1 and elapsed + wanted_s > budget_s:
            if not base.quiet:
                typer.echo(
                    f"stopped: {elapsed:.1f} s of --budget {budget_s:g}s are spent, the next run would take "
                    f"{wanted_s:.1f} s; --resume {base.out} goes on",
                    err=True,
                )
            return
        measured = measure_one(ctx, one, interruption, plan)
        if interruption.exit_code is not None:
            return
        seconds = time.monotonic() - began - elapsed
        overheads.append(max(0.0, seconds - span_s))
        point = CapacityPoint.of(measured, trial, objectives, seed=one.seed, seconds=seconds)
        keep(point)
        if not base.quiet:
            typer.echo(progress_line(point), err=True)


def options_of(base: RunOptions, trial: Trial) -> RunOptions:
    """The flags of one run; probes are a sixth as long, but send ten requests or so."""
    one = replace(
        with_seed(base, trial.replicate), rate=trial.rate_per_s, name=f"rate-{trial.rate_per_s:.4g}"
    )
    if not trial.is_probe:
        return one
    requests = one.requests and max(one.requests // PROBE_SHARE, MIN_REQUESTS)
    duration = one.duration and min(
        one.duration, max(one.duration / PROBE_SHARE, MIN_REQUESTS / trial.rate_per_s)
    )
    return replace(one, requests=requests, duration=duration)


def progress_line(point: CapacityPoint) -> str:
    """What a run said, in a line."""
    from reports.capacity import describe_figures

    said = {True: "holds", False: "fails", None: f"invalid: {', '.join(point.reasons)}"}[point.passes]
    kind = "probe" if point.is_probe else f"seed {point.seed}"
    steady = ", backlog grows" if point.is_stable is False else ""
    return f"{point.rate_per_s:8.4g} /s  {kind:8}  {said}{steady}  {describe_figures(point.figures)}"


def exit_code(document: dict[str, Any]) -> int:
    """0 where there is an answer, 4 where too little was measured for one, 3 where nothing valid was."""
    if document["answer"] in ("interval", "none", "above"):
        return EXIT_OK
    decided = [point for point in document["points"] if point["passes"] is not None]
    return EXIT_UNDECIDED if decided or not document["points"] else EXIT_INVALID
