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
from loadgen.store import RequestRows

T = TypeVar("T", bound=np.generic)
Nanoseconds = NDArray[np.uint32] | NDArray[np.int64]
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

    def spread(self, per_row: NDArray[T]) -> NDArray[T]:
        """Repeat a value of each row for each of its events."""
        return np.repeat(per_row, np.diff(self.offsets))

    def steps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """From stamp to stamp within each row: the event that ends each step, and its nanoseconds."""
        is_first = np.zeros(len(self.stamp_ns), np.bool_)
        is_first[self.offsets[:-1][np.diff(self.offsets) > 0]] = True
        ends = np.flatnonzero(~is_first)
        return ends, self.stamp_ns[ends] - self.stamp_ns[ends - 1]

    def gaps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The gaps between the events of a row: the event that ends each, and its nanoseconds."""
        return self.share(*self.steps())

    def share(
        self, ends: NDArray[np.int64], step_ns: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Turn steps into gaps; the same arrays where each event has a stamp of its own.

        Events that one read brought share its stamp: when they came in between is not known, so that each of
        k has a k-th of the silence before the read, and none a gap of zero. Events that share the *first*
        read of a row have no gap.
        """
        if (step_ns != 0).all():
            return ends, step_ns
        is_read = np.ones(len(self.stamp_ns), np.bool_)
        is_read[ends[step_ns == 0]] = False
        silence_ns = np.zeros(len(self.stamp_ns), np.int64)  # before each read but the first of a row
        silence_ns[ends] = step_ns
        reads = np.flatnonzero(is_read)
        sizes = np.diff(reads, append=len(self.stamp_ns))
        share_ns = np.repeat(np.rint(silence_ns[reads] / sizes).astype(np.int64), sizes)
        ends = np.flatnonzero(np.repeat(silence_ns[reads] != 0, sizes))
        return ends, share_ns[ends]


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
    """The gaps of some requests; request i of them owns ns[offsets[i]:offsets[i + 1]].

    ns: every gap between two events of a request, by request in order of index, then time.
    tokens: of the event that ended each gap, 0 where unknown; None where all events held one.
    """

    ns: Nanoseconds
    offsets: NDArray[np.int64]
    tokens: NDArray[np.uint16] | None

    def of(self, chosen: Bools) -> Gaps:
        """The gaps of the chosen requests; without a copy where they follow each other."""
        at = np.flatnonzero(chosen)
        lengths = np.diff(self.offsets)[at]
        kept: slice | Bools
        if len(at) == 0 or at[-1] - at[0] + 1 == len(at):
            first, last = (int(at[0]), int(at[-1]) + 1) if len(at) else (0, 0)
            kept = slice(int(self.offsets[first]), int(self.offsets[last]))
        else:
            kept = np.repeat(chosen, np.diff(self.offsets))
        return Gaps(
            ns=self.ns[kept],
            offsets=_offsets(lengths),
            tokens=None if self.tokens is None else self.tokens[kept],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """What one pass leaves of the chosen requests.

    steps: as gaps, but from stamp to stamp, 0 between events that shared a read: what tools see that know
    nothing of reads. The same object where no two events did.
    max_silence_s: the longest silence of each request, NaN with fewer than two reads that held events.
    tokens_in_window: tokens of *all* requests whose event was stamped inside the window; an event of unknown
    tokens counts its request's output tokens over its number of events.
    num_events, num_alone: events; those whose stamp is exact (alone in, or last of, a read).
    uncertain_ns: by how much an event can have been earlier than its stamp, values above 0 only.
    """

    gaps: Gaps
    steps: Gaps
    max_silence_s: Floats
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

    @classmethod
    def of(cls, block: EventBlock, ends: NDArray[np.int64], ns: NDArray[np.int64], chosen: Bools) -> _Part:
        lengths = np.diff(np.searchsorted(ends, block.offsets))
        if not chosen.all():
            kept = np.repeat(chosen, lengths)
            ends, ns, lengths = ends[kept], ns[kept], lengths[chosen]
        tokens = block.tokens[ends]
        # a number that is nearly always 1 is kept where it is not
        counts = None if (tokens == 1).all() else np.minimum(tokens, MAX_EVENT_TOKENS).astype(np.uint16)
        return cls(_compact(ns), counts, lengths)


def read_events(rows: RequestRows, columns: Columns, chosen: Bools, window: Window) -> Events:
    """Make the pass. chosen: which rows to keep the events of."""
    # a user-space stamp is late by what is known of the read's delay; a kernel stamp is not
    lag_ns = np.where(columns.is_kernel_stamped, 0.0, np.nan_to_num(columns.recv_lag_ns)).astype(np.int64)
    steps: list[_Part] = []
    gaps: list[_Part] = []
    uncertain: list[Nanoseconds] = []
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
        uncertain.append(_compact(early_ns[early_ns > 0]))
        ends, step_ns = block.steps()
        part = _Part.of(block, ends, step_ns, chosen[rows_here])
        steps.append(part)
        silences.append(_max_of_segments(part.ns, part.lengths))
        shared_ends, shared_ns = block.share(ends, step_ns)
        is_same = shared_ns is step_ns
        gaps.append(part if is_same else _Part.of(block, shared_ends, shared_ns, chosen[rows_here]))
    is_same = all(a is b for a, b in zip(steps, gaps, strict=True))
    if is_same:
        gaps.clear()
    stamped = _gaps_of(steps)
    return Events(
        gaps=stamped if is_same else _gaps_of(gaps),
        steps=stamped,
        max_silence_s=np.concatenate([np.zeros(0), *silences]),
        tokens_in_window=tokens_in_window,
        num_events=num_events,
        num_alone=num_alone,
        uncertain_ns=_join(uncertain),
    )


def _gaps_of(parts: list[_Part]) -> Gaps:
    tokens = None
    if any(part.tokens is not None for part in parts):
        tokens = np.concatenate(
            [np.ones(len(p.ns), np.uint16) if p.tokens is None else p.tokens for p in parts]
        )
    offsets = _offsets(np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)]))
    ns = [part.ns for part in parts]
    parts.clear()
    return Gaps(ns=_join(ns), offsets=offsets, tokens=tokens)


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


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


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
