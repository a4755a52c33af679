"""The seam between the scheduler and a policy: four questions, and the state they may look at.

*Order*: who waits in what order. *Admission*: who becomes resident, and how much memory is taken for it.
*Budget*: how the tokens of a step are split between prefill and decode. *Eviction*: who goes when memory runs
out, and how. The scheduler owns every change of state; a policy only answers. None may know how long an
answer will really turn out to be; those that read `max_tokens` as if it were that are named oracles.
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
from reference_engine.step import Constraint, Emission, StepPlan


class Phase(StrEnum):
    """One pass of the scheduler over a part of the requests."""

    RUNNING = "running"  # all residents in order of admission, whatever they need
    DECODES = "decodes"  # residents that need one token
    PREFILLS = "prefills"  # residents whose prompt is not finished
    SWAP_IN = "swap-in"  # requests whose memory was swapped out
    ADMIT = "admit"  # waiting requests


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

    def take(self, sequence: Sequence) -> None:
        """Remove a request because it is admitted."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Remove a request that will not be served."""
        ...


@dataclass(slots=True, kw_only=True)
class State:
    """What the scheduler knows at a decision. Policies read it and change nothing.

    running: the residents, in order of admission. swapped: those whose memory lies on the host, first out
    first. decodes_since_prefill: steps since one computed a prompt.
    """

    config: EngineConfig
    tables: BlockTables
    waiting: Order
    running: list[Sequence] = field(default_factory=list)
    swapped: list[Sequence] = field(default_factory=list)
    decodes_since_prefill: int = 0

    @property
    def num_free_blocks(self) -> int:
        return self.tables.pool.num_free


class Admission(Protocol):
    """Who becomes resident, and how much memory is taken for it at once.

    is_refusal_lasting: a refusal stands as long as all that happens is that residents decode.
    """

    @property
    def is_refusal_lasting(self) -> bool: ...

    def refusal(self, sequence: Sequence, chunk: int, state: State) -> Constraint | None:
        """Return what stands against admitting `sequence` with a first chunk, or None.

        The candidate has a row already, which holds the blocks that it shares with others.
        """
        ...

    def reserved_tokens(self, sequence: Sequence, chunk: int, state: State) -> int:
        """Return the number of tokens for which blocks are taken on admission."""
        ...

    def need_blocks(self, sequence: Sequence, state: State) -> int:
        """Return the blocks that must be left for `sequence`, as judged when it begins to wait."""
        ...

    def room_blocks(self, state: State) -> int:
        """Return the blocks left for newcomers: who needs no more would fit."""
        ...


class Budget(Protocol):
    """How the token budget of a step is split."""

    def attempts(self, state: State) -> Seq[tuple[Phase, ...]]:
        """Return the passes to make; the first attempt that schedules anything is the step."""
        ...

    def chunk(self, sequence: Sequence, budget: int, state: State) -> int:
        """Return the tokens that `sequence` may compute with `budget` left; 1 for a decode, 0 for none."""
        ...


class Observer(Protocol):
    """Sees each step after it ran, for policies that learn from what happened."""

    def observe(self, plan: StepPlan, emissions: Seq[Emission], state: State) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Who goes when memory runs out, and how.

    victim: picks one of the residents, never from an empty list. is_swap: move its memory to the host while
    there is room, instead of computing it again. outranks: True where a waiting request may take a resident's
    place; what it displaces waits where its order puts it.
    """

    victim: Callable[[Seq[Sequence]], Sequence]
    requeue: Requeue = Requeue.FRONT
    is_swap: bool = False
    outranks: Callable[[Sequence, Sequence], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Four answers under one name.

    step_tokens: the token budget of a step. skip_window: how many unfit requests admission may step over.
    is_batch_held: memory of finished requests is kept until their whole batch has finished; is_padded: and
    their rows are computed until then.
    """

    name: str
    order: Order
    admission: Admission
    budget: Budget
    eviction: Eviction
    step_tokens: int
    skip_window: int = 0
    is_batch_held: bool = False
    is_padded: bool = False
    observers: tuple[Observer, ...] = ()
