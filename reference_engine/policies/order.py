"""Who waits in what order: queues sorted by a key that is fixed when a request joins."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator

from reference_engine.policies.base import Requeue
from reference_engine.sequence import Sequence

Key = Callable[[Sequence], float]


def by_arrival(sequence: Sequence) -> float:
    return sequence.arrived_ns


class KeyedQueue:
    """Waiting requests by ascending key, then by arrival; evicted ones may stand ahead of all."""

    __slots__ = ("_ahead", "_entries", "_key")

    def __init__(self, key: Key = by_arrival) -> None:
        self._key = key
        self._ahead: deque[Sequence] = deque()
        self._entries: list[tuple[float, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._ahead) + len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._ahead
        for _, _, sequence in self._entries:
            yield sequence

    def _entry(self, sequence: Sequence) -> tuple[float, int, Sequence]:
        return self._key(sequence), sequence.handle, sequence

    def add(self, sequence: Sequence) -> None:
        insort(self._entries, self._entry(sequence))

    def requeue(self, sequence: Sequence, where: Requeue) -> None:
        if where is Requeue.FRONT:
            self._ahead.appendleft(sequence)
        else:
            self.add(sequence)

    def head(self, num_skipped: int) -> Sequence | None:
        if num_skipped < len(self._ahead):
            return self._ahead[num_skipped]
        index = num_skipped - len(self._ahead)
        return self._entries[index][2] if index < len(self._entries) else None

    def remove(self, sequence: Sequence) -> None:
        if sequence in self._ahead:
            self._ahead.remove(sequence)
            return
        index = bisect_left(self._entries, self._entry(sequence))
        assert self._entries[index][2] is sequence
        del self._entries[index]
