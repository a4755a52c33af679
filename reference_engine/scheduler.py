"""Decides once per step who computes how many tokens, and keeps every request in exactly one place.

The scheduler owns the state (queues, block tables, counters); the policy answers four questions about it. It
reads no clock and runs no model: the same calls give the same plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from reference_engine.config import EngineConfig
from reference_engine.kv_cache import BlockPool, BlockTables
from reference_engine.policies.base import Constraint, Phase, Policy, State
from reference_engine.sequence import FinishReason, Sequence, Status
from reference_engine.tokenizer import EOS_ID


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
    """One decision. blocked: what kept the first waiting request out, None where nobody was kept out."""

    budget: int
    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    blocked: Constraint | None = None
    num_decodes: int = 0
    num_prefill_tokens: int = 0


class UnservableError(ValueError):
    """A request that could never be finished, refused on arrival."""


class Scheduler:
    """Four verbs: add, schedule, postprocess, cancel."""

    def __init__(self, config: EngineConfig, policy: Policy) -> None:
        self.config = config
        self.policy = policy
        self.tables = BlockTables(
            BlockPool(config.num_blocks), config.block_tokens, config.max_batch, config.max_model_len
        )
        self.state = State(config=config, tables=self.tables, waiting=policy.order)
        self.num_arrived = 0
        self.num_finished = 0

    @property
    def has_work(self) -> bool:
        return bool(self.state.running) or len(self.state.waiting) > 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new request; raises UnservableError where no schedule could ever finish it."""
        if sequence.max_total > self.config.max_model_len:
            raise UnservableError(
                f"prompt of {sequence.num_prompt} and max_tokens {sequence.max_tokens} exceed the context"
                f" of {self.config.max_model_len} tokens"
            )
        if self.config.blocks_for(sequence.max_total) > self.config.num_blocks:
            raise UnservableError(
                f"{sequence.max_total} tokens can never fit in a KV cache of {self.config.kv_tokens} tokens"
            )
        self.num_arrived += 1
        self.state.waiting.add(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Take a request out, wherever it is, and free its blocks."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            self._leave(sequence)
        else:
            self.state.waiting.remove(sequence)
        self._finish(sequence, FinishReason.CANCELLED)

    def schedule(self) -> StepPlan:
        """Decide the next step. Requests may be admitted and evicted; nothing is computed yet."""
        plan = StepPlan(budget=self.config.chunk_tokens)
        for phases in self.policy.budget.attempts(self.state):
            for phase in phases:
                if phase is Phase.ADMIT:
                    self._admit(plan)
                else:
                    self._advance(phase, plan)
            if plan.scheduled:
                break
        if plan.blocked is None and len(self.state.waiting):
            plan.blocked = Constraint.POLICY
        return plan

    def _advance(self, phase: Phase, plan: StepPlan) -> None:
        chunk_of, state = self.policy.budget.chunk, self.state
        for sequence in tuple(state.running):
            if plan.budget <= 0:
                return
            if phase is not Phase.RUNNING and sequence.is_decoding is not (phase is Phase.DECODES):
                continue
            # An earlier request of this pass may have evicted this one.
            if sequence.status is not Status.RUNNING:
                continue
            chunk = chunk_of(sequence, plan.budget, state)
            if chunk > 0 and self._make_room(sequence, sequence.num_computed + chunk, plan):
                self._include(sequence, chunk, plan)

    def _make_room(self, sequence: Sequence, num_tokens: int, plan: StepPlan) -> bool:
        """Grow the request's row, evicting others until it fits; False where it had to go itself."""
        while not self.tables.grow(sequence.slot, num_tokens):
            victim = self.policy.eviction.victim(self.state.running)
            self._evict(victim, plan)
            if victim is sequence:
                return False
        return True

    def _evict(self, victim: Sequence, plan: StepPlan) -> None:
        for i, (sequence, count) in enumerate(plan.scheduled):
            if sequence is victim:
                del plan.scheduled[i]
                plan.budget += count
                self._count(victim, -count, plan)
                break
        self._leave(victim)
        victim.status = Status.WAITING
        victim.num_preemptions += 1
        self.state.waiting.requeue(victim, self.policy.eviction.requeue)
        plan.preempted.append(victim)

    def _admit(self, plan: StepPlan) -> None:
        state, policy = self.state, self.policy
        if plan.preempted:
            plan.blocked = Constraint.GATE if len(state.waiting) else None
            return
        num_skipped = 0
        while (sequence := state.waiting.head(num_skipped)) is not None:
            chunk, refusal = self._try(sequence, plan)
            if refusal is None:
                state.waiting.remove(sequence)
                sequence.slot = self.tables.open()
                reserved = policy.admission.reserved_tokens(sequence, chunk, state)
                has_room = self.tables.grow(sequence.slot, reserved)
                assert has_room, f"{policy.name} admitted {sequence} without room for {reserved} tokens"
                sequence.status = Status.RUNNING
                state.running.append(sequence)
                self._include(sequence, chunk, plan)
                continue
            plan.blocked = plan.blocked or refusal
            num_skipped += 1
            if refusal is not Constraint.MEMORY or num_skipped > policy.skip_window:
                return

    def _try(self, sequence: Sequence, plan: StepPlan) -> tuple[int, Constraint | None]:
        """Return the first chunk of a waiting request, and what stands against admitting it."""
        if len(self.state.running) >= self.config.max_batch:
            return 0, Constraint.SLOT
        if plan.budget <= 0:
            return 0, Constraint.BUDGET
        chunk = self.policy.budget.chunk(sequence, plan.budget, self.state)
        if chunk <= 0:
            return 0, Constraint.BUDGET
        return chunk, self.policy.admission.refusal(sequence, chunk, self.state)

    def _include(self, sequence: Sequence, count: int, plan: StepPlan) -> None:
        plan.scheduled.append(Scheduled(sequence, count))
        plan.budget -= count
        self._count(sequence, count, plan)

    def _count(self, sequence: Sequence, count: int, plan: StepPlan) -> None:
        if sequence.is_decoding:
            plan.num_decodes += count
        else:
            plan.num_prefill_tokens += count

    def _leave(self, sequence: Sequence) -> None:
        """Give back the row and the blocks of a resident; what was computed must be computed again."""
        self.state.running.remove(sequence)
        self.tables.close(sequence.slot)
        sequence.slot = -1
        sequence.num_computed = 0

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason
        self.num_finished += 1

    def postprocess(self, plan: StepPlan, token_ids: list[int]) -> list[Emission]:
        """Take in what the executor computed; token_ids: one an entry of the plan, -1 where none is due."""
        emissions: list[Emission] = []
        for (sequence, count), token_id in zip(plan.scheduled, token_ids, strict=True):
            computed = sequence.num_computed + count
            if sequence.high_water > sequence.num_computed:
                sequence.num_recomputed += min(sequence.high_water, computed) - sequence.num_computed
            sequence.num_computed = computed
            sequence.high_water = max(sequence.high_water, computed)
            if computed < len(sequence.tokens):
                continue
            sequence.tokens.append(token_id)
            reason = self._finish_reason(sequence, token_id)
            emissions.append(Emission(sequence, token_id, reason))
            if reason is not None:
                self._leave(sequence)
                self._finish(sequence, reason)
        return emissions

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        if token_id == EOS_ID:
            return FinishReason.STOP
        return FinishReason.LENGTH if sequence.num_emitted >= sequence.max_tokens else None
