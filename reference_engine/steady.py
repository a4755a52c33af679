"""A scheduler that can be told what it would decide again and again: many steps at the cost of one.

Between two events nothing changes but the lengths of answers. This decides when that is certain, whatever the
policy, and takes such steps in together; it makes no decision of its own. Residents that decode are kept as a
cohort, which moves as one in the steps that a policy decides, too, where they give each its token.
"""

from __future__ import annotations

from itertools import accumulate

from reference_engine.cohort import Cohort, Member
from reference_engine.config import EngineConfig
from reference_engine.policies.base import Phase, Policy, Requeue
from reference_engine.scheduler import STAND_IN, Scheduler
from reference_engine.sequence import FinishReason, Sequence, SpanKind, Status
from reference_engine.step import Constraint, Emission, Load, StepPlan

NOT_STEADY = 0, Load()


class SteadyScheduler(Scheduler):
    """Two more verbs: say how long the steps stay the same, and take them in. Sequences are Members."""

    def __init__(self, config: EngineConfig, policy: Policy) -> None:
        super().__init__(config, policy)
        self.cohort = Cohort(self.tables)
        self._is_whole = True  # nobody decodes who is not in the cohort
        self._is_together = False  # the cohort is part of the step being decided

    def schedule(self) -> StepPlan:
        self._is_together = False
        plan = super().schedule()
        if self._is_together:
            plan.cohort_seqs, plan.cohort_context = self.cohort.size, self.cohort.context
        return plan

    def _advance(self, phase: Phase, plan: StepPlan) -> None:
        running = self.state.running
        if phase is Phase.PREFILLS:
            if self.cohort.size < len(running):
                self._advance_each(phase, plan, tuple(s for s in running if not is_member(s)))
        elif self._advance_cohort(phase, plan):
            if phase is Phase.RUNNING:
                self._advance_each(phase, plan, tuple(running[self.cohort.size :]))
        else:
            self._dissolve()
            super()._advance(phase, plan)

    def _advance_cohort(self, phase: Phase, plan: StepPlan) -> bool:
        """Give every resident that decodes its token, where nothing can run out; False changes nothing."""
        state, cohort = self.state, self.cohort
        self._gather()
        size = cohort.size
        if not size or plan.has_work or size > plan.budget or state.swapped:
            return False
        if cohort.num_blocks_due() > self.tables.pool.num_free:
            return False
        if phase is Phase.RUNNING and any(is_member(s) for s in state.running[size:]):
            return False  # a prompt stands before a decode, and may take its tokens
        cohort.take_blocks(1)
        plan.num_decodes = size
        plan.budget -= size
        self._is_together = True
        return True

    def _gather(self) -> None:
        """Make everybody who decodes a member."""
        if not self._is_whole:
            for sequence in self.state.running:
                self._join(sequence)
            self._is_whole = True

    def _join(self, sequence: Sequence) -> None:
        assert isinstance(sequence, Member)
        if sequence.cohort is None and sequence.status is Status.RUNNING and sequence.is_decoding:
            self.cohort.join(sequence)

    def _dissolve(self) -> None:
        if self.cohort.size:
            for sequence in self.state.running:
                self._part(sequence)
        self._is_whole = False

    def _part(self, sequence: Sequence) -> None:
        if is_member(sequence):
            assert isinstance(sequence, Member)
            self.cohort.leave(sequence)

    def _evict(self, victim: Sequence, plan: StepPlan, requeue: Requeue, why: SpanKind) -> None:
        if is_member(victim):
            self._part(victim)
            if self._is_together:
                plan.num_decodes -= 1
                plan.budget += 1
        super()._evict(victim, plan, requeue, why)

    def _leave(self, sequence: Sequence) -> None:
        self._part(sequence)
        super()._leave(sequence)

    def _retire(self, sequence: Sequence, reason: FinishReason) -> None:
        self._part(sequence)
        super()._retire(sequence, reason)

    def _take_in(self, plan: StepPlan, token_ids: list[int]) -> list[Emission]:
        emissions = []
        if self._is_together:
            members = tuple(filter(is_member, self.state.running)) if self.policy.observers else ()
            ended = self._advance_members(1)
            for sequence in ended:
                self._retire(sequence, FinishReason.LENGTH)
            emissions = [Emission(s, STAND_IN, s.finish_reason) for s in members or ended]
        emissions += super()._take_in(plan, token_ids)
        for sequence, _ in plan.scheduled:
            self._join(sequence)
        return emissions

    def _advance_members(self, num_steps: int) -> list[Sequence]:
        """Let the cohort decode; return who ended, in order of admission."""
        running, tables = self.state.running, self.tables
        ended: list[Sequence] = [*self.cohort.advance(num_steps, self.num_steps, self.last_decode_step)]
        if tables.is_sharing:
            for sequence in filter(is_member, running):
                tables.learn(sequence.slot, sequence.tokens, sequence.num_computed)
        if len(ended) > 1:
            ended.sort(key=running.index)
        return ended

    def steady_steps(self, last: StepPlan) -> tuple[int, Load]:
        """Return for how many steps after `last` it is certain that every resident computes one token.

        The load is that of the first of them; each resident reads a token more in the next.

        Certain: all residents decode, the blocks are there, and nobody else can come in before one of them
        ends; the last of the steps may end some. A request that arrives ends the certainty.
        """
        state = self.state
        num_running = len(state.running)
        if state.swapped or not num_running or num_running > self.policy.step_tokens:
            return NOT_STEADY
        if len(state.waiting):
            has_left = last.num_decodes + len(last.prefills) != num_running
            if has_left or last.prefills or last.preempted or not self._is_lasting(last.blocked):
                return NOT_STEADY
        self._gather()
        if self.cohort.size != num_running:
            return NOT_STEADY
        steps, context = self.cohort.steps_to_end(), self.cohort.context + num_running
        while steps > 0 and self._blocks_for_steps(steps) > self.tables.pool.num_free:
            steps //= 2
        if self.policy.is_padded:
            num_running += len(self.held)
            context += len(self.held) + sum(sequence.num_computed for sequence in self.held)
        return steps, Load(num_running, context)

    def _is_lasting(self, blocked: Constraint | None) -> bool:
        """Say whether a refusal stands as long as all that happens is that residents decode."""
        policy = self.policy
        match blocked:
            case Constraint.SLOT:
                return not self.tables.is_sharing
            case Constraint.BUDGET:
                return not policy.observers and not self.tables.is_sharing
            case Constraint.MEMORY:
                is_plain = not policy.observers and not self.tables.is_sharing
                return is_plain and policy.admission.is_refusal_lasting
            case Constraint.POLICY:
                return policy.is_batch_held
        return False

    def _blocks_for_steps(self, num_steps: int) -> int:
        """Return the blocks that the residents take in this many steps; an upper bound where it is enough."""
        running, missing = self.state.running, self.tables.blocks_missing
        bound = len(running) * (num_steps // self.config.block_tokens + 1)
        if bound <= self.tables.pool.num_free:
            return bound
        return sum(max(0, missing(s.slot, s.num_computed + num_steps)) for s in running)

    def repeat(self, num_steps: int) -> tuple[list[Sequence], list[int]]:
        """Let every resident decode for so many of the steady steps.

        Returns those who end with the last, and the blocks taken up to each.
        """
        residents = tuple(self.state.running) if self.policy.observers else ()
        taken = self.cohort.take_blocks(num_steps)
        ended = self._advance_members(num_steps)
        self.num_steps += num_steps
        self.last_decode_step = self.num_steps - 1
        self.state.decodes_since_prefill += num_steps
        if self.policy.observers:
            self._observe_steady(residents, num_steps - 1)
        for sequence in ended:
            self._retire(sequence, FinishReason.LENGTH)
        self._release_held()
        if self.policy.observers:
            self._observe_steady(residents, 1)
        return ended, list(accumulate(taken))

    def _observe_steady(self, residents: tuple[Sequence, ...], num_steps: int) -> None:
        plan = StepPlan(budget=0)
        emissions = [Emission(sequence, STAND_IN, sequence.finish_reason) for sequence in residents]
        for _ in range(num_steps):
            for observer in self.policy.observers:
                observer.observe(plan, emissions, self.state)


def is_member(sequence: Sequence) -> bool:
    """Say whether a sequence moves with the cohort."""
    return isinstance(sequence, Member) and sequence.cohort is not None
