"""`bench sweep`: a run per rate, in random order; latency against throughput, and where it saturates."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.cli.options import RunOptions, takes_options
from loadgen.cli.plans import make_plan
from loadgen.cli.run import check_flags, measure_run
from loadgen.cli.signals import Interruption
from loadgen.errors import EXIT_INVALID, EXIT_OK, RunFolderError, UsageError

if TYPE_CHECKING:
    from loadgen.measure.sweep import SweepPoint

MAX_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions(RunOptions):
    """The flags of a run, and the rates in place of one."""

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
    """Measure one run per rate: latency against throughput, and where the server saturates."""
    from loadgen.measure.sweep import SweepPoint

    if options.rates is None:
        raise UsageError("say which rates: --rates 2:40:8 or --rates 5,10,20")
    if options.rate is not None or options.trace is not None or options.concurrency is not None:
        raise UsageError("--rates takes the place of --rate, --trace and --concurrency")
    rates = parse_rates(options.rates)
    check_flags(options)
    single = {item.name: getattr(options, item.name) for item in fields(RunOptions)}
    base = RunOptions(**single)
    plans = {rate: make_plan(replace(base, rate=rate)) for rate in rates}
    folder = make_folder(options.out, "sweep" if options.name == "run" else options.name)
    order = random.Random(options.seed).sample(rates, len(rates))  # so that drift is not taken for the rate
    points: list[SweepPoint] = []
    with Interruption() as interruption:
        for rate in order:
            one = replace(base, rate=rate, out=folder, name=f"rate-{rate:g}", json=False)
            measured = measure_run(ctx, one, plans[rate], interruption)
            assert measured.summary is not None
            points.append(SweepPoint.of(rate, measured.path.name, measured.summary))
            write(folder, options, sorted(points, key=lambda point: point.rate_per_s))
            if interruption.exit_code is not None:
                break
            interruption.stop.clear()  # set where a server of ours died: the next rate has a new one
    points.sort(key=lambda point: point.rate_per_s)
    document = describe(points)
    if options.json:
        typer.echo(json.dumps({**document, "folder": str(folder)}, allow_nan=False))
    else:
        from rich.console import Console

        from reports.sweep import print_sweep

        print_sweep(document, str(folder), Console())
    valid = all(point.status == "valid" for point in points)
    raise typer.Exit(interruption.exit_code or (EXIT_OK if valid else EXIT_INVALID))


def make_folder(out: Path, name: str) -> Path:
    """Make `<out>/<UTC time>-<name>/`, which will hold one run folder a point."""
    path = out / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}"
    try:
        path.mkdir(parents=True)
    except OSError as exc:
        raise RunFolderError(f"cannot make {path}: {exc.strerror}; choose a place with --out") from exc
    return path


def describe(points: list[SweepPoint]) -> dict[str, Any]:
    """The content of sweep.json."""
    from loadgen.measure.sweep import SWEEP_SCHEMA_VERSION, find_saturation

    saturation = find_saturation(points)
    return {
        "schema_version": SWEEP_SCHEMA_VERSION,
        "saturation": {**asdict(saturation), "sentence": saturation.sentence()},
        "points": [asdict(point) for point in points],
    }


def write(folder: Path, options: SweepOptions, points: list[SweepPoint]) -> None:
    """Write sweep.json after every point: a sweep that is cut short keeps what it has."""
    from loadgen.store import write_json

    write_json(folder / "sweep.json", {**describe(points), "rates": options.rates})
