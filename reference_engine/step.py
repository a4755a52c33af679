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


class Load(NamedTuple):
    """How much a step computes.

    decode_context: tokens that the decodes read, their own included. prefill_seqs: prompts that a part is
    computed of. prefill_pairs: for each token of such a part the tokens before it, and itself, summed.
    swap_blocks: blocks copied between device and host. after_idle: 1 where the engine had nothing to do when
    the first of these requests came, so that no cache of the processor is warm.
    """

    decode_seqs: int = 0
    decode_context: int = 0
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    swap_blocks: int = 0
    after_idle: int = 0


def pairs_of(num_before: int, num_tokens: int) -> int:
    """Return the (token, token it attends to) pairs of a chunk that starts after `num_before` tokens."""
    return num_tokens * num_before + num_tokens * (num_tokens + 1) // 2


class Emission(NamedTuple):
    """A token of an answer, and why the answer ends with it where it does."""

    sequence: Sequence
    token_id: int
    finish_reason: FinishReason | None


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One decision. budget: tokens left to give out.

    prefills: the entries of `scheduled` that are not decodes. admitted: who became resident, new or back.
    padding: finished requests whose rows are computed all the same. swap_out, swap_in: (from, to) block pairs
    to copy before anything is computed, device to host and host to device. blocked: what kept the first
    waiting request out, None where nobody was kept out; all behind it wait for their turn. cohort_seqs,
    cohort_context: decodes that are not listed in `scheduled`, and the tokens that they have computed.
    """

    budget: int
    scheduled: list[Scheduled] = field(default_factory=list)
    prefills: list[Scheduled] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    padding: list[Scheduled] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    blocked: Constraint | None = None
    num_decodes: int = 0
    num_prefill_tokens: int = 0
    cohort_seqs: int = 0
    cohort_context: int = 0
    is_after_idle: bool = False

    @property
    def has_work(self) -> bool:
        return bool(self.num_decodes or self.prefills)

    def include(self, sequence: Sequence, num_tokens: int) -> None:
        entry = Scheduled(sequence, num_tokens)
        self.scheduled.append(entry)
        self.budget -= num_tokens
        if sequence.is_decoding:
            self.num_decodes += 1
        else:
            self.num_prefill_tokens += num_tokens
            self.prefills.append(entry)

    def withdraw(self, sequence: Sequence) -> None:
        """Take a request that is about to be evicted out of the step, if it is in it."""
        for i, entry in enumerate(self.scheduled):
            if entry.sequence is sequence:
                del self.scheduled[i]
                self.budget += entry.num_tokens
                if entry in self.prefills:
                    self.prefills.remove(entry)
                    self.num_prefill_tokens -= entry.num_tokens
                else:
                    self.num_decodes -= 1
                return

    def load(self) -> Load:
        """Return how much the step computes, as things stand before it; padding counts as decodes."""
        num_decodes = len(self.scheduled) + len(self.padding) - len(self.prefills) + self.cohort_seqs
        context, pairs = num_decodes + self.cohort_context, 0
        if len(self.scheduled) > len(self.prefills):
            context += sum(sequence.num_computed for sequence, _ in self.scheduled)
            context -= sum(sequence.num_computed for sequence, _ in self.prefills)
        if self.padding:
            context += sum(sequence.num_computed for sequence, _ in self.padding)
        for sequence, num_tokens in self.prefills:
            pairs += pairs_of(sequence.num_computed, num_tokens)
        return Load(
            num_decodes,
            context,
            len(self.prefills),
            self.num_prefill_tokens,
            pairs,
            len(self.swap_in) + len(self.swap_out),
            int(self.is_after_idle),
        )
