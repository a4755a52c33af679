"""What a report draws: curves, histograms and densities of one run, thinned to what a figure can show.

Pure functions of what was measured, in seconds from the start of the run. They decide which points stand for
the whole; how they look is the reports' business. Quantiles follow the one rule of `stats.quantile`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Bools, Columns, Floats
from loadgen.measure.events import EventBlock, iter_event_blocks
from loadgen.measure.measured import Measured
from loadgen.measure.metrics import Sample, in_flight_steps
from loadgen.records import Outcome
from loadgen.store import RequestRows, Run
from loadgen.telemetry import IS_GAUGE

MAX_CURVE_POINTS = 300
NUM_TIME_BINS = 100
MIN_TIME_BIN_S = 0.1
NUM_GAP_BINS = 40
MAX_SPANS_ACROSS = 150
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """A curve or a cloud; x ascends where it is a curve."""

    x: Floats
    y: Floats

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Histogram:
    """counts[i] values lie from edges_s[i] to edges_s[i + 1]."""

    edges_s: Floats
    counts: list[int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Density:
    """counts[i, j]: gaps that ended in time bin i and were as long as gap bin j."""

    time_edges_s: Floats
    gap_edges_s: Floats
    counts: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Requests as spans of time: due, first token (or end, without one), end."""

    start_s: Floats
    first_token_s: Floats
    end_s: Floats
    is_ok: Bools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineLevels:
    """What the engine held, step by step; the largest value of each time bin, blocks as a share of all.

    `preempted` counts the evictions of each bin.
    """

    time_s: Floats
    running: Floats
    waiting: Floats
    kv_used_fraction: Floats
    preempted: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failures of one kind that came with the same words."""

    outcome: str
    http_status: int | None
    error: str | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRequest:
    """A request of the tail: None where something is not known."""

    index: int
    scheduled_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    ttft_s: float | None
    max_gap_s: float | None
    e2e_s: float | None


def cdf(sample: Sample) -> Points:
    """The distribution function: a share y of all values is at most x."""
    n = sample.num_values
    if n == 0:
        return _NOTHING
    body = np.linspace(0, 1, MAX_CURVE_POINTS)[1:]
    tail = 1 - np.geomspace(1 / n, 0.1, MAX_CURVE_POINTS // 4)
    shares = np.unique(np.clip(np.concatenate([[1 / n], body, tail]), 1 / n, 1.0))
    return Points(x=np.array(sample.quantiles(list(shares))), y=shares)


def spectrum(sample: Sample) -> Points:
    """Quantiles y at shares x that crowd towards 1, up to the largest value's plotting position, 1 - 1/2n."""
    n = sample.num_values
    if n == 0:
        return _NOTHING
    shares = 1 - np.geomspace(1, 1 / (2 * n), MAX_CURVE_POINTS)
    return Points(x=shares, y=np.array(sample.quantiles(list(shares))))


def log_histogram(sample: Sample, num_bins: int) -> Histogram | None:
    """Counts over bins of equal ratio from the smallest positive value to the largest; None without one."""
    positive = sample.values > 0
    values = sample.values[positive] / sample.per_unit
    if len(values) == 0:
        return None
    # One value alone still gets bins around it.
    low, high = float(values.min()) * 0.999, float(values.max()) * 1.001
    edges = np.geomspace(low, high, num_bins + 1)
    weights = None if sample.weights is None else sample.weights[positive]
    counts, _ = np.histogram(values, edges, weights=weights)
    return Histogram(edges_s=edges, counts=counts.astype(int).tolist())


def in_flight(columns: Columns) -> Points:
    """Requests in flight from each instant on, exactly."""
    steps = in_flight_steps(columns)
    return Points(x=steps.time_ns / 1e9, y=steps.level.astype(np.float64))


def thin_steps(points: Points, num_bins: int = MAX_CURVE_POINTS) -> Points:
    """Keep of a step function the first, the lowest, the highest and the last level of each bin of time."""
    if len(points) <= 4 * num_bins:
        return points
    edges = np.linspace(points.x[0], points.x[-1], num_bins, endpoint=False)
    starts = np.unique(np.searchsorted(points.x, edges))
    ends = np.append(starts[1:], len(points)) - 1
    kept = [starts, ends]
    for start, end in zip(starts, ends, strict=True):
        levels = points.y[start : end + 1]
        kept.append(np.array([start + levels.argmin(), start + levels.argmax()]))
    shown = np.unique(np.concatenate(kept))
    return Points(x=points.x[shown], y=points.y[shown])


def token_rate(rows: RequestRows, columns: Columns) -> Points:
    """Output tokens per second in equal bins of time, from the start of each bin on; ends with 0."""
    edges = _time_edges(columns)
    totals = np.zeros(len(edges) - 1)
    for block in iter_event_blocks(rows):
        tokens = _event_tokens(block, columns)
        totals += np.histogram(block.stamp_ns / 1e9, edges, weights=tokens)[0]
    if not totals.any():
        return _NOTHING
    return Points(x=edges, y=np.append(totals / np.diff(edges), 0.0))


def _event_tokens(block: EventBlock, columns: Columns) -> Floats:
    """Tokens of each event; one that does not say has its request's mean."""
    per_event = columns.output_tokens[block.row] / np.diff(block.offsets)[block.row - block.start]
    return np.where(block.tokens > 0, block.tokens.astype(np.float64), np.nan_to_num(per_event))


def gap_density(rows: RequestRows, columns: Columns) -> Density | None:
    """How long the gaps between token events were, over time; None without a gap."""
    ends: list[Floats] = []
    gaps: list[Floats] = []
    for block in iter_event_blocks(rows):
        found = block.gaps(*block.steps())
        ending, gap_ns = found.ends, found.ns
        ends.append(block.stamp_ns[ending] / 1e9)
        gaps.append(gap_ns / 1e9)
    end_s, gap_s = np.concatenate([*ends, []]), np.concatenate([*gaps, []])
    positive = gap_s > 0
    if not positive.any():
        return None
    end_s, gap_s = end_s[positive], gap_s[positive]
    gap_edges = np.geomspace(gap_s.min() * 0.999, gap_s.max() * 1.001, NUM_GAP_BINS + 1)
    counts, time_edges, _ = np.histogram2d(end_s, gap_s, [_time_edges(columns), gap_edges])
    return Density(time_edges_s=time_edges, gap_edges_s=gap_edges, counts=counts)


def ttft_over_schedule(columns: Columns) -> Points:
    """TTFT of each ok request by the instant it was scheduled for."""
    shown = columns.is_ok & ~np.isnan(columns.first_token_ns)
    scheduled = columns.scheduled_ns[shown]
    return Points(x=scheduled / 1e9, y=(columns.first_token_ns[shown] - scheduled) / 1e9)


def ttft_by_prompt(columns: Columns) -> Points:
    """TTFT of each ok request by the tokens of its prompt, as planned where the server did not say."""
    shown = columns.is_ok & ~np.isnan(columns.first_token_ns)
    said, planned = columns.prompt_tokens[shown], columns.prompt_tokens_planned[shown]
    ttft_s = (columns.first_token_ns[shown] - columns.scheduled_ns[shown]) / 1e9
    return Points(x=np.where(np.isnan(said), planned, said), y=ttft_s)


def failure_times(columns: Columns) -> Floats:
    """When each failed request was scheduled."""
    return np.asarray(columns.scheduled_ns[~columns.is_ok] / 1e9)


def request_spans(columns: Columns, max_requests: int) -> Spans:
    """Sent requests in order of arrival, around the slowest first token where not all can be told apart.

    Shown are at most max_requests, and of short requests in a long run those within MAX_SPANS_ACROSS of their
    typical durations: a bar has to be wide enough to be seen.
    """
    sent = np.flatnonzero(~np.isnan(columns.sent_ns))
    sent = sent[np.argsort(columns.scheduled_ns[sent], kind="stable")]
    if len(sent):
        scheduled = columns.scheduled_ns[sent]
        ttft = np.nan_to_num(columns.first_token_ns[sent] - scheduled, nan=-1.0)
        slowest = int(ttft.argmax())
        reach_ns = MAX_SPANS_ACROSS / 2 * float(np.median(columns.ended_ns[sent] - scheduled))
        near = np.flatnonzero(np.abs(scheduled - scheduled[slowest]) <= reach_ns)
        first = int(np.clip(slowest - max_requests // 2, near[0], max(near[-1] + 1 - max_requests, near[0])))
        sent = sent[first : min(first + max_requests, int(near[-1]) + 1)]
    end = columns.ended_ns[sent]
    first_token = columns.first_token_ns[sent]
    return Spans(
        start_s=columns.scheduled_ns[sent] / 1e9,
        first_token_s=np.where(np.isnan(first_token), end, first_token) / 1e9,
        end_s=end / 1e9,
        is_ok=columns.is_ok[sent],
    )


def slowest_requests(measured: Measured, num: int) -> list[SlowRequest]:
    """The counted requests with the longest TTFT, the longest first."""
    rows = np.flatnonzero(measured.counted)
    values = measured.values
    order = np.argsort(-np.nan_to_num(values["ttft_s"], nan=-1.0), kind="stable")[:num]
    return [
        SlowRequest(
            index=int(rows[i]),
            scheduled_s=float(measured.columns.scheduled_ns[rows[i]]) / 1e9,
            prompt_tokens=_whole(values["prompt_tokens_per_request"][i]),
            output_tokens=_whole(values["output_tokens_per_request"][i]),
            ttft_s=_known(values["ttft_s"][i]),
            max_gap_s=_known(values["max_gap_s"][i]),
            e2e_s=_known(values["e2e_s"][i]),
        )
        for i in order
    ]


def _known(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)


def _whole(value: np.float64) -> int | None:
    return None if np.isnan(value) else int(value)


def engine_levels(run: Run) -> EngineLevels | None:
    """Batch, queue and KV use of the reference engine over time; None where its steps are not known."""
    table = run.step_rows()
    if table is None or table.num_rows == 0:
        return None
    names = ("start_ns", "running", "waiting", "preempted", "kv_used", "kv_cached", "kv_free")
    named = {name: table.column(name).to_numpy().astype(np.float64) for name in names}
    time_s = named["start_ns"] / 1e9
    blocks = np.maximum(named["kv_used"] + named["kv_cached"] + named["kv_free"], 1)
    starts = np.unique(np.linspace(0, len(time_s), 4 * NUM_TIME_BINS, endpoint=False).astype(np.int64))
    return EngineLevels(
        time_s=time_s[starts],
        running=np.maximum.reduceat(named["running"], starts),
        waiting=np.maximum.reduceat(named["waiting"], starts),
        kv_used_fraction=np.maximum.reduceat(named["kv_used"] / blocks, starts),
        preempted=np.add.reduceat(named["preempted"], starts),
    )


def server_gauges(run: Run) -> dict[str, Points]:
    """What the target said of itself over time, by name; nothing where it was not watched."""
    table = run.server_rows()
    if table is None:
        return {}
    names = np.asarray(table.column("name").to_numpy())
    time_s = table.column("t_ns").to_numpy() / 1e9
    values = table.column("value").to_numpy().astype(np.float64)
    return {
        str(name): Points(x=time_s[names == name], y=values[names == name])
        for name in dict.fromkeys(names)
        if IS_GAUGE.fullmatch(str(name))
    }


def failure_groups(rows: RequestRows) -> list[FailureGroup]:
    """Failures by kind and words, the most frequent first; words differ by more than numbers."""
    import pyarrow.compute as pc

    table = rows.read(["outcome", "http_status", "error"])
    failed = table.filter(pc.not_equal(table.column("outcome"), str(Outcome.OK)))
    counted = failed.group_by(["outcome", "http_status", "error"]).aggregate([([], "count_all")])
    groups: dict[tuple[Any, ...], FailureGroup] = {}
    columns = (counted.column(name).to_pylist() for name in ("outcome", "http_status", "error", "count_all"))
    for outcome, http_status, error, count in zip(*columns, strict=True):
        words = None if error is None else _NUMBER.sub("N", error)
        key = (outcome, http_status, words)
        before = groups.get(key)
        groups[key] = FailureGroup(
            outcome=outcome,
            http_status=http_status,
            error=error if before is None else words,
            count=count + (before.count if before else 0),
        )
    return sorted(groups.values(), key=lambda group: (-group.count, group.outcome, group.error or ""))


def _time_edges(columns: Columns) -> Floats:
    """Bins from the start of the run to its last event, at least MIN_TIME_BIN_S wide."""
    known = [column[~np.isnan(column)] for column in (columns.scheduled_ns, columns.ended_ns)]
    end_s = max((float(column.max()) / 1e9 for column in known if len(column)), default=0.0)
    width = max(end_s / NUM_TIME_BINS, MIN_TIME_BIN_S)
    return np.asarray(np.arange(int(end_s / width) + 2) * width, np.float64)


_EMPTY: NDArray[np.float64] = np.zeros(0)
_NOTHING = Points(x=_EMPTY, y=_EMPTY)
