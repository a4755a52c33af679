"""What a run's figures would be, had its client been on time and known each arrival exactly.

Over the requests that the summary counts, by its definitions and its quantile rule, but from the golden
server's log: an event came when it was *written* (of k events in one write each has a k-th of the silence
before it, as k tokens of one event have), which the clock encloses between two readings, so that each
figure is true within an interval. Time runs from the arrival of the request, and what it took on the way from
the client's first act, up to MAX_WAY_NS: more than that a handshake and a send do not take on loopback, so
that the rest is the client's own delay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loadgen.errors import BenchError
from loadgen.golden.process import GoldenLog, Int64
from loadgen.stats.quantile import quantiles, weighted_quantiles

MAX_WAY_NS = 250_000
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
METRICS = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
TRUTH_COLUMNS = (
    "index",
    "outcome",
    "scheduled_ns",
    "sent_ns",
    "output_tokens_planned",
    "chunk_ns",
    "chunk_tokens",
)

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOfRows:
    """The rows of a run (TRUTH_COLUMNS), and what says which of them count. start_ns, end_ns: its window.

    epoch_ns: the run's start on CLOCK_MONOTONIC. tokens_per_event: as the server was told.
    """

    rows: pa.Table
    run_id: str
    epoch_ns: int
    start_ns: int
    end_ns: int
    tokens_per_event: int = 1

    def counted(self) -> pa.Table:
        """The rows that the summary's figures are over."""
        scheduled = self.rows["scheduled_ns"].to_numpy()
        is_inside = (scheduled >= self.start_ns) & (scheduled < self.end_ns)
        return self.rows.filter(pc.and_(pc.equal(self.rows["outcome"], "ok"), pa.array(is_inside)))


def compute_truth(run: RunOfRows, log: GoldenLog) -> dict[str, Interval]:
    """The true percentiles in seconds, such as `ttft_s.p50`; those that do not exist are left out.

    Raises BenchError where a counted request is not one that the server answered whole.
    """
    rows = run.counted()
    if rows.num_rows == 0:
        return {}
    log_rows = np.array([log.row_of.get(f"{run.run_id}-{i}", -1) for i in rows["index"].to_pylist()])
    num_events = rows["chunk_ns"].combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    if (log_rows < 0).any() or (np.diff(log.offsets)[log_rows] != num_events).any():
        raise BenchError(f"{run.run_id}: a counted answer is not one that the server wrote")
    starts = np.cumsum(num_events) - num_events
    lasts = starts + num_events - 1
    events = np.repeat(log.offsets[log_rows] - starts, num_events) + np.arange(num_events.sum())
    writes = log.before_ns[events], log.after_ns[events]
    way_ns = log.arrived_ns[log_rows] - (rows["sent_ns"].to_numpy() + run.epoch_ns)
    from_ns = log.arrived_ns[log_rows] - np.clip(way_ns, 0, MAX_WAY_NS)

    event_tokens = rows["chunk_tokens"].combine_chunks().flatten()
    is_known = event_tokens.is_valid().to_numpy(zero_copy_only=False)
    tokens = np.full(len(events), run.tokens_per_event)
    planned = rows["output_tokens_planned"].to_numpy()
    tokens[lasts] = planned - run.tokens_per_event * (num_events - 1)

    is_in_first = writes[0] == np.repeat(writes[0][starts], num_events)
    is_new = np.append(True, np.diff(writes[0]) != 0)
    is_new[starts] = True
    first = np.flatnonzero(is_new)  # of each write
    size = np.diff(first, append=len(events))
    ends = np.flatnonzero(~is_in_first)
    first, size = (np.repeat(values, size)[ends] for values in (first, size))
    gaps = tuple(side / size for side in _between(writes, first - 1, first))
    is_gap = is_known[ends]
    first_tokens = np.add.reduceat(np.where(is_in_first & is_known, tokens, 0), starts)
    later = planned - np.maximum(first_tokens, 1)
    in_several = writes[0][lasts] > writes[0][starts]
    span = _between(writes, starts, lasts)
    samples = {
        "ttft_s": tuple(side[starts] - from_ns for side in writes),
        "e2e_s": tuple(side[lasts] - from_ns for side in writes),
        "tpot_s": tuple((side / np.maximum(later, 1))[in_several & (later > 0)] for side in span),
        "itl_s": tuple((side / tokens[ends])[is_gap] for side in gaps),
    }
    weights = {"itl_s": tokens[ends][is_gap].astype(np.int64)}
    return {
        f"{metric}.{name}": (low, high)
        for metric, (lows, highs) in samples.items()
        if len(lows)
        for name, low, high in zip(
            PERCENTILES,
            _percentiles(lows, weights.get(metric)),
            _percentiles(highs, weights.get(metric)),
            strict=True,
        )
    }


def _between(writes: tuple[Int64, Int64], first: Int64, last: Int64) -> tuple[Int64, Int64]:
    """The least and the most that can lie between two writes."""
    before, after = writes
    return np.maximum(before[last] - after[first], 0), after[last] - before[first]


def _percentiles(values_ns: NDArray[Any], weights: Int64 | None) -> list[float]:
    values_s, shares = values_ns / 1e9, list(PERCENTILES.values())
    if weights is None:
        return quantiles(values_s, shares)
    return weighted_quantiles(values_s, weights, shares)
