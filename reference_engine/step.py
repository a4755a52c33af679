"""What one step is: who computes how much, who was evicted, and which tokens came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from reference_engine.sequence import FinishReason, Sequence


class Constraint(StrEnum):
    """What kept the first request in line from being admitted at a decision."""

    SLOT = "slot"  # max_batch requests are resident
    BUDGET = "budget"  # the step's tokens are used up
    MEMORY = "memory"  # not enough free blocks
    POLICY = "policy"  # the policy runs something else first
    GATE = "gate"  # admission is held back after an eviction


class Scheduled(NamedTuple):
    """A request and how many of its missing tokens this step computes."""

    sequence: Sequence
    num_tokens: int


class Emission(NamedTuple):
    """A token of an answer, and why the answer ends with it where it does."""

    sequence: Sequence
    token_id: int
    finish_reason: FinishReason | None


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One decision. budget: tokens left to give out.

    padding: finished requests whose rows are computed all the same. swap_out, swap_in: (from, to) block pairs
    to copy before anything is computed, device to host and host to device. blocked: what kept the first
    waiting request out, None where nobody was kept out; all behind it wait for their turn.
    """

    budget: int
    scheduled: list[Scheduled] = field(default_factory=list)
    padding: list[Scheduled] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    blocked: Constraint | None = None
    num_decodes: int = 0
    num_prefill_tokens: int = 0

    def include(self, sequence: Sequence, num_tokens: int) -> None:
        self.scheduled.append(Scheduled(sequence, num_tokens))
        self._count(sequence, num_tokens)

    def withdraw(self, sequence: Sequence) -> None:
        """Take a request that is about to be evicted out of the step, if it is in it."""
        for i, entry in enumerate(self.scheduled):
            if entry.sequence is sequence:
                del self.scheduled[i]
                self._count(sequence, -entry.num_tokens)
                return

    def _count(self, sequence: Sequence, num_tokens: int) -> None:
        self.budget -= num_tokens
        if sequence.is_decoding:
            self.num_decodes += num_tokens
        else:
            self.num_prefill_tokens += num_tokens
