"""The token events of a run, in one pass: gaps, stalls, token throughput, and how sure the stamps are.

A hundred million events do not fit in memory several times over, so that they are read block by block and
only what the metrics need is kept: gaps as whole nanoseconds, in four bytes wherever none is above 4.3 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Bools, Columns, Floats, Window
from loadgen.measure.gaps import EXACT, Gaps, Nanoseconds, Ranges, offsets_of
from loadgen.store import RequestRows

T = TypeVar("T", bound=np.generic)
MAX_EVENT_TOKENS = 65_535
TOGETHER = 4  # events that came within this part of the silence before them, and
TOGETHER_NS = 1_000_000  # within this time, were written together
EVENT_COLUMNS = ("chunk_ns", "chunk_lower_ns", "chunk_tokens")
BY_REQUEST = (
    "first_lower_ns",
    "answer_lower_ns",
    "last_lower_ns",
    "last_held_ns",
    "later_tokens",
    "max_gap_low_s",
    "max_gap_s",
    "max_gap_high_s",
)


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

    def spread(self, per_row: NDArray[T]) -> NDArray[T]:
        """Repeat a value of each row for each of its events."""
        return np.repeat(per_row, np.diff(self.offsets))

    def steps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """From stamp to stamp within each row: the event that ends each step, and its nanoseconds."""
        is_first = np.zeros(len(self.stamp_ns), np.bool_)
        is_first[self.offsets[:-1][np.diff(self.offsets) > 0]] = True
        ends = np.flatnonzero(~is_first)
        return ends, self.stamp_ns[ends] - self.stamp_ns[ends - 1]

    @property
    def early_ns(self) -> NDArray[np.int64]:
        """By how much each event can have been earlier than its stamp."""
        return self.stamp_ns - self.lower_ns

    def ranges(self, ends: NDArray[np.int64], step_ns: NDArray[np.int64]) -> Ranges:
        """Where the time from the event before to each of `ends` can lie."""
        early_ns = self.early_ns
        if not early_ns.any():
            return EXACT
        at = np.flatnonzero((early_ns[ends] > 0) | (early_ns[ends - 1] > 0))
        kept, step_ns = ends[at], step_ns[at]
        return Ranges(at, np.maximum(step_ns - early_ns[kept], 0), step_ns + early_ns[kept - 1])

    def gaps(self, ends: NDArray[np.int64], step_ns: NDArray[np.int64]) -> BlockGaps:
        """Turn steps into gaps; the same arrays where each event has a read of its own.

        Each of the k events of a read has a k-th of the silence before it, as k tokens of one event have.
        Where a late client can have gathered them, that is a guess within the bounds of their stamps. Where
        all came within a millisecond and the last quarter of the silence (equal gaps would spread over half
        of it or more), the server or what is before it wrote them together. The first read of a row has no
        gap.
        """
        if (step_ns != 0).all():
            return BlockGaps(ends=ends, ns=step_ns, ranges=self.ranges(ends, step_ns), bundled=EXACT)
        is_read = np.ones(len(self.stamp_ns), np.bool_)
        is_read[ends[step_ns == 0]] = False
        silence_ns = np.zeros(len(self.stamp_ns), np.int64)  # before each read but the first of a row
        silence_ns[ends] = step_ns
        reads = np.flatnonzero(is_read)
        sizes = np.diff(reads, append=len(self.stamp_ns))
        early_ns = self.early_ns
        is_together = (sizes > 1) & (
            early_ns[reads] <= np.minimum(silence_ns[reads] // TOGETHER, TOGETHER_NS)
        )
        has_gap = np.repeat(silence_ns[reads] != 0, sizes)
        sizes, silence, early, before, together = (
            np.repeat(values, sizes)[has_gap]
            for values in (sizes, silence_ns[reads], early_ns[reads], early_ns[reads - 1], is_together)
        )
        ends = np.flatnonzero(has_gap)
        gap_ns = np.rint(silence / sizes).astype(np.int64)
        stamped = self.ranges(ends, self.stamp_ns[ends] - self.stamp_ns[ends - 1])
        low, high = stamped.around(gap_ns)
        # of the gaps in one silence the second largest is at most half of it, the third a third
        number = ends - np.repeat(reads, np.diff(reads, append=len(self.stamp_ns)))[has_gap] + 1
        high = np.minimum(high, (silence + before) // number)
        low[together] = ((silence - early) // sizes)[together]
        high[together] = ((silence + before) // sizes + 1)[together]
        at, bundled = np.flatnonzero(low != high), np.flatnonzero(together)
        return BlockGaps(
            ends=ends,
            ns=np.clip(gap_ns, low, high),
            ranges=Ranges(at, low[at], high[at]),
            bundled=Ranges(bundled, np.zeros(len(bundled), np.int64), silence[bundled]),
        )

    def of_rows(self, per_event: NDArray[Any], *, at_end: bool = False) -> Floats:
        """The value of each row's first (or last) event; NaN for a row without one."""
        values = np.full(self.num_rows, np.nan)
        filled = np.diff(self.offsets) > 0
        values[filled] = per_event[self.offsets[1:][filled] - 1 if at_end else self.offsets[:-1][filled]]
        return values

    def sum_rows(self, per_event: NDArray[Any]) -> NDArray[np.int64]:
        """The sum over each row's events; 0 for a row without one."""
        total = np.zeros(self.num_rows, np.int64)
        filled = np.diff(self.offsets) > 0
        if filled.any():
            total[filled] = np.add.reduceat(per_event, self.offsets[:-1][filled], dtype=np.int64)
        return total


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockGaps:
    """The gaps of a block; fields as of `gaps.Gaps`, ends: the event that ends each."""

    ends: NDArray[np.int64]
    ns: NDArray[np.int64]
    ranges: Ranges
    bundled: Ranges


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
class Events:
    """What one pass leaves of the chosen requests.

    steps: as gaps, but from stamp to stamp, 0 between events that shared a read: what tools see that know
    nothing of reads. The same object where no two events did.
    by_request: for each request, NaN where it has none: `first_lower_ns`, `answer_lower_ns`,
    `last_lower_ns`, the earliest that its first token, first token of the answer proper and last token can
    have come; `last_held_ns`, the same of a last token that may have been held back and written with others;
    `later_tokens`, tokens that came after the first read, where the stream told; `max_gap_low_s`,
    `max_gap_s` and `max_gap_high_s`, its longest silence (with two reads or more that held events).
    tokens_in_window: tokens of *all* requests whose event was stamped inside the window; an event of unknown
    tokens counts its request's output tokens over its number of events.
    num_events, num_alone: events; those whose stamp is exact (alone in, or last of, a read).
    uncertain_ns: by how much an event can have been earlier than its stamp, values above 0 only.
    """

    gaps: Gaps
    steps: Gaps
    by_request: dict[str, Floats]
    tokens_in_window: float
    num_events: int
    num_alone: int
    uncertain_ns: Nanoseconds


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The gaps of the chosen rows of a block; lengths: how many each of them has."""

    ns: Nanoseconds
    tokens: NDArray[np.uint16] | None
    lengths: NDArray[np.int64]
    ranges: Ranges
    bundled: Ranges

    @classmethod
    def of(
        cls, block: EventBlock, chosen: Bools, ends: NDArray[np.int64], ns: NDArray[np.int64], *ranges: Ranges
    ) -> _Part:
        lengths = np.diff(np.searchsorted(ends, block.offsets))
        if not chosen.all():
            kept = np.repeat(chosen, lengths)
            ranges = tuple(one.of(kept, len(ns)) for one in ranges)
            ends, ns, lengths = ends[kept], ns[kept], lengths[chosen]
        tokens = block.tokens[ends]
        # a number that is nearly always 1 is kept where it is not
        counts = None if (tokens == 1).all() else np.minimum(tokens, MAX_EVENT_TOKENS).astype(np.uint16)
        return cls(_compact(ns), counts, lengths, *ranges)


def read_events(rows: RequestRows, columns: Columns, chosen: Bools, window: Window) -> Events:
    """Make the pass. chosen: which rows to keep the events of."""
    steps: list[_Part] = []
    gaps: list[_Part] = []
    uncertain: list[Nanoseconds] = []
    by_request: list[dict[str, Floats]] = []
    tokens_in_window, num_events, num_alone = 0.0, 0, 0
    for block in iter_event_blocks(rows):
        chosen_here = chosen[block.start : block.start + block.num_rows]
        tokens_in_window += _sum_tokens(block, columns, window)
        early_ns = block.early_ns[block.spread(chosen_here)]
        num_events += len(early_ns)
        num_alone += int((early_ns == 0).sum())
        uncertain.append(_compact(early_ns[early_ns > 0]))
        ends, step_ns = block.steps()
        found = block.gaps(ends, step_ns)
        own = _Part.of(block, chosen_here, found.ends, found.ns, found.ranges, found.bundled)
        is_same = found.ns is step_ns
        step = (
            own
            if is_same
            else _Part.of(block, chosen_here, ends, step_ns, block.ranges(ends, step_ns), EXACT)
        )
        steps.append(step)
        gaps.append(own)
        by_request.append(
            {name: values[chosen_here] for name, values in _of_requests(block, columns).items()}
            | _longest(step)
        )
    is_same = all(a is b for a, b in zip(steps, gaps, strict=True))
    if is_same:
        gaps.clear()
    stamped = _gaps_of(steps)
    return Events(
        gaps=stamped if is_same else _gaps_of(gaps),
        steps=stamped,
        by_request={
            name: np.concatenate([np.zeros(0), *(part[name] for part in by_request)]) for name in BY_REQUEST
        },
        tokens_in_window=tokens_in_window,
        num_events=num_events,
        num_alone=num_alone,
        uncertain_ns=_join(uncertain),
    )


def _of_requests(block: EventBlock, columns: Columns) -> dict[str, Floats]:
    """What is known of the first and last event of each row."""
    lower_ns, stamp_ns = block.lower_ns, block.stamp_ns
    is_first_read = stamp_ns == block.spread(block.of_rows(stamp_ns))
    told = block.sum_rows(block.tokens == 0) == 0
    later_tokens = np.where(told, block.sum_rows(block.tokens * ~is_first_read), np.nan)
    answer = block.spread(columns.first_answer_ns[block.start : block.start + block.num_rows])
    row, first = np.unique(block.row[stamp_ns == answer], return_index=True)
    answer_lower_ns = np.full(block.num_rows, np.nan)
    answer_lower_ns[row - block.start] = lower_ns[stamp_ns == answer][first]
    last_ns = block.spread(block.of_rows(stamp_ns, at_end=True))
    before_ns = np.full(block.num_rows, np.nan)  # the read before the last that held events
    filled = np.diff(block.offsets) > 0
    if filled.any():
        earlier = np.where(stamp_ns < last_ns, stamp_ns, block.spread(block.of_rows(stamp_ns)))
        before_ns[filled] = np.maximum.reduceat(earlier, block.offsets[:-1][filled])
    last_lower_ns = block.of_rows(lower_ns, at_end=True)
    is_bundled = block.sum_rows(stamp_ns == last_ns) > 1
    return {
        "first_lower_ns": block.of_rows(lower_ns),
        "answer_lower_ns": answer_lower_ns,
        "last_lower_ns": last_lower_ns,
        "last_held_ns": np.where(is_bundled, before_ns, last_lower_ns),
        "later_tokens": later_tokens,
    }


def _longest(steps: _Part) -> dict[str, Floats]:
    """The longest silence of each request, and where it can lie."""
    low, high = steps.ranges.around(steps.ns.astype(np.int64))
    found = {
        name: _max_of_segments(ns, steps.lengths)
        for name, ns in (("max_gap_low_s", low), ("max_gap_s", steps.ns), ("max_gap_high_s", high))
    }
    return {name: np.where(np.isnan(found["max_gap_s"]), np.nan, values) for name, values in found.items()}


def _gaps_of(parts: list[_Part]) -> Gaps:
    tokens = None
    if any(part.tokens is not None for part in parts):
        tokens = np.concatenate(
            [np.ones(len(p.ns), np.uint16) if p.tokens is None else p.tokens for p in parts]
        )
    offsets = offsets_of(np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)]))
    ns = [part.ns for part in parts]
    num_each = [len(part.ns) for part in parts]
    ranges = Ranges.joined([part.ranges for part in parts], num_each)
    bundled = Ranges.joined([part.bundled for part in parts], num_each)
    parts.clear()
    return Gaps(ns=_join(ns), offsets=offsets, tokens=tokens, ranges=ranges, bundled=bundled)


def _sum_tokens(block: EventBlock, columns: Columns, window: Window) -> float:
    inside = (block.stamp_ns >= window.start_ns) & (block.stamp_ns < window.end_ns)
    known = float(block.tokens[inside].sum())
    is_unknown = inside & (block.tokens == 0)
    if not is_unknown.any():
        return known
    row = block.row[is_unknown]
    per_event = columns.output_tokens[row] / np.diff(block.offsets)[row - block.start]
    return known + float(np.nansum(per_event))


def _max_of_segments(ns: Nanoseconds, lengths: NDArray[np.int64]) -> Floats:
    """Seconds of the largest value of each of the consecutive segments; NaN where there is none above 0."""
    result = np.full(len(lengths), np.nan)
    filled = lengths > 0
    if len(ns):
        starts = np.cumsum(lengths) - lengths
        result[filled] = np.maximum.reduceat(ns, starts[filled]) / 1e9
    result[result <= 0] = np.nan
    return result


def _compact(ns: NDArray[np.int64]) -> Nanoseconds:
    """In four bytes each, where they fit."""
    fits = len(ns) == 0 or (ns.min() >= 0 and ns.max() <= np.iinfo(np.uint32).max)
    return ns.astype(np.uint32) if fits else ns


def _join(parts: list[Any]) -> Any:
    """Join, giving the parts back one by one: together with the whole they would need twice the memory."""
    whole = np.empty(sum(len(part) for part in parts), np.result_type(np.uint32, *parts))
    position = len(whole)
    while parts:
        part = parts.pop()
        position -= len(part)
        whole[position : position + len(part)] = part
    return whole
