"""Who waits in what order: queues by a key that is fixed when a request joins, and two that are not."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from itertools import count

import numpy as np

from reference_engine.config import ConfigError, EngineConfig
from reference_engine.policies.base import Order, Requeue, State
from reference_engine.sequence import Sequence
from reference_engine.step import Emission, StepPlan

Key = Callable[[Sequence], float]

BEHIND_ALL = 1 << 62  # as a second key: after every handle
MAX_SORTED_BY_PREFIX = 128  # with more waiting, SGLang falls back to order of arrival too
PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0  # what a token costs its tenant in the fair queue


class KeyedQueue:
    """Waiting requests by ascending key, then by arrival; evicted ones may stand ahead of all."""

    __slots__ = ("_ahead", "_entries", "_entry_of", "_key", "_num_behind")

    def __init__(self, key: Key) -> None:
        self._key = key
        self._ahead: deque[Sequence] = deque()
        self._entries: list[tuple[float, int, Sequence]] = []
        self._entry_of: dict[int, tuple[float, int, Sequence]] = {}
        self._num_behind = count()

    def __len__(self) -> int:
        return len(self._ahead) + len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._ahead
        for _, _, sequence in self._entries:
            yield sequence

    def add(self, sequence: Sequence) -> None:
        self._insert((self._key(sequence), sequence.handle, sequence))

    def requeue(self, sequence: Sequence, where: Requeue) -> None:
        if where is Requeue.FRONT:
            self._ahead.appendleft(sequence)
        elif where is Requeue.ORDER or not self._entries:
            self.add(sequence)
        else:
            last_key = max(self._entries[-1][0], self._key(sequence))
            self._insert((last_key, BEHIND_ALL + next(self._num_behind), sequence))

    def _insert(self, entry: tuple[float, int, Sequence]) -> None:
        insort(self._entries, entry)
        self._entry_of[entry[2].handle] = entry

    def head(self, num_skipped: int) -> Sequence | None:
        if num_skipped < len(self._ahead):
            return self._ahead[num_skipped]
        index = num_skipped - len(self._ahead)
        return self._entries[index][2] if index < len(self._entries) else None

    def take(self, sequence: Sequence) -> None:
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        entry = self._entry_of.pop(sequence.handle, None)
        if entry is None:
            self._ahead.remove(sequence)
        else:
            del self._entries[bisect_left(self._entries, entry)]


class LongestPrefixQueue:
    """The most cached tokens first (SGLang's lpm), looked up once a step; the evicted join at the back."""

    def __init__(self) -> None:
        self._waiting: list[Sequence] = []
        self._cached_tokens: Callable[[Sequence], int] = lambda _: 0
        self._is_sorted = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)
        self._is_sorted = False

    def requeue(self, sequence: Sequence, where: Requeue) -> None:  # noqa: ARG002
        self.add(sequence)

    def head(self, num_skipped: int) -> Sequence | None:
        if not self._is_sorted and len(self._waiting) <= MAX_SORTED_BY_PREFIX:
            self._waiting.sort(key=self._cached_tokens, reverse=True)
        self._is_sorted = True
        return self._waiting[num_skipped] if num_skipped < len(self._waiting) else None

    def take(self, sequence: Sequence) -> None:
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)

    def observe(self, plan: StepPlan, emissions: Seq[Emission], state: State) -> None:  # noqa: ARG002
        self._cached_tokens = lambda sequence: state.tables.count_known(sequence.tokens)
        self._is_sorted = False


class FairQueue:
    """Virtual token counter: the tenant that was served least goes next, and an unfit head stops all.

    A tenant that comes back after a pause is lifted to the least counter of those who wait, so that idling
    earns nothing. Source: Sheng et al., OSDI 2024.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[Sequence]] = {}
        self.served: dict[str, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    def add(self, sequence: Sequence) -> None:
        if sequence.user not in self._queues:
            floor = min((self.served[user] for user in self._queues), default=0.0)
            self.served[sequence.user] = max(self.served.get(sequence.user, 0.0), floor)
        self._queues.setdefault(sequence.user, deque()).append(sequence)

    def requeue(self, sequence: Sequence, where: Requeue) -> None:
        if where is Requeue.BACK or sequence.user not in self._queues:
            self.add(sequence)
        else:
            self._queues[sequence.user].appendleft(sequence)

    def head(self, num_skipped: int) -> Sequence | None:
        if num_skipped or not self._queues:
            return None
        return self._queues[min(self._queues, key=self.served.__getitem__)][0]

    def take(self, sequence: Sequence) -> None:
        self.remove(sequence)
        if sequence.num_preemptions == 0:
            self.served[sequence.user] += PROMPT_WEIGHT * sequence.num_prompt

    def remove(self, sequence: Sequence) -> None:
        queue = self._queues[sequence.user]
        queue.remove(sequence)
        if not queue:
            del self._queues[sequence.user]

    def observe(self, plan: StepPlan, emissions: Seq[Emission], state: State) -> None:  # noqa: ARG002
        for sequence, _, _ in emissions:
            self.served[sequence.user] += OUTPUT_WEIGHT


def arrival(sequence: Sequence) -> float:
    return sequence.arrived_ns


def remaining_tokens(sequence: Sequence) -> float:
    return sequence.max_tokens - sequence.num_emitted


def predicted_tokens(sigma: float, seed: int) -> Key:
    """Return a key that guesses the length of an answer with a lognormal error of `sigma`."""

    def key(sequence: Sequence) -> float:
        error = np.random.default_rng((seed, sequence.handle)).normal(0.0, sigma)
        return sequence.max_tokens * float(np.exp(error))

    return key


def deadline(floor_s: float, per_token_s: float) -> Key:
    """Return arrival plus the time to the first token that a prompt of its length is promised."""

    def key(sequence: Sequence) -> float:
        return sequence.arrived_ns + 1e9 * max(floor_s, per_token_s * sequence.num_prompt)

    return key


ORDERS = ("fcfs", "sjf-prompt", "sjf-oracle", "sjf-predicted", "srpt-oracle", "priority", "edf", "lpm", "vtc")


def make_order(
    name: str,
    config: EngineConfig,
    *,
    sigma: float = 0.5,
    deadline_floor_s: float = 0.5,
    deadline_per_token_s: float = 0.001,
) -> Order:
    """Make the queue of this name; raises ConfigError with the list of names."""
    match name:
        case "fcfs":
            return KeyedQueue(arrival)
        case "sjf-prompt":
            return KeyedQueue(lambda sequence: sequence.num_prompt)
        case "sjf-oracle":
            return KeyedQueue(lambda sequence: sequence.max_tokens)
        case "sjf-predicted":
            return KeyedQueue(predicted_tokens(sigma, config.seed))
        case "srpt-oracle":
            return KeyedQueue(remaining_tokens)
        case "priority":
            return KeyedQueue(lambda sequence: sequence.priority)
        case "edf":
            return KeyedQueue(deadline(deadline_floor_s, deadline_per_token_s))
        case "lpm":
            return LongestPrefixQueue()
        case "vtc":
            return FairQueue()
    raise ConfigError(f"unknown order {name!r}; known orders: {', '.join(ORDERS)}")
