"""`bench workload`: look at a workload before it is sent, at a recording before it is replayed.

preview draws the plan of a workload; inspect says what a recorded file holds; fit turns a recording into a
synthetic workload as TOML; export writes a plan in the formats of other tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.cli.options import PlanOptions, shared, takes_options
from loadgen.cli.plans import make_plan
from loadgen.cli.report import write
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from workloads import Workload

app = typer.Typer(help="Preview, inspect, fit and export workloads.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewOptions(PlanOptions):
    """The flags of load and lengths, the workload as an argument."""

    workload: Annotated[
        str | None, typer.Argument(help="A workload file, or a preset (see below).", metavar="[WORKLOAD]")
    ] = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(PreviewOptions):
    out: Annotated[Path, typer.Option("--out", help="File to write.", metavar="FILE")]
    form: Annotated[str, typer.Option("--format", help="mooncake, azure or vllm.")] = "mooncake"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOptions:
    """A recording, and how it is read."""

    file: Annotated[
        Path, typer.Argument(help="A recorded workload, in any of the formats known.", metavar="FILE")
    ]
    trace_window: Any = shared("trace_window")  # noqa: RUF009
    trace_columns: str | None = shared("trace_columns")
    time_unit: str | None = shared("time_unit")
    bad_rows: str | None = shared("bad_rows")
    zero_output: str | None = shared("zero_output")
    dequantize: bool = shared("dequantize")
    block_tokens: Annotated[
        int | None, typer.Option("--block-tokens", help="Tokens in a block that an id names.")
    ] = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions(RecordedOptions):
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the workload file here.", metavar="FILE")
    ] = None
    lengths: Annotated[
        Path | None, typer.Option("--lengths", help="ServeGen: the file with the clients' lengths.")
    ] = None


PRESETS = "Presets: agent, batch, bursty, chat, code, long-context, rag, reasoning, summary."


@contextmanager
def _told() -> Iterator[None]:
    """Let a workload's error end the command like any wrong usage."""
    from workloads import WorkloadError

    try:
        yield
    except WorkloadError as exc:
        raise UsageError(str(exc)) from exc


@app.command(epilog=PRESETS)
@takes_options
def preview(ctx: typer.Context, options: PreviewOptions) -> None:  # noqa: ARG001
    """Show the plan that a workload gives: rate over time, gaps, lengths, sessions, sharing."""
    from workloads.figures import profile

    plan = make_plan(options)
    realised = plan.source["realised"]
    if options.json:
        document = {"requests": len(plan), "plan_digest": plan.digest(), **plan.source}
        typer.echo(json.dumps(document, allow_nan=False))
        return
    console = _console()
    console.print(
        f"[bold]{len(plan):,} requests[/] in {plan.span_s:.1f} s, plan {plan.digest()}, seed {options.seed}"
    )
    if rate_asked := plan.source["workload"].get("rate_per_s"):
        console.print(f"asked     {rate_asked:g}/s{_of_sessions(plan.source['workload'])}")
    if texts := plan.source.get("texts"):
        console.print(f"texts     prompt tokens {texts['prompt_tokens']}")
    for treated, count in plan.source["limits"].items():
        console.print(f"limits    {count:,} {treated.replace('_', ' ')}")
    _draw(console, realised, profile(plan.arrival_ns, plan.prompt_tokens, plan.output_tokens))
    if realised["sessions"]:
        facts = realised["sessions"]
        console.print(
            f"sessions  {facts['count']:,} of {facts['turns_mean']:.3g} turns: {facts['open_turns']:,} at "
            f"a time of their own (open), {facts['closed_turns']:,} after an answer (closed)"
        )
    if realised["ideal_hit_rate"]:
        console.print(
            f"prefixes  an ideal cache would hold {realised['ideal_hit_rate']:.1%} of prompt tokens"
        )


@app.command()
@takes_options
def inspect(ctx: typer.Context, options: RecordedOptions) -> None:  # noqa: ARG001
    """Say what a recorded workload holds, and draw it."""
    from workloads.figures import profile
    from workloads.replay import read_rows, trace_facts
    from workloads.streams import Streams

    with _told():
        table = read_rows(_recorded(options), Streams(0))
    facts = trace_facts(table)
    if options.json:
        typer.echo(json.dumps(facts, allow_nan=False))
        return
    console = _console()
    unit = f", times in {facts['unit']}" if facts["unit"] else ", no times"
    console.print(f"[bold]{options.file}[/]: {facts['format']} format{unit}")
    rows = facts["rows"]
    dropped = "".join(f", {count:,} dropped: {reason}" for reason, count in rows["dropped"].items())
    console.print(f"rows      {rows['read']:,} read, {rows['kept']:,} kept{dropped}")
    for note in facts["notes"]:
        console.print(f"note      {note}")
    if facts["tick_s"]:
        console.print(f"tick      times stand on a grid of {facts['tick_s']:g} s; --dequantize spreads them")
    _draw(console, facts, profile(table.arrival_ns, table.input_tokens, table.output_tokens))
    if uneven := facts["per_minute"]:
        console.print(
            f"minutes   counts have variance over mean {uneven['variance_to_mean']:.3g} (Poisson: 1), "
            f"peak over mean {uneven['peak_to_mean']:.3g}"
        )
    if facts["sessions"]:
        console.print(f"sessions  {facts['sessions']:,}")
    if facts["prefix"]["ideal_hit_rate"] is not None:
        console.print(
            f"prefixes  blocks of {facts['prefix']['block_tokens']} tokens; an ideal cache would hold "
            f"{facts['prefix']['ideal_hit_rate']:.1%} of prompt tokens"
        )


@app.command()
@takes_options
def fit(ctx: typer.Context, options: FitOptions) -> None:  # noqa: ARG001
    """Make a synthetic workload of a recorded one, as TOML, with its goodness of fit."""
    from workloads.files import render_toml
    from workloads.fit import fit_table
    from workloads.replay import dequantized, read_rows
    from workloads.servegen import load_servegen
    from workloads.streams import Streams
    from workloads.traces import has_client_models, look

    with _told():
        recorded = _recorded(options)
        if has_client_models(look(options.file)):
            workload, goodness = load_servegen(options.file, options.lengths, options.trace_window), {}
            notes: tuple[str, ...] = (f"{len(workload.clients)} of ServeGen's clients",)
        else:
            streams = Streams(0)
            table = read_rows(recorded, streams)
            if options.dequantize:
                table = dequantized(table, streams)
            found = fit_table(table, options.file.name.partition(".")[0])
            workload, goodness, notes = found.workload, found.goodness, found.notes
    text = render_toml(workload, notes)
    if options.out is not None:
        write(options.out, text)
    if options.json:
        document = {"workload": workload.to_dict(), "goodness": goodness, "notes": list(notes)}
        typer.echo(json.dumps(document, allow_nan=False))
        return
    if options.out is None:
        typer.echo(text, nl=False)
    _tell_goodness(goodness)


@app.command(epilog=PRESETS)
@takes_options
def export(ctx: typer.Context, options: ExportOptions) -> None:  # noqa: ARG001
    """Write the plan of a workload in a format that other tools read."""
    from workloads import PromptMaker
    from workloads.export import export_lines

    plan = make_plan(options)
    with _told():
        lines = export_lines(plan, options.form, PromptMaker(options.seed, nonce=0))
        write(options.out, "".join(f"{line}\n" for line in lines))
    typer.echo(f"{len(plan):,} requests written to {options.out} as {options.form}", err=True)


def _recorded(options: RecordedOptions) -> Workload:
    from workloads import Workload
    from workloads.files import with_changes

    names = ("trace_window", "trace_columns", "time_unit", "block_tokens", "bad_rows", "zero_output")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    workload = with_changes(Workload(), {"trace": options.file, **given})
    workload.check()
    return workload


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def _draw(console: Console, facts: dict[str, Any], shown: dict[str, Any]) -> None:
    """Draw rate, gaps, lengths and how they hang together, in text."""
    from reports.quantities import sparkline

    if facts["rate_per_s"] is not None:
        rates = shown["rate_per_s"]
        line = sparkline([round(1000 * rate) for rate in rates])
        cv = "unknown" if facts["gap_cv"] is None else f"{facts['gap_cv']:.2f}"
        console.print(
            f"rate      {facts['rate_per_s']:.3g}/s over {facts['span_s']:.1f} s, CV of the gaps {cv}"
        )
        console.print(f"          {line}  {min(rates):.3g} to {max(rates):.3g}/s")
        zero = f", {shown['zero_gaps']:,} of 0 s" if shown["zero_gaps"] else ""
        console.print(f"gaps      {_histogram(shown['gaps'], 's')}{zero}")
    for side, name in (("input_tokens", "prompts"), ("output_tokens", "answers")):
        figures = facts[side]
        console.print(f"{name}   {_histogram(shown[side], ' tokens')}")
        told = "  ".join(f"{key} {value:,.4g}" for key, value in figures.items())
        console.print(f"          {told}")
    parts = "  ".join(f"{low:,}-{high:,}: {median:,.0f}" for low, high, median in shown["joint"])
    console.print(f"together  median answer by fifth of the prompts: {parts}")


def _histogram(bins: list[list[float]], unit: str) -> str:
    """One column for each factor of two, with the ends named."""
    from reports.quantities import sparkline

    if not bins:
        return "none"
    return f"{_end(bins[0][0])} {sparkline([int(count) for _, count in bins])} {_end(2 * bins[-1][0])}{unit}"


def _end(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _of_sessions(workload: dict[str, Any]) -> str:
    """Say what a rate means for sessions, and why a short plan stays below it; empty without them."""
    from workloads.sessions import parse_sessions

    if not workload.get("sessions"):
        return ""
    turns = parse_sessions(workload["sessions"]).turns.mean
    return (
        f" in the long run: {workload['rate_per_s'] / turns:.3g} sessions/s of {turns:.3g} turns (mean); "
        "a session takes its time, and what is due after the end is left out: a short plan stays below"
    )


def _tell_goodness(goodness: dict[str, Any]) -> None:
    """Say on stderr how well the fit reproduces the recording."""
    if arrival := goodness.get("arrival"):
        for name, label in (("gap_cv", "CV of the gaps"), ("dispersion", "dispersion of counts")):
            recorded, fitted = arrival[name]
            typer.echo(f"{label}: recorded {recorded:.3g}, fitted {fitted:.3g}", err=True)
        typer.echo(f"KS distance of the gaps: {arrival['gap_ks']:.3f}", err=True)
    for side in ("input_tokens", "output_tokens"):
        if side in goodness:
            others = ", ".join(f"{name} {ks:.3f}" for name, ks in goodness[side]["ks_of_families"].items())
            typer.echo(
                f"KS distance of {side}: {goodness[side]['ks']:.3f} (single families: {others})", err=True
            )
