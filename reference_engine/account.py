"""The buckets of a request's time, and an account of what went into them.

Ticks are whole: picoseconds in virtual time, nanoseconds on a live engine. Work is measured by a function of
the load, in ticks (a cost model) or as a vector of features whose prices are fitted later: both add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reference_engine.step import Constraint, Load

WAITS = ("align", "slot", "budget", "memory", "order", "policy", "gate")
TIMES = (*(f"wait_{name}" for name in WAITS), "preempted", "stall_prefill", "stall_decode", "host")
WORKS = ("own", "batch", "interference", "recompute", "swap")
BUCKETS = (*TIMES, *WORKS, "residual")

ALIGN, MEMORY, ORDER = WAITS.index("align"), WAITS.index("memory"), WAITS.index("order")
PREEMPTED, STALL_PREFILL, STALL_DECODE, HOST = range(len(WAITS), len(TIMES))
OWN, BATCH, INTERFERENCE, RECOMPUTE, SWAP = range(len(WORKS))
LABELS = {constraint: WAITS.index(constraint.value) for constraint in Constraint}

Amount = Any  # int ticks, or an int64 vector of features: anything that adds and subtracts
Measure = Callable[[Load], Amount]
Price = Callable[[NDArray[Any]], NDArray[np.int64]]


class Spent(NamedTuple):
    """What a request's time went to: ticks by TIMES, amounts by WORKS, ticks of the steps it was part of."""

    times: tuple[int, ...]
    works: tuple[Amount, ...]
    busy: int


@dataclass(slots=True)
class Totals:
    """Running sums over the steps in which every decoding resident took part, and over gaps and stalls."""

    steps: int = 0
    busy: int = 0
    decodes: Amount = 0
    computed: Amount = 0
    all: Amount = 0
    host: int = 0
    stall_prefill: int = 0
    stall_decode: int = 0

    def copy(self) -> Totals:
        return Totals(
            self.steps,
            self.busy,
            self.decodes,
            self.computed,
            self.all,
            self.host,
            self.stall_prefill,
            self.stall_decode,
        )


@dataclass(slots=True)
class Account:
    """One request's buckets, settled up to `mark`.

    need, clocks, roomy: what it waits for, and the clocks when its wait began. since: when its current wait
    after a preemption began. context: tokens computed at `mark`. stamps: when its tokens came out.
    """

    arrived: int
    need: int
    clocks: tuple[int, ...]
    roomy: int
    times: list[int]
    works: list[Amount]
    mark: Totals
    busy: int = 0
    since: int | None = None
    context: int = 0
    is_resident: bool = False
    first: Spent | None = None
    stamps: list[int] = field(default_factory=list)

    def spent(self) -> Spent:
        return Spent(tuple(self.times), tuple(self.works), self.busy)


class RoomClock:
    """Ticks for which at least so many blocks had room (a Fenwick tree over the room)."""

    __slots__ = ("_has_ticks", "_tree")

    def __init__(self, num_blocks: int) -> None:
        self._tree = [0] * (num_blocks + 2)
        self._has_ticks = False

    def add(self, room: int, ticks: int) -> None:
        self._has_ticks = True
        i = len(self._tree) - 1 - min(max(room, 0), len(self._tree) - 2)
        while i < len(self._tree):
            self._tree[i] += ticks
            i += i & -i

    def at_least(self, need: int) -> int:
        i, total = len(self._tree) - 1 - need, 0
        if not self._has_ticks:
            return 0
        while i > 0:
            total += self._tree[i]
            i -= i & -i
        return total


def split_ns(spents: list[Spent], price: Price, ticks_per_ns: int) -> NDArray[np.int64]:
    """Return nanoseconds by BUCKETS, a row each; a row sums to its whole, rounded once.

    price: turns the works of all, an array [requests, WORKS] of amounts, into ticks.
    """
    if not spents:
        return np.zeros((0, len(BUCKETS)), np.int64)
    times = np.array([spent.times for spent in spents], np.int64)
    works = price(np.array([spent.works for spent in spents]))
    busy = np.array([spent.busy for spent in spents], np.int64)
    ticks = np.column_stack([times, works, busy - works.sum(axis=1)])
    ends = (np.cumsum(ticks, axis=1) + ticks_per_ns // 2) // ticks_per_ns
    return np.diff(ends, axis=1, prepend=0)
