"""`bench workload`: look at a workload before it is sent, at a recording before it is replayed.

preview draws the plan of a workload; inspect says what a recorded file holds; fit turns a recording into a
synthetic workload as TOML; export writes a plan in the formats of other tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.cli.options import COUNT, TIME
from loadgen.cli.plans import parse_changes
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from workloads import Workload

app = typer.Typer(help="Preview, inspect, fit and export workloads.", no_args_is_help=True)

File = Annotated[
    Path, typer.Argument(help="A recorded workload, in any of the formats known.", metavar="FILE")
]
Window = Annotated[str | None, typer.Option("--trace-window", help="Part of the recording: START:END.")]
Columns = Annotated[
    str | None,
    typer.Option("--trace-columns", help="Columns of a format not known: time=NAME,input=NAME,output=NAME."),
]
Unit = Annotated[str | None, typer.Option("--time-unit", help="Unit of the times: datetime, s, ms, us, ns.")]
Blocks = Annotated[int | None, typer.Option("--block-tokens", help="Tokens in a block that an id names.")]
BadRows = Annotated[str, typer.Option("--bad-rows", help="A bad row is an error, or dropped: error, drop.")]
ZeroOutput = Annotated[str, typer.Option("--zero-output", help="Rows without output: drop, as-one, error.")]
Dequantize = Annotated[bool, typer.Option("--dequantize", help="Spread the times over the recording's tick.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of arrivals, lengths and prompts.")]
Name = Annotated[
    str | None, typer.Argument(help="A workload file, or a preset (see below).", metavar="[WORKLOAD]")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change one key of the workload: KEY=VALUE; may be repeated.", metavar="KEY=VALUE"
    ),
]
Rate = Annotated[float | None, typer.Option("--rate", help="Requests per second.")]
Duration = Annotated[
    float | None, typer.Option("--duration", parser=TIME, metavar="TIME", help="For how long.")
]
Requests = Annotated[int | None, typer.Option("--requests", parser=COUNT, metavar="N", help="How many.")]
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
def preview(
    workload: Name = None,
    rate: Rate = None,
    duration: Duration = None,
    requests: Requests = None,
    changes: Set = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Show the plan that a workload gives: rate over time, gaps, lengths, sessions, sharing."""
    from workloads.figures import profile

    with _told():
        plan = _resolve(workload, rate, duration, requests, changes).plan(seed)
    realised = plan.source["realised"]
    if as_json:
        document = {"requests": len(plan), "plan_digest": plan.digest(), **plan.source}
        typer.echo(json.dumps(document, allow_nan=False))
        return
    console = _console()
    console.print(
        f"[bold]{len(plan):,} requests[/] in {plan.span_s:.1f} s, plan {plan.digest()}, seed {seed}"
    )
    if rate_asked := plan.source["workload"].get("rate_per_s"):
        console.print(f"asked     {rate_asked:g}/s")
    if texts := plan.source.get("texts"):
        console.print(f"texts     prompt tokens {texts['prompt_tokens']}")
    for treated, count in plan.source["limits"].items():
        console.print(f"limits    {count:,} {treated.replace('_', ' ')}")
    _draw(console, realised, profile(plan.arrival_ns, plan.prompt_tokens, plan.output_tokens))
    if realised["sessions"]:
        facts = realised["sessions"]
        console.print(
            f"sessions  {facts['count']:,} of {facts['turns_mean']:.2f} turns: {facts['open_turns']:,} turns "
            f"at a time of their own (open), {facts['closed_turns']:,} after an answer (closed)"
        )
    if realised["ideal_hit_rate"]:
        console.print(
            f"prefixes  an ideal cache would hold {realised['ideal_hit_rate']:.1%} of prompt tokens"
        )


@app.command()
def inspect(
    file: File,
    trace_window: Window = None,
    trace_columns: Columns = None,
    time_unit: Unit = None,
    block_tokens: Blocks = None,
    bad_rows: BadRows = "error",
    zero_output: ZeroOutput = "drop",
    as_json: Json = False,
) -> None:
    """Say what a recorded workload holds, and draw it."""
    from workloads.figures import profile
    from workloads.replay import read_rows, trace_facts
    from workloads.streams import Streams

    with _told():
        workload = _recorded(
            file, trace_window, trace_columns, time_unit, block_tokens, bad_rows, zero_output
        )
        table = read_rows(workload, Streams(0))
    facts = trace_facts(table)
    if as_json:
        typer.echo(json.dumps(facts, allow_nan=False))
        return
    console = _console()
    unit = f", times in {facts['unit']}" if facts["unit"] else ", no times"
    console.print(f"[bold]{file}[/]: {facts['format']} format{unit}")
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
def fit(
    file: File,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the workload file here.", metavar="FILE")
    ] = None,
    lengths: Annotated[
        Path | None, typer.Option("--lengths", help="ServeGen: the file with the clients' lengths.")
    ] = None,
    dequantize: Dequantize = False,
    trace_window: Window = None,
    trace_columns: Columns = None,
    time_unit: Unit = None,
    bad_rows: BadRows = "error",
    as_json: Json = False,
) -> None:
    """Make a synthetic workload of a recorded one, as TOML, with its goodness of fit."""
    from workloads.files import render_toml
    from workloads.fit import fit_table
    from workloads.replay import dequantized, read_rows
    from workloads.servegen import load_servegen
    from workloads.streams import Streams
    from workloads.traces import has_client_models, look

    with _told():
        recorded = _recorded(file, trace_window, trace_columns, time_unit, None, bad_rows, "drop")
        if has_client_models(look(file)):
            workload, goodness = load_servegen(file, lengths, recorded.trace_window), {}
            notes: tuple[str, ...] = (f"{len(workload.clients)} of ServeGen's clients",)
        else:
            streams = Streams(0)
            table = read_rows(recorded, streams)
            found = fit_table(
                dequantized(table, streams) if dequantize else table, file.name.partition(".")[0]
            )
            workload, goodness, notes = found.workload, found.goodness, found.notes
    text = render_toml(workload, notes)
    if out is not None:
        _write(out, text)
    if as_json:
        document = {"workload": workload.to_dict(), "goodness": goodness, "notes": list(notes)}
        typer.echo(json.dumps(document, allow_nan=False))
        return
    if out is None:
        typer.echo(text, nl=False)
    _tell_goodness(goodness)


@app.command(epilog=PRESETS)
def export(
    out: Annotated[Path, typer.Option("--out", help="File to write.", metavar="FILE")],
    workload: Name = None,
    form: Annotated[str, typer.Option("--format", help="mooncake, azure or vllm.")] = "mooncake",
    rate: Rate = None,
    duration: Duration = None,
    requests: Requests = None,
    changes: Set = None,
    seed: Seed = 0,
) -> None:
    """Write the plan of a workload in a format that other tools read."""
    from workloads import PromptMaker
    from workloads.export import export_lines

    with _told():
        plan = _resolve(workload, rate, duration, requests, changes).plan(seed)
        lines = export_lines(plan, form, PromptMaker(seed, nonce=0))
    _write(out, "".join(f"{line}\n" for line in lines))
    typer.echo(f"{len(plan):,} requests written to {out} as {form}", err=True)


def _resolve(
    name: str | None,
    rate: float | None,
    duration: float | None,
    requests: int | None,
    changes: list[str] | None,
) -> Workload:
    """Load the workload named, and let the flags change it."""
    from workloads import Workload
    from workloads.files import load_workload, with_changes

    workload = Workload() if name is None else load_workload(name)
    given: dict[str, Any] = {**parse_changes(changes)}
    flags = {"rate_per_s": rate, "duration_s": duration, "num_requests": requests}
    given |= {key: value for key, value in flags.items() if value is not None}
    return with_changes(workload, given)


def _recorded(
    file: Path,
    window: str | None,
    columns: str | None,
    unit: str | None,
    block_tokens: int | None,
    bad_rows: str,
    zero_output: str,
) -> Workload:
    from workloads import Workload
    from workloads.files import with_changes

    values = {
        "trace": file,
        "trace_window": window,
        "trace_columns": columns,
        "time_unit": unit,
        "block_tokens": block_tokens,
        "bad_rows": bad_rows,
        "zero_output": zero_output,
    }
    workload = with_changes(Workload(), {key: value for key, value in values.items() if value is not None})
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
    return f"{bins[0][0]:.3g} {sparkline([int(count) for _, count in bins])} {2 * bins[-1][0]:.3g}{unit}"


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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"cannot write {path}: {exc.strerror}") from exc
