"""Gaps between the token events of requests, and where those can lie whose stamps are not exact.

Plain columns; which events make a gap, and how far a stamp can be off, is decided in `events`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Bools

Nanoseconds = NDArray[np.uint32] | NDArray[np.int64]
NONE: NDArray[np.int64] = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Where some of many values can lie: value at[i] in [low[i], high[i]]; the others are what they are."""

    at: NDArray[np.int64]
    low: NDArray[Any]
    high: NDArray[Any]

    def of(self, kept: NDArray[np.bool_] | slice, num_values: int) -> Ranges:
        """The ranges of the kept values alone."""
        if isinstance(kept, slice):
            first, last = np.searchsorted(self.at, [kept.start, kept.stop])
            return Ranges(self.at[first:last] - kept.start, self.low[first:last], self.high[first:last])
        place = np.cumsum(kept) - 1
        assert len(place) == num_values
        is_kept = kept[self.at]
        return Ranges(place[self.at[is_kept]], self.low[is_kept], self.high[is_kept])

    def around(self, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The lowest and the highest of all values; `values` where they are exact."""
        low, high = values.copy(), values.copy()
        low[self.at], high[self.at] = self.low, self.high
        return low, high

    @classmethod
    def joined(cls, parts: Sequence[Ranges], lengths: Sequence[int]) -> Ranges:
        """Ranges of values that follow each other; lengths: how many values each part is about."""
        starts = np.cumsum([0, *lengths])
        return cls(
            np.concatenate([NONE, *(p.at + start for p, start in zip(parts, starts, strict=False))]),
            np.concatenate([NONE, *(part.low for part in parts)]),
            np.concatenate([NONE, *(part.high for part in parts)]),
        )


EXACT = Ranges(NONE, NONE, NONE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """The gaps of some requests; request i of them owns ns[offsets[i]:offsets[i + 1]].

    ns: every gap between two events of a request, by request in order of index, then time.
    tokens: of the event that ended each gap, 0 where unknown; None where all events held one.
    ranges: where a gap can lie by the bounds of its stamps. bundled: where a gap between *tokens* can lie
    that the server wrote together, from nothing to the silence before them all.
    """

    ns: Nanoseconds
    offsets: NDArray[np.int64]
    tokens: NDArray[np.uint16] | None
    ranges: Ranges = EXACT
    bundled: Ranges = EXACT

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
            offsets=offsets_of(lengths),
            tokens=None if self.tokens is None else self.tokens[kept],
            ranges=self.ranges.of(kept, len(self.ns)),
            bundled=self.bundled.of(kept, len(self.ns)),
        )


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of consecutive segments begins, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
