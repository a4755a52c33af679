"""Which request is due when, and which load process sends it: decisions only, no clock, no socket.

An open loop follows the plan's absolute instants: nothing is thinned, moved or re-anchored, and what is
late goes out late. A cap only delays. A closed loop has no instants of its own: a request is due when one
before it ends. A request that another one releases (a later turn of a session) is the same shape: due from
an instant on.
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
class Share:
    """The rows of the plan that one load process sends, in order of arrival; columns as in Plan."""

    worker: int
    stride: int
    index: NDArray[np.int64]
    arrival_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    session: NDArray[np.int64]
    turn: NDArray[np.int64]
    class_id: NDArray[np.int32]
    classes: tuple[str, ...]
    prefix_blocks: NDArray[np.int64]
    prefix_offsets: NDArray[np.int64]
    block_tokens: int

    def __len__(self) -> int:
        return len(self.index)

    def blocks_of(self, position: int) -> NDArray[np.int64]:
        """The ids of the blocks that the prompt begins with."""
        return self.prefix_blocks[self.prefix_offsets[position] : self.prefix_offsets[position + 1]]

    def position_of(self, index: int) -> int:
        """Where a request of the plan stands in this share."""
        return (index - self.worker) // self.stride


def split_plan(plan: Plan, num_workers: int) -> list[Share]:
    """Deal the plan out, round robin by index: the union of the shares is the plan, whatever their number."""
    return [_share(plan, worker, num_workers) for worker in range(num_workers)]


def _share(plan: Plan, worker: int, stride: int) -> Share:
    index = np.arange(worker, len(plan), stride, dtype=np.int64)
    prefix_blocks, prefix_offsets = plan.blocks_of(index)
    return Share(
        worker=worker,
        stride=stride,
        index=index,
        arrival_ns=plan.arrival_ns[index],
        prompt_tokens=plan.prompt_tokens[index],
        output_tokens=plan.output_tokens[index],
        session=plan.session[index],
        turn=plan.turn[index],
        class_id=plan.class_id[index],
        classes=plan.classes,
        prefix_blocks=prefix_blocks,
        prefix_offsets=prefix_offsets,
        block_tokens=plan.block_tokens,
    )


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


class Schedule(Protocol):
    """Hands out every request of a share once."""

    def next_ns(self) -> int:
        """When `take` will next give something, as far as is known now; NEVER_NS for not before an end."""

    def take(self, now_ns: int) -> Due | None:
        """The next request that is due by `now_ns`."""

    def on_end(self, ended_ns: int) -> None:
        """Learn that a request that was taken has ended."""

    def rest(self) -> list[Due]:
        """Take everything that was not handed out: the run is over."""


class OpenSchedule:
    """The plan's instants. `limit` caps what is in flight: a request over it waits and is charged for it."""

    def __init__(self, due_ns: list[int], limit: int | None = None) -> None:
        self._due_ns = due_ns
        self._limit = len(due_ns) + 1 if limit is None else limit
        self._num_taken = 0
        self._num_in_flight = 0

    def next_ns(self) -> int:
        if self._num_taken == len(self._due_ns) or self._num_in_flight >= self._limit:
            return NEVER_NS
        return self._due_ns[self._num_taken]

    def take(self, now_ns: int) -> Due | None:
        if self.next_ns() > now_ns:
            return None
        due = Due(self._num_taken, self._due_ns[self._num_taken])
        self._num_taken += 1
        self._num_in_flight += 1
        return due

    def on_end(self, ended_ns: int) -> None:  # noqa: ARG002
        self._num_in_flight -= 1

    def rest(self) -> list[Due]:
        left = [Due(at, self._due_ns[at]) for at in range(self._num_taken, len(self._due_ns))]
        self._num_taken = len(self._due_ns)
        return left


class ClosedSchedule:
    """`concurrency` slots, free from `start_ns` on: a request is due at the instant its slot became free."""

    def __init__(self, num_requests: int, concurrency: int, start_ns: int) -> None:
        self._num_requests = num_requests
        self._num_taken = 0
        self._free_ns = [start_ns] * concurrency
        self._last_ns = start_ns

    def next_ns(self) -> int:
        if self._num_taken == self._num_requests or not self._free_ns:
            return NEVER_NS
        return self._free_ns[0]

    def take(self, now_ns: int) -> Due | None:
        if self.next_ns() > now_ns:
            return None
        self._last_ns = heapq.heappop(self._free_ns)
        due = Due(self._num_taken, self._last_ns)
        self._num_taken += 1
        return due

    def on_end(self, ended_ns: int) -> None:
        heapq.heappush(self._free_ns, ended_ns)

    def rest(self) -> list[Due]:
        left = [Due(position, self._last_ns) for position in range(self._num_taken, self._num_requests)]
        self._num_taken = self._num_requests
        return left
