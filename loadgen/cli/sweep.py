"""`bench sweep`: a run per rate, in random order; latency against throughput, the knee, saturation.

With `--policy A,B` the same plans go through each policy, and a curve stands for each. Where no length is
given, a few answers say how long runs must be, and one that does not tell whether its backlog grows is made
again, longer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from loadgen.cli.options import RunOptions, takes_options
from loadgen.cli.plans import make_plan, make_workload
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
from loadgen.cli.windows import share_window
from loadgen.errors import EXIT_INVALID, EXIT_OK, UsageError
from loadgen.units import format_seconds

if TYPE_CHECKING:
    from loadgen.measure.sweep import SweepPoint
    from loadgen.store import Run

DOCUMENT = "sweep.json"
MAX_POINTS = 200
PROBE_REQUESTS = 3
MAX_LONGER = 8  # of the first length: no run is made longer than that


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions(RunOptions):
    """The flags of a run, and the rates in place of one."""

    REFUSED: ClassVar = ("rate", "trace", "concurrency")

    rates: Annotated[
        str | None,
        typer.Option(
            help="START:STOP:COUNT, or a list such as 5,10,20.", metavar="RATES", rich_help_panel="Load"
        ),
    ] = None


def parse_rates(text: str) -> list[float]:
    """Read `2:40:8` (evenly spaced, both ends included) or `5,10,20`; ascending, each once."""
    try:
        if ":" in text:
            start, stop, count = text.split(":")
            first, last, num = float(start), float(stop), int(count)
            if not 1 <= num <= MAX_POINTS or (num == 1 and first != last):
                raise ValueError
            rates = [first + (last - first) * i / max(num - 1, 1) for i in range(num)]
        else:
            rates = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--rates {text!r}: write START:STOP:COUNT, such as 2:40:8, or a list, such as 5,10,20"
        ) from None
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise UsageError(f"--rates {text!r}: every rate must be above 0")
    return sorted(set(rates))


@takes_options
def sweep(ctx: typer.Context, options: SweepOptions) -> None:
    """Measure each rate: latency against throughput, the knee, and where the server saturates."""
    from loadgen.measure.sweep import SweepPoint

    if options.rates is None:
        raise UsageError("say which rates: --rates 2:40:8 or --rates 5,10,20")
    if options.rate is not None or options.trace is not None or options.concurrency is not None:
        raise UsageError("--rates takes the place of --rate, --trace and --concurrency")
    rates, policies = parse_rates(options.rates), options.policy.split(",")
    bases = [plain_options(options, policy=policy) for policy in policies]
    for base in bases:
        check_flags(base)
    asked = [
        replace(with_seed(base, number), rate=rate, name=name_of(base.policy, rate, len(policies)))
        for base in bases
        for rate in rates
        for number in range(options.repeat or 1)
    ]
    for one in asked:
        make_plan(one)  # what is wrong with the load is told before the first run
    folder = make_folder(options, "sweep")
    runs: dict[int, Run] = {}

    def document() -> dict[str, Any]:
        found: dict[str, list[SweepPoint]] = {policy: [] for policy in policies}
        for number, run in runs.items():
            rate, summary = asked[number].rate, run.summary
            assert rate is not None
            assert summary is not None
            found[asked[number].policy].append(SweepPoint.of(rate, run.path.name, summary))
        return describe(found, options)

    with Interruption() as interruption:
        is_given = has_length(asked[0])
        asked = [replace(one, out=folder) for one in asked]
        if not is_given:
            answer_s = probe_answer_s(ctx, asked[0], interruption)
            asked = [replace(one, duration=first_length_s(one, answer_s)) for one in asked]
            tell(options, estimate(asked, answer_s))
        for _ in measure_all(ctx, asked, runs, interruption, longest=0 if is_given else MAX_LONGER):
            write_document(folder, DOCUMENT, document())
    from reports.sweep import print_sweep

    show_series(document(), options, partial(print_sweep, wide=options.wide), folder)
    valid = all((run.summary or {})["verdict"]["status"] == "valid" for run in runs.values())
    raise typer.Exit(interruption.exit_code or (EXIT_OK if valid else EXIT_INVALID))


def measure_all(
    ctx: typer.Context,
    asked: list[RunOptions],
    runs: dict[int, Run],
    interruption: Interruption,
    *,
    longest: int,
) -> Iterator[None]:
    """Fill `runs`, by number in `asked`, until all are there or the user stops; yields after each.

    In random order, so that drift is not taken for the rate. The arms of a rate and a seed share their plan
    and their window; where one of them is undecided they are made again, up to `longest` times as long.
    """
    first_s = [one.duration or 0.0 for one in asked]
    waiting = random.Random(asked[0].seed).sample(range(len(asked)), len(asked))
    while waiting and interruption.exit_code is None:
        number = waiting.pop(0)
        one = asked[number]
        runs[number] = measure_one(ctx, one, interruption)
        arms = [i for i, arm in enumerate(asked) if (arm.rate, arm.seed) == (one.rate, one.seed)]
        if all(arm in runs and arm not in waiting for arm in arms):
            runs |= zip(arms, share_window([runs[arm] for arm in arms]), strict=True)
            needed_s = longest_needed_s([runs[arm] for arm in arms])
            if needed_s and needed_s <= longest * first_s[number]:
                tell(one, f"{one.rate:g} requests/s: undecided, once more for {needed_s:.0f} s")
                for arm in arms:
                    asked[arm] = replace(asked[arm], duration=needed_s)
                waiting = [*arms, *waiting]
        yield


def has_length(options: RunOptions) -> bool:
    """Whether flags or the workload say how long a run is."""
    from workloads import Workload

    workload = make_workload(options)
    return options.duration is not None or (workload.num_requests, workload.duration_s) != (
        None,
        Workload().duration_s,
    )


def probe_answer_s(ctx: typer.Context, one: RunOptions, interruption: Interruption) -> float:
    """Ask for a few answers, one by one, and return how long the longest took; 0 where none came. No run of
    the sweep: nothing of it is kept.
    """
    one = replace(
        one,
        requests=PROBE_REQUESTS,
        concurrency=1,
        max_in_flight=None,
        sessions=None,
        rate=None,
        name="probe",
    )
    probe = measure_one(ctx, one, interruption, make_plan(one))
    summary = probe.summary
    rmtree(probe.path)
    return float(summary["metrics"]["e2e_s"]["max"] or 0.0) if summary else 0.0


def first_length_s(one: RunOptions, answer_s: float) -> float:
    """How long the first run at a rate is."""
    from loadgen.measure.backlog import run_length_s

    assert one.rate is not None
    return float(ceil(run_length_s(answer_s, one.rate)))


def estimate(asked: Sequence[RunOptions], answer_s: float) -> str:
    """Say how long the runs will take."""
    lengths = [one.duration or 0.0 for one in asked]
    when = (
        "virtual time"
        if asked[0].simulate
        else f"about {(sum(lengths) + len(lengths) * answer_s) / 60:.0f} min"
    )
    return (
        f"{len(lengths)} runs of {min(lengths):.0f} to {max(lengths):.0f} s, since an answer takes "
        f"{format_seconds(answer_s)}: {when} in all, and longer where one does not tell (--duration fixes it)"
    )


def longest_needed_s(runs: Sequence[Run]) -> float:
    """How long the runs should have been to tell whether their backlog grows; 0 where they did."""
    return max(float(((run.summary or {}).get("backlog") or {}).get("needed_s") or 0.0) for run in runs)


def tell(options: RunOptions, line: str) -> None:
    """A line of progress."""
    if not options.quiet:
        typer.echo(line, err=True)


def name_of(policy: str, rate: float, num_policies: int) -> str:
    """Name a run by its rate, and by its policy where there are several."""
    return f"rate-{rate:g}" if num_policies == 1 else f"{policy}-rate-{rate:g}"


def describe(points: dict[str, list[SweepPoint]], options: SweepOptions) -> dict[str, Any]:
    """The content of sweep.json: one curve, or one by policy under `curves`."""
    from loadgen.measure.sweep import SWEEP_SCHEMA_VERSION

    facts = {"schema_version": SWEEP_SCHEMA_VERSION, "rates": options.rates, "repeat": options.repeat or 1}
    curves = {policy: describe_curve(found) for policy, found in points.items()}
    if len(curves) > 1:
        return {**facts, "curves": [{"name": policy, **curve} for policy, curve in curves.items()]}
    (curve,) = curves.values()
    return {**facts, **curve}


def describe_curve(points: list[SweepPoint]) -> dict[str, Any]:
    """A point a rate, whatever the number of its runs; the knee and where it saturates."""
    from loadgen.measure.sweep import SweepPoint, find_knee, find_saturation

    rates = sorted({point.rate_per_s for point in points})
    merged = [SweepPoint.of_replicates([p for p in points if p.rate_per_s == rate]) for rate in rates]
    saturation, knee = find_saturation(merged), find_knee(merged)
    return {
        "saturation": {**asdict(saturation), "sentence": saturation.sentence()},
        "knee": knee and {**asdict(knee), "sentence": knee.sentence()},
        "points": [asdict(point) for point in merged],
    }
