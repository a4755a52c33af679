"""The seam between the scheduler and a policy: four questions, and the state they may look at.

*Order*: who waits in what order. *Admission*: who becomes resident, and how much memory is taken for it.
*Budget*: how the tokens of a step are split between prefill and decode. *Eviction*: who goes when memory runs
out. The scheduler owns every change of state; a policy only answers. No answer may depend on how long a
request will really turn out to be, unless the policy is named an oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from reference_engine.config import EngineConfig
from reference_engine.kv_cache import BlockTables
from reference_engine.sequence import Sequence


class Phase(StrEnum):
    """One pass of the scheduler over a part of the requests."""

    RUNNING = "running"  # all residents in order of admission, whatever they need
    DECODES = "decodes"  # residents that need one token
    PREFILLS = "prefills"  # residents whose prompt is not finished
    ADMIT = "admit"  # waiting requests


class Constraint(StrEnum):
    """What kept the first request in line from being admitted at a decision."""

    SLOT = "slot"  # max_batch requests are resident
    BUDGET = "budget"  # the step's tokens are used up
    MEMORY = "memory"  # not enough free blocks
    POLICY = "policy"  # the policy runs something else first
    GATE = "gate"  # admission is held back after a preemption


class Requeue(StrEnum):
    """Where an evicted request waits: ahead of all others, where its order puts it, or behind all."""

    FRONT = "front"
    ORDER = "order"
    BACK = "back"


class Order(Protocol):
    """Who waits in what order: the waiting requests themselves, kept in that order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...

    def add(self, sequence: Sequence) -> None: ...

    def requeue(self, sequence: Sequence, where: Requeue) -> None: ...

    def head(self, num_skipped: int) -> Sequence | None:
        """Return the request to be tried next, after `num_skipped` that did not fit; None to stop."""
        ...

    def remove(self, sequence: Sequence) -> None: ...


@dataclass(slots=True, kw_only=True)
class State:
    """What the scheduler knows at a decision. Policies read it and change nothing.

    running: the residents, in order of admission.
    """

    config: EngineConfig
    tables: BlockTables
    waiting: Order
    running: list[Sequence] = field(default_factory=list)

    @property
    def num_free_blocks(self) -> int:
        return self.tables.pool.num_free


class Admission(Protocol):
    """Who becomes resident, and how much memory is taken for it at once."""

    def refusal(self, sequence: Sequence, chunk: int, state: State) -> Constraint | None:
        """Return what stands against admitting `sequence` with a first chunk, or None."""
        ...

    def reserved_tokens(self, sequence: Sequence, chunk: int, state: State) -> int:
        """Return the number of tokens for which blocks are taken on admission."""
        ...


class Budget(Protocol):
    """How the token budget of a step is split."""

    def attempts(self, state: State) -> Seq[tuple[Phase, ...]]:
        """Return the passes to make; the first attempt that schedules anything is the step."""
        ...

    def chunk(self, sequence: Sequence, budget: int, state: State) -> int:
        """Return the tokens that `sequence` may compute with `budget` left; 0 leaves it out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Who goes when memory runs out. victim: picks one of the residents, never from an empty list."""

    victim: Callable[[Seq[Sequence]], Sequence]
    requeue: Requeue = Requeue.FRONT


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Four answers under one name. skip_window: how many unfit requests admission may step over."""

    name: str
    order: Order
    admission: Admission
    budget: Budget
    eviction: Eviction
    skip_window: int = 0
