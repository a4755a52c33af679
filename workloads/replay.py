"""From a recorded workload to a plan: which rows, at what speed, how long; every row read is accounted for.

Speed divides the times, so that bursts and think times shrink too. Thinning leaves rows (or whole sessions)
out by chance and keeps the time structure. Copies lay shifted copies over each other, which smooths bursts.
The three are not the same. A coarse clock in the recording shows as ticks: requests that arrived over 3 s
stand at one instant. Ticks are told, and spread uniformly where `dequantize` asks for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError
from workloads.figures import minute_figures, workload_figures
from workloads.laws import to_tokens
from workloads.limits import fit
from workloads.plan import Plan
from workloads.prefixes import hit_tokens
from workloads.streams import Streams
from workloads.traces import TraceTable, read_trace
from workloads.traces.table import ROW_COLUMNS

if TYPE_CHECKING:
    from workloads.spec import Workload

ZeroOutput = Literal["drop", "as-one", "error"]
ZERO_OUTPUT: tuple[str, ...] = ("drop", "as-one", "error")
MIN_RATE_PER_S, MAX_RATE_PER_S = 0.01, 10_000.0
Ints = NDArray[np.int64]


def read_rows(workload: Workload, streams: Streams) -> TraceTable:
    """Read the workload's trace and choose its rows; times and lengths as recorded, the first row at 0."""
    assert workload.trace is not None
    table = read_trace(workload.trace, workload.read_options())
    if workload.trace_window is not None:
        table = _cut(table, *workload.trace_window)
    table = _without_zeros(table, workload.zero_output)
    if workload.trace_thin < 1:
        chosen = _chosen(table, workload.trace_thin, streams.generator("trace/thin"))
        table = table.keep(chosen, "thinned")
    if workload.num_requests is not None:
        table = table.keep(np.arange(len(table)) < workload.num_requests, "beyond_num_requests")
    return _from_zero(_not_empty(table))


def replay(workload: Workload, streams: Streams) -> Plan:
    """Make a plan of the rows: their times, and their lengths within the context."""
    table = read_rows(workload, streams)
    if table.format.arrival is None:
        raise WorkloadError(
            f"{table.path} ({table.format.name}) has no times to replay; draw its lengths with "
            "--lengths-from and give --rate"
        )
    _check_unit(table)
    scaled = [column * workload.length_scale for column in (table.input_tokens, table.output_tokens)]
    inputs, outputs = map(to_tokens, scaled)
    raised = sum(int(np.sum(lengths < 0.5)) for lengths in scaled)
    rng = streams.generator("lengths/resample")

    def redraw(rows: Ints) -> tuple[Ints, Ints]:
        picks = rng.integers(0, len(inputs), len(rows))
        return inputs[picks], outputs[picks]

    limit = workload.context_tokens, workload.over_context
    fitted = fit((inputs, outputs), *limit, redraw, lambda i: f"{table.path}, line {table.line[i]}:")
    facts = trace_facts(table.keep(fitted.kept, "over_context"))
    whole = replace(table, input_tokens=fitted.input_tokens, output_tokens=fitted.output_tokens)
    kept = _from_zero(_not_empty(whole.keep(fitted.kept, "over_context")))
    if workload.dequantize:
        kept = dequantized(kept, streams)
    if workload.trace_copies > 1:
        kept = _copied(kept, workload.trace_copies, streams.generator("trace/copies"))
    asked = {
        "speed": workload.trace_speed,
        "thin": workload.trace_thin,
        "copies": workload.trace_copies,
        "dequantized": workload.dequantize,
    }
    limits = fitted.counts | ({"raised_to_1_token": raised} if raised else {})
    return _to_plan(kept, workload, {"trace": facts | asked, "limits": limits})


def _cut(table: TraceTable, start_s: float, end_s: float | None) -> TraceTable:
    inside = table.arrival_ns >= round(start_s * 1e9)
    if end_s is not None:
        inside &= table.arrival_ns < round(end_s * 1e9)
    if not inside.any() and len(table):
        span_s = float(table.arrival_ns[-1]) / 1e9
        raise WorkloadError(f"{table.path}: no row lies in the window; the file spans 0:{span_s:.0f}s")
    return table.keep(inside, "outside_window")


def _without_zeros(table: TraceTable, policy: ZeroOutput) -> TraceTable:
    table = table.keep(table.input_tokens > 0, "zero_input")
    zero = table.output_tokens == 0
    if policy == "error" and zero.any():
        raise WorkloadError(
            f"{table.path}, line {table.line[zero][0]}, column {table.format.output_tokens}: 0 output "
            "tokens; choose --zero-output drop or as-one"
        )
    return table.keep(~zero, "zero_output") if policy == "drop" else table


def _to_plan(table: TraceTable, workload: Workload, source: dict[str, Any]) -> Plan:
    turn = np.full(len(table), -1, np.int64)
    for rows in _by_session(table):
        turn[rows] = np.arange(len(rows))
    waits = (table.delay_ns >= 0) & (turn > 0)
    block_tokens = table.format.block_tokens if len(table.blocks) else 0
    return Plan(
        arrival_ns=np.rint(table.arrival_ns / workload.trace_speed).astype(np.int64),
        prompt_tokens=table.input_tokens.astype(np.int32),
        output_tokens=table.output_tokens.astype(np.int32),
        session=table.session,
        turn=turn,
        think_ns=np.where(waits, np.rint(table.delay_ns / workload.trace_speed), -1).astype(np.int64),
        class_id=np.zeros(len(table), np.int32),
        prefix_blocks=table.blocks,
        prefix_offsets=table.block_offsets,
        # Scaled prompts share as much of their length as the recorded ones did.
        block_tokens=block_tokens and max(1, round(block_tokens * workload.length_scale)),
        source=source,
    )


def find_tick_ns(arrival_ns: Ints) -> int | None:
    """Find the step of a clock too coarse for the rate; None where the times are fine enough.

    Either all gaps are multiples of one step of 0.2 mean gaps or more, or more than half are zero: then the
    tick is the median of the others.
    """
    gaps = np.diff(arrival_ns)
    if len(gaps) < 50 or not gaps.any():
        return None
    step = int(np.gcd.reduce(gaps))
    if step >= 0.2 * gaps.mean():
        # A constant rate is no coarse clock: its gaps do not vary.
        return step if gaps.std() > 0.2 * gaps.mean() else None
    return int(np.median(gaps[gaps > 0])) if np.mean(gaps == 0) > 0.5 else None


def trace_facts(table: TraceTable) -> dict[str, Any]:
    """Say what was read: format, rows kept and dropped by reason, and the figures as recorded."""
    tick_ns = find_tick_ns(table.arrival_ns)
    block_tokens = table.format.block_tokens
    hits = hit_tokens(table.blocks, table.block_offsets, block_tokens, table.input_tokens)
    total = int(table.input_tokens.sum())
    return {
        "path": str(table.path),
        "format": table.format.name,
        "unit": table.format.unit if table.format.arrival else None,
        "rows": {"read": table.num_read, "kept": len(table), "dropped": table.dropped},
        "notes": list(table.notes),
        "tick_s": tick_ns and tick_ns / 1e9,
        **workload_figures(table.arrival_ns, table.input_tokens, table.output_tokens),
        "per_minute": minute_figures(table.arrival_ns),
        "prefix": {
            "block_tokens": block_tokens or None,
            "ideal_hit_rate": int(hits.sum()) / total if len(table.blocks) and total else None,
        },
        "sessions": len(np.unique(table.session[table.session >= 0])),
    }


def _check_unit(table: TraceTable) -> None:
    """Refuse a rate that only a wrong unit explains; a handful of rows implies no rate."""
    rate = workload_figures(table.arrival_ns, table.input_tokens, table.output_tokens)["rate_per_s"]
    if rate is not None and len(table) >= 100 and not MIN_RATE_PER_S <= rate <= MAX_RATE_PER_S:
        raise WorkloadError(
            f"{table.path}: read as {table.format.name} (times in {table.format.unit}) it has {rate:.3g} "
            "requests/s; give the right unit with --time-unit"
        )


def _chosen(table: TraceTable, fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose rows by chance; of a session all or none."""
    sessions = rng.random(int(table.session.max(initial=0)) + 1) < fraction
    return np.where(table.session >= 0, sessions[table.session], rng.random(len(table)) < fraction)


def dequantized(table: TraceTable, streams: Streams) -> TraceTable:
    """Spread the times over their tick, where there is one; the order of the rows stays."""
    tick_ns = find_tick_ns(table.arrival_ns)
    if tick_ns is None:
        return table
    jittered = table.arrival_ns + streams.generator("trace/dequantize").integers(0, tick_ns, len(table))
    return _from_zero(replace(table, arrival_ns=np.sort(jittered)))


def _copied(table: TraceTable, copies: int, rng: np.random.Generator) -> TraceTable:
    """Lay copies over the table, each shifted around the span by chance; sessions shift as a whole."""
    span = int(table.arrival_ns[-1]) + 1
    anchor = table.arrival_ns.copy()
    for rows in _by_session(table):
        anchor[rows] = anchor[rows[0]]
    parts = [table]
    num_sessions = int(table.session.max(initial=-1)) + 1
    num_blocks = int(table.blocks.max(initial=-1)) + 1
    for number in range(1, copies):
        moved = (anchor + int(rng.integers(0, span))) % span - anchor
        session = np.where(table.session >= 0, table.session + number * num_sessions, -1)
        blocks = table.blocks + number * num_blocks
        parts.append(replace(table, arrival_ns=table.arrival_ns + moved, session=session, blocks=blocks))
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in (*ROW_COLUMNS, "blocks")
    }
    widths = np.tile(np.diff(table.block_offsets), copies)
    whole = replace(table, **joined, block_offsets=np.append(0, np.cumsum(widths)))
    return _from_zero(whole.take(np.argsort(whole.arrival_ns, kind="stable")))


def _by_session(table: TraceTable) -> list[Ints]:
    """Give the rows of each session, in order."""
    rows = np.flatnonzero(table.session >= 0)
    rows = rows[np.argsort(table.session[rows], kind="stable")]
    return np.split(rows, np.flatnonzero(np.diff(table.session[rows])) + 1) if len(rows) else []


def _from_zero(table: TraceTable) -> TraceTable:
    return replace(table, arrival_ns=table.arrival_ns - table.arrival_ns[0])


def _not_empty(table: TraceTable) -> TraceTable:
    if len(table):
        return table
    dropped = ", ".join([f"{table.num_read} read", *(f"{n} {reason}" for reason, n in table.dropped.items())])
    raise WorkloadError(f"{table.path}: no row is left to send ({dropped})")
