"""A scheduler that can be told what it would decide again and again: many steps at the cost of one.

Between two events nothing changes but the lengths of answers. This decides when that is certain, whatever the
policy, and takes such steps in together; it makes no decision of its own.
"""

from __future__ import annotations

from itertools import accumulate

from reference_engine.scheduler import STAND_IN, Scheduler
from reference_engine.sequence import FinishReason, Sequence
from reference_engine.step import Constraint, Emission, Load, StepPlan

NO_LIMIT = 1 << 62
NOT_STEADY = 0, Load()


class SteadyScheduler(Scheduler):
    """Two more verbs: say how long the steps stay the same, and take them in."""

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
            has_left = len(last.scheduled) != num_running
            if has_left or last.prefills or last.preempted or not self._is_lasting(last.blocked):
                return NOT_STEADY
        steps, context = NO_LIMIT, num_running
        for sequence in state.running:
            num_tokens, num_computed = len(sequence.tokens), sequence.num_computed
            if num_tokens - num_computed != 1 or num_tokens == sequence.num_prompt:
                return NOT_STEADY
            context += num_computed
            left = sequence.num_prompt + sequence.max_tokens - num_tokens
            if left < steps:
                steps = left
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
        tables, stand_ins = self.tables, [STAND_IN] * num_steps
        ended: list[Sequence] = []
        taken, size = [0] * num_steps, self.config.block_tokens
        residents = tuple(self.state.running)
        first, last, decoded_before = self.num_steps, self.num_steps + num_steps - 1, self.last_decode_step
        for sequence in residents:
            sequence.note_decodes(first, last, num_steps, decoded_before)
            before, tokens = sequence.num_computed, sequence.tokens
            computed = before + num_steps
            if before % size + num_steps > size or before % size == 0:
                for i in range(tables.num_blocks_of(sequence.slot) * size - before, num_steps, size):
                    taken[i] += 1
                has_room = tables.grow(sequence.slot, computed)
                assert has_room, f"{sequence} ran out of memory in a steady step"
            tokens += stand_ins
            sequence.num_computed = sequence.high_water = computed
            if tables.is_sharing:
                tables.learn(sequence.slot, tokens, computed)
            if len(tokens) - sequence.num_prompt == sequence.max_tokens:
                ended.append(sequence)
        self.num_steps, self.last_decode_step = last + 1, last
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
