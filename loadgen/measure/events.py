"""The token events of a run, in one pass: gaps, stalls, token throughput, and how sure the stamps are.

A hundred million events do not fit in memory several times over, so that they are read block by block and
only what the metrics need is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Bools, Columns, Floats, Window
from loadgen.store import RequestRows

T = TypeVar("T", bound=np.generic)
MAX_EVENT_TOKENS = 65_535
EVENT_COLUMNS = ("chunk_ns", "chunk_lower_ns", "chunk_tokens")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventBlock:
    """Events of consecutive rows from `start` on; row i of them owns stamp_ns[offsets[i]:offsets[i + 1]].

    tokens: tokens in each event, 0 where unknown.
    """

    start: int
    offsets: NDArray[np.int64]
    stamp_ns: NDArray[np.int64]
    lower_ns: NDArray[np.int64]
    tokens: NDArray[np.int32]

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def row(self) -> NDArray[np.int64]:
        """Which row of the run each event belongs to."""
        return np.repeat(np.arange(self.start, self.start + self.num_rows), np.diff(self.offsets))

    @property
    def first_events(self) -> NDArray[np.int64]:
        """Where the events of each request begin; requests without events have none."""
        return self.offsets[:-1][np.diff(self.offsets) > 0]

    def spread(self, per_row: NDArray[T]) -> NDArray[T]:
        """Repeat a value of each row for each of its events."""
        return np.repeat(per_row, np.diff(self.offsets))

    def gaps(self) -> tuple[NDArray[np.int64], Floats, Floats]:
        """The gaps between the events of a row: event that ends each, seconds, seconds of silence before it.

        Events that one read brought share its stamp: when they came in between is not known, so that each of
        k has a k-th of the silence before the read, and none a gap of zero. Events that share the *first*
        read of a row have no gap.
        """
        stamp_ns = self.stamp_ns
        is_first = np.zeros(len(stamp_ns), np.bool_)
        is_first[self.first_events] = True
        step_ns = np.diff(stamp_ns, prepend=0)
        if not ((step_ns == 0) & ~is_first).any():
            ends = np.flatnonzero(~is_first)
            gap_s = step_ns[ends] / 1e9
            return ends, gap_s, gap_s
        starts = np.flatnonzero(is_first | (step_ns != 0))
        sizes = np.diff(starts, append=len(stamp_ns))
        silence_s = np.diff(stamp_ns[starts], prepend=0) / 1e9
        silence_s[is_first[starts]] = np.nan
        silence_s, share_s = np.repeat(silence_s, sizes), np.repeat(silence_s / sizes, sizes)
        ends = np.flatnonzero(~np.isnan(silence_s))
        return ends, share_s[ends], silence_s[ends]


def iter_event_blocks(rows: RequestRows) -> Iterator[EventBlock]:
    """The events of every row, in order of index."""
    start = 0
    for batch in rows.iter_batches(EVENT_COLUMNS):
        stamps, lower, tokens = (batch.column(name) for name in EVENT_COLUMNS)
        offsets = stamps.offsets.to_numpy().astype(np.int64)
        yield EventBlock(
            start=start,
            offsets=offsets - offsets[0],
            stamp_ns=stamps.flatten().to_numpy(),
            lower_ns=lower.flatten().to_numpy(),
            tokens=tokens.flatten().fill_null(0).to_numpy(),
        )
        start += batch.num_rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """The gaps of some requests; request i of them owns seconds[offsets[i]:offsets[i + 1]].

    seconds: every gap between two events of a request, by request in order of index, then time.
    tokens: of the event that ended each gap, 0 where unknown; None where all events held one.
    max_silence_s: the longest silence of each request, NaN with fewer than two reads that held events.
    """

    seconds: Floats
    offsets: NDArray[np.int64]
    tokens: NDArray[np.uint16] | None
    max_silence_s: Floats

    def of(self, chosen: Bools) -> Gaps:
        """The gaps of the chosen requests; without a copy where they follow each other."""
        at = np.flatnonzero(chosen)
        lengths = np.diff(self.offsets)[at]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        kept: slice | Bools
        if len(at) == 0 or at[-1] - at[0] + 1 == len(at):
            first, last = (int(at[0]), int(at[-1]) + 1) if len(at) else (0, 0)
            kept = slice(int(self.offsets[first]), int(self.offsets[last]))
        else:
            kept = np.repeat(chosen, np.diff(self.offsets))
        return Gaps(
            seconds=self.seconds[kept],
            offsets=offsets,
            tokens=None if self.tokens is None else self.tokens[kept],
            max_silence_s=self.max_silence_s[at],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """What one pass leaves of the chosen requests.

    tokens_in_window: tokens of *all* requests whose event was stamped inside the window; an event of unknown
    tokens counts its request's output tokens over its number of events.
    num_events, num_alone: events; those whose stamp is exact (alone in, or last of, a read).
    uncertain_s: by how much an event can have been earlier than its stamp, values above 0 only.
    """

    gaps: Gaps
    tokens_in_window: float
    num_events: int
    num_alone: int
    uncertain_s: Floats


def read_events(rows: RequestRows, columns: Columns, chosen: Bools, window: Window) -> Events:
    """Make the pass. chosen: which rows to keep the events of."""
    # a user-space stamp is late by what is known of the read's delay; a kernel stamp is not
    lag_ns = np.where(columns.is_kernel_stamped, 0.0, np.nan_to_num(columns.recv_lag_ns))
    seconds: list[Floats] = []
    tokens: list[NDArray[np.uint16]] = []
    lengths: list[NDArray[np.int64]] = []
    uncertain: list[Floats] = []
    silences: list[Floats] = []
    tokens_in_window, num_events, num_alone = 0.0, 0, 0
    for block in iter_event_blocks(rows):
        rows_here = slice(block.start, block.start + block.num_rows)
        tokens_in_window += _sum_tokens(block, columns, window)
        is_chosen = block.spread(chosen[rows_here])
        early_ns = (block.stamp_ns - block.lower_ns)[is_chosen]
        num_events += len(early_ns)
        num_alone += int((early_ns == 0).sum())
        if lag_ns[rows_here].any():
            early_ns = early_ns + block.spread(lag_ns[rows_here])[is_chosen]
        uncertain.append(early_ns[early_ns > 0] / 1e9)

        ends, gap_s, silence_s = block.gaps()
        if not is_chosen.all():
            kept = is_chosen[ends]
            ends, gap_s, silence_s = ends[kept], gap_s[kept], silence_s[kept]
        per_row = np.diff(np.searchsorted(ends, block.offsets))
        per_chosen = per_row[chosen[rows_here]]
        seconds.append(gap_s)
        # four bytes for a number that is nearly always 1 would be half of the gaps' memory
        tokens.append(np.minimum(block.tokens[ends], MAX_EVENT_TOKENS).astype(np.uint16))
        lengths.append(per_chosen)
        silences.append(_max_of_segments(silence_s, per_chosen))
    per_request = np.concatenate([np.zeros(1, np.int64), *lengths])
    gaps = Gaps(
        seconds=_concatenate(seconds),
        offsets=np.cumsum(per_request),
        tokens=None if all(bool((part == 1).all()) for part in tokens) else np.concatenate(tokens),
        max_silence_s=_concatenate(silences),
    )
    return Events(
        gaps=gaps,
        tokens_in_window=tokens_in_window,
        num_events=num_events,
        num_alone=num_alone,
        uncertain_s=_concatenate(uncertain),
    )


def _sum_tokens(block: EventBlock, columns: Columns, window: Window) -> float:
    inside = (block.stamp_ns >= window.start_ns) & (block.stamp_ns < window.end_ns)
    known = float(block.tokens[inside].sum())
    is_unknown = inside & (block.tokens == 0)
    if not is_unknown.any():
        return known
    row = block.row[is_unknown]
    per_event = columns.output_tokens[row] / np.diff(block.offsets)[row - block.start]
    return known + float(np.nansum(per_event))


def _max_of_segments(values: Floats, lengths: NDArray[np.int64]) -> Floats:
    """The largest value of each of the consecutive segments; NaN for an empty one."""
    result = np.full(len(lengths), np.nan)
    filled = lengths > 0
    if len(values):
        starts = np.cumsum(lengths) - lengths
        result[filled] = np.maximum.reduceat(values, starts[filled])
    return result


def _concatenate(parts: list[Floats]) -> Floats:
    """Join, giving the parts back one by one: together with the whole they would need twice the memory."""
    whole = np.empty(sum(len(part) for part in parts), np.float64)
    position = len(whole)
    while parts:
        part = parts.pop()
        position -= len(part)
        whole[position : position + len(part)] = part
    return whole
