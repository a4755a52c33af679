"""Which request is due when, and which load process sends it: decisions only, no clock, no socket.

An open loop follows the plan's absolute instants: nothing is thinned, moved or re-anchored, and what is
late goes out late. A cap only delays. A closed loop has no instants of its own: a request is due when a slot
is free. In both, a turn that waits for the answer before it is due its think time after that answer has
ended, however it ended: the load stays as planned when the server fails.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workloads.plan import Plan

NEVER_NS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share(Plan):
    """The rows of the plan that one load process sends; index: which rows those are."""

    worker: int
    index: NDArray[np.int64]

    def position_of(self, index: int) -> int:
        """Where a request of the plan stands in this share."""
        return int(np.searchsorted(self.index, index))


def split_plan(plan: Plan, num_workers: int) -> list[Share]:
    """Deal the plan out: sessions whole, by their number, other requests by their index.

    The union of the shares is the plan, whatever their number; one may be empty where sessions are few.
    """
    owner = np.where(plan.session >= 0, plan.session, np.arange(len(plan))) % num_workers
    rows = [np.flatnonzero(owner == worker) for worker in range(num_workers)]
    return [Share(worker=worker, index=index, **plan.part(index)) for worker, index in enumerate(rows)]


def split_limit(limit: int | None, num_workers: int) -> list[int | None]:
    """Deal a limit on requests in flight out; at least one each, so use no more workers than the limit."""
    if limit is None:
        return [None] * num_workers
    assert limit >= num_workers
    return [limit // num_workers + (worker < limit % num_workers) for worker in range(num_workers)]


@dataclass(frozen=True, slots=True)
class Due:
    """A request to be sent: its position in the share and the instant that its latency runs from."""

    position: int
    scheduled_ns: int


class WaitingTurns:
    """The turns of a share that wait for the one before them, and those of them that are due by now."""

    def __init__(self, share: Share, start_ns: int) -> None:
        self._think_ns = share.think_ns
        self._arrival_ns = share.arrival_ns
        self._start_ns = start_ns
        self.first = np.flatnonzero(share.think_ns < 0).tolist()  # positions that wait for no answer
        rows = np.lexsort((share.turn, share.session))
        followers = np.flatnonzero(share.think_ns[rows] >= 0)
        assert np.array_equal(share.session[rows[followers]], share.session[rows[followers - 1]])
        # position: the turn that waits for its answer
        self._after = dict(zip(rows[followers - 1].tolist(), rows[followers].tolist(), strict=True))
        self._released: list[tuple[int, int]] = []  # due, position

    def release(self, position: int, ended_ns: int) -> int | None:
        """Let the turn after `position` fall due, if one waits for it; return its position."""
        after: int | None = self._after.pop(position, None)
        if after is not None:
            earliest_ns = self._start_ns + int(self._arrival_ns[after])
            heapq.heappush(self._released, (max(ended_ns + int(self._think_ns[after]), earliest_ns), after))
        return after

    def next_ns(self) -> int:
        return self._released[0][0] if self._released else NEVER_NS

    def take(self) -> Due:
        scheduled_ns, position = heapq.heappop(self._released)
        return Due(position, scheduled_ns)

    def rest(self) -> list[Due]:
        """Those never sent; the ones whose turn had not come, at the earliest instant possible."""
        left = [Due(position, scheduled_ns) for scheduled_ns, position in sorted(self._released)]
        waiting = sorted(self._after.values())
        self._released, self._after = [], {}
        return left + [Due(at, self._start_ns + int(self._arrival_ns[at])) for at in waiting]


class Schedule(Protocol):
    """Hands out every request of a share once."""

    def next_ns(self) -> int:
        """When `take` will next give something, as far as is known now; NEVER_NS for not before an end."""

    def take(self, now_ns: int) -> Due | None:
        """The next request that is due by `now_ns`."""

    def on_end(self, position: int, ended_ns: int) -> int | None:
        """Learn that a request has ended; return the position of a turn that has its instant by that."""

    def rest(self) -> list[Due]:
        """Take everything that was not handed out: the run is over."""


class OpenSchedule:
    """The plan's instants. `limit` caps what is in flight: a request over it waits and is charged for it."""

    def __init__(self, share: Share, start_ns: int, limit: int | None = None) -> None:
        self._turns = WaitingTurns(share, start_ns)
        self._first = self._turns.first
        self._due_ns = (share.arrival_ns[self._first] + start_ns).tolist()
        self._limit = len(share) + 1 if limit is None else limit
        self._num_taken = 0
        self._num_in_flight = 0

    def next_ns(self) -> int:
        if self._num_in_flight >= self._limit:
            return NEVER_NS
        due_ns = self._due_ns[self._num_taken] if self._num_taken < len(self._due_ns) else NEVER_NS
        return min(due_ns, self._turns.next_ns())

    def take(self, now_ns: int) -> Due | None:
        next_ns = self.next_ns()
        if next_ns > now_ns:
            return None
        self._num_in_flight += 1
        if self._turns.next_ns() == next_ns:
            return self._turns.take()
        due = Due(self._first[self._num_taken], next_ns)
        self._num_taken += 1
        return due

    def on_end(self, position: int, ended_ns: int) -> int | None:
        self._num_in_flight -= 1
        return self._turns.release(position, ended_ns)

    def rest(self) -> list[Due]:
        left = list(map(Due, self._first[self._num_taken :], self._due_ns[self._num_taken :]))
        self._num_taken = len(self._first)
        return left + self._turns.rest()


class ClosedSchedule:
    """`concurrency` slots, free from `start_ns` on: a request is due at the instant its slot became free.

    A session keeps its slot until its last turn has ended, think times included.
    """

    def __init__(self, share: Share, start_ns: int, concurrency: int) -> None:
        self._turns = WaitingTurns(share, start_ns)
        self._first = self._turns.first
        self._num_taken = 0
        self._free_ns = [start_ns] * concurrency
        self._last_ns = start_ns

    def next_ns(self) -> int:
        has_slot = self._free_ns and self._num_taken < len(self._first)
        return min(self._free_ns[0] if has_slot else NEVER_NS, self._turns.next_ns())

    def take(self, now_ns: int) -> Due | None:
        next_ns = self.next_ns()
        if next_ns > now_ns:
            return None
        if self._turns.next_ns() == next_ns:
            return self._turns.take()
        self._last_ns = heapq.heappop(self._free_ns)
        due = Due(self._first[self._num_taken], self._last_ns)
        self._num_taken += 1
        return due

    def on_end(self, position: int, ended_ns: int) -> int | None:
        after = self._turns.release(position, ended_ns)
        if after is None:
            heapq.heappush(self._free_ns, ended_ns)
        return after

    def rest(self) -> list[Due]:
        left = [Due(position, self._last_ns) for position in self._first[self._num_taken :]]
        self._num_taken = len(self._first)
        return left + self._turns.rest()
