"""`bench capacity`: the highest rate at which the objectives hold and the backlog is steady, an interval."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
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
from loadgen.units import format_seconds

if TYPE_CHECKING:
    from loadgen.measure.capacity import CapacityPoint
    from loadgen.measure.slo import Objective
    from loadgen.stats.capacity import Search, Trial
    from workloads import Plan

PANEL = "Capacity"
DOCUMENT = "capacity.json"
LENGTH_S = 30.0
LOWEST_PER_S = 0.01
RUNS_A_REPLICATE = 2.5
BEYOND_LIMIT = 10  # requests that take so many times the limit are slow, not failed
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
    from loadgen.stats.capacity import Trial, conclude

    if options.resume is not None and not options.slo:
        options = replace(options, slo=slo_of(options.resume))
    objectives = parse_objectives(options.slo)
    if options.trace is not None or options.concurrency is not None:
        raise UsageError("a capacity is a rate of its own: --trace and --concurrency do not go with it")
    if options.max_in_flight is not None:
        raise UsageError("--max-in-flight closes the loop: the rate would no longer be the one that is tried")
    check_flags(options)
    base = with_patience(plain_options(options), objectives)
    search = make_search(options)
    first = Trial(rate_per_s=search.start_per_s, length_s=search.length_s)
    make_plan(options_of(base, first, search))  # what is wrong with the load is told before the first run
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


def make_search(options: CapacityOptions) -> Search:
    """Say where the search starts, between which rates it stays, and how long its runs are."""
    from loadgen.measure.capacity import MIN_REQUESTS
    from loadgen.stats.capacity import Search

    duration_s = options.duration
    lowest = MIN_REQUESTS / duration_s if duration_s else LOWEST_PER_S
    if not options.max_rate > lowest:
        raise UsageError(f"--max-rate {options.max_rate:g} leaves no rate to try above {lowest:g}/s")
    is_fixed = duration_s is not None or options.requests is not None
    found = Search(
        length_s=duration_s or (0.0 if is_fixed else LENGTH_S),
        is_length_fixed=is_fixed,
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


def with_patience(base: RunOptions, objectives: Sequence[Objective]) -> RunOptions:
    """Let no default timeout end a request that is only slow: an objective may let one in ten be."""
    from loadgen.measure.metrics import UNITS

    limits = [one.limit for one in objectives if UNITS[one.metric] == "s"]
    longest_s = BEYOND_LIMIT * max(limits, default=0.0)
    defaults = {item.name: item.default for item in fields(RunOptions)}
    given = {name: getattr(base, name) for name in ("first_token_timeout", "timeout", "drain_timeout")}
    return replace(
        base,
        **{name: max(value, longest_s) for name, value in given.items() if value == defaults[name]},
    )


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
    clock = Spending(budget_s=budget_s, is_virtual=bool(base.simulate))
    length_s = 0.0
    while (trial := next_trial([point.evidence() for point in points], search)) is not None:
        one = options_of(base, trial, search)
        plan = make_plan(one)
        is_longer = not trial.is_probe and trial.length_s > length_s
        num_runs = RUNS_A_REPLICATE * search.num_pilot if is_longer else 1.0
        stop = clock.say_stop(plan, 2 * RUNS_A_REPLICATE if is_longer else 1.0)
        if stop and not base.quiet:
            typer.echo(f"{stop}; --resume {base.out} goes on", err=True)
        if stop:
            return
        if is_longer and not base.quiet:
            typer.echo(clock.say_plan(plan, num_runs), err=True)
        length_s = length_s if trial.is_probe else trial.length_s
        measured = measure_one(ctx, one, interruption, plan)
        if interruption.exit_code is not None:
            return
        point = CapacityPoint.of(measured, trial, objectives, seed=one.seed, seconds=clock.note(plan))
        keep(point)
        if not base.quiet:
            typer.echo(progress_line(point), err=True)


class Spending:
    """What the runs have taken of the wall time. A simulated second takes none: there, requests do."""

    def __init__(self, *, budget_s: float, is_virtual: bool) -> None:
        self._budget_s = budget_s
        self._is_virtual = is_virtual
        self._began = self._last = time.monotonic()
        self._spent: list[
            tuple[int, float]
        ] = []  # requests of a run, and seconds beside those of its schedule

    def note(self, plan: Plan) -> float:
        """Note that a run of the plan has just ended; return the seconds that it took."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        self._spent.append((len(plan), max(0.0, seconds - self._scheduled_s(plan))))
        return seconds

    def wanted_s(self, plan: Plan) -> float:
        """How long a run of the plan will take: the quickest so far, and what the largest took beyond it."""
        least_s = min((seconds for _, seconds in self._spent), default=0.0)
        num, most_s = max(self._spent, default=(1, least_s))
        return self._scheduled_s(plan) + least_s + (most_s - least_s) * len(plan) / num

    def _scheduled_s(self, plan: Plan) -> float:
        return 0.0 if self._is_virtual else plan.span_s

    def say_stop(self, plan: Plan, num_runs: float) -> str:
        """Why so many runs of the plan are not begun; empty where there is time for them."""
        elapsed, wanted_s = self._last - self._began, num_runs * self.wanted_s(plan)
        if not self._spent or elapsed + wanted_s <= self._budget_s:
            return ""
        what = "the next run" if num_runs == 1 else f"runs of {plan.span_s:.3g} s for two replicates"
        return (
            f"stopped: {elapsed:.1f} s of --budget {self._budget_s:g}s are spent, {what} would take "
            f"{wanted_s:.1f} s"
        )

    def say_plan(self, plan: Plan, num_runs: float) -> str:
        """How long so many runs of the plan will take."""
        virtual = " in virtual time" if self._is_virtual else ""
        return (
            f"some {num_runs:.0f} runs of {plan.span_s:.3g} s{virtual}, about "
            f"{format_seconds(num_runs * self.wanted_s(plan))} (--budget {self._budget_s:g}s)"
        )


def options_of(base: RunOptions, trial: Trial, search: Search) -> RunOptions:
    """The flags of one run. One that looks around sends ten requests or so, however short it is."""
    from loadgen.measure.capacity import MIN_REQUESTS
    from loadgen.stats.capacity import PROBE_SHARE

    one = replace(
        with_seed(base, trial.replicate), rate=trial.rate_per_s, name=f"rate-{trial.rate_per_s:.4g}"
    )
    if one.requests is not None:
        share = PROBE_SHARE if trial.is_probe else 1
        return replace(one, requests=max(one.requests // share, min(one.requests, MIN_REQUESTS)))
    duration_s = max(trial.length_s, MIN_REQUESTS / trial.rate_per_s)
    return replace(one, duration=min(duration_s, search.length_s) if search.is_length_fixed else duration_s)


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
