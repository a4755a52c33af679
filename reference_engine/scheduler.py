"""Decides once per step who computes how many tokens, and keeps every request in exactly one place.

The scheduler owns the state (queues, block tables, counters); the policy answers four questions about it. It
reads no clock and runs no model: the same calls give the same plans.
"""

from __future__ import annotations

from reference_engine.config import EngineConfig
from reference_engine.kv_cache import BlockPool, BlockTables
from reference_engine.policies.base import Phase, Policy, Requeue, State
from reference_engine.sequence import FinishReason, Sequence, Span, SpanKind, Status
from reference_engine.step import Constraint, Emission, Scheduled, StepPlan

STAND_IN = 1  # a token where nobody computes which


class UnservableError(ValueError):
    """A request that could never be finished, refused on arrival."""


class Scheduler:
    """Four verbs: add, schedule, postprocess, cancel."""

    def __init__(self, config: EngineConfig, policy: Policy, eos_ids: frozenset[int] = frozenset()) -> None:
        self.config = config
        self.eos_ids = eos_ids
        self.policy = policy
        self.tables = BlockTables(
            BlockPool(config.num_blocks),
            config.block_tokens,
            config.max_batch,
            config.max_model_len,
            is_sharing=config.is_prefix_shared,
        )
        self.host_pool = BlockPool(config.num_swap_blocks)
        self.state = State(config=config, tables=self.tables, waiting=policy.order)
        self.held: list[Sequence] = []  # finished, but their batch has not
        self.num_arrived = 0
        self.num_finished = 0
        self.num_steps = 0
        self.last_decode_step = -1
        self._is_after_idle = False

    @property
    def has_work(self) -> bool:
        return bool(self.state.running or self.state.swapped) or len(self.state.waiting) > 0

    def require_servable(self, sequence: Sequence) -> None:
        """Raise UnservableError where no schedule could ever finish the request."""
        if sequence.max_total > self.config.max_model_len:
            raise UnservableError(
                f"prompt of {sequence.num_prompt} and max_tokens {sequence.max_tokens} exceed the context"
                f" of {self.config.max_model_len} tokens"
            )
        if self.config.blocks_for(sequence.max_total) > self.config.num_blocks:
            raise UnservableError(
                f"{sequence.max_total} tokens can never fit in a KV cache of {self.config.kv_tokens} tokens"
            )

    def add(self, sequence: Sequence) -> None:
        """Queue a new request that is servable."""
        self.num_arrived += 1
        self._is_after_idle |= not self.has_work
        self.state.waiting.add(sequence)

    def cancel(self, sequence: Sequence, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Take a request out, wherever it is, and free its blocks."""
        match sequence.status:
            case Status.FINISHED:
                return
            case Status.RUNNING:
                self._leave(sequence)
            case Status.SWAPPED:
                self.state.swapped.remove(sequence)
                self._free_host(sequence)
            case Status.WAITING:
                self.state.waiting.remove(sequence)
        self._finish(sequence, reason)
        self._release_held()

    def schedule(self) -> StepPlan:
        """Decide the next step. Requests may be admitted and evicted; nothing is computed yet."""
        plan = StepPlan(budget=self.policy.step_tokens, is_after_idle=self._is_after_idle)
        self._is_after_idle = False
        for phases in self.policy.budget.attempts(self.state):
            for phase in phases:
                match phase:
                    case Phase.ADMIT:
                        self._admit(plan)
                    case Phase.SWAP_IN:
                        self._swap_in(plan)
                    case Phase.RUNNING | Phase.DECODES | Phase.PREFILLS:
                        self._advance(phase, plan)
            if plan.has_work:
                break
        if plan.blocked is None and len(self.state.waiting):
            plan.blocked = Constraint.POLICY
        if self.policy.is_padded:
            plan.padding = [Scheduled(sequence, 1) for sequence in self.held]
        return plan

    def _advance_all_decodes(self, plan: StepPlan) -> bool:
        """Give every resident its token where all decode and nothing can run out; False changes nothing."""
        running = self.state.running
        num_running = len(running)
        if num_running > plan.budget or num_running > self.tables.pool.num_free or plan.scheduled:
            return False
        for sequence in running:
            num_tokens = len(sequence.tokens)
            if num_tokens - sequence.num_computed != 1 or num_tokens == sequence.num_prompt:
                return False
        grow, size = self.tables.grow, self.config.block_tokens
        for sequence in running:
            if sequence.num_computed % size == 0:  # a new block begins, unless it was taken ahead
                grow(sequence.slot, sequence.num_computed + 1)
        plan.scheduled = [Scheduled(sequence, 1) for sequence in running]
        plan.num_decodes = num_running
        plan.budget -= num_running
        return True

    def _advance(self, phase: Phase, plan: StepPlan) -> None:
        if phase is Phase.PREFILLS or not self._advance_all_decodes(plan):
            self._advance_each(phase, plan, tuple(self.state.running))

    def _advance_each(self, phase: Phase, plan: StepPlan, residents: tuple[Sequence, ...]) -> None:
        chunk_of, state = self.policy.budget.chunk, self.state
        grow, running, is_any = self.tables.grow, Status.RUNNING, phase is Phase.RUNNING
        for sequence in residents:
            if plan.budget <= 0:
                return
            # An earlier request of this pass may have evicted this one.
            if sequence.status is not running:
                continue
            if not is_any and sequence.is_decoding is not (phase is Phase.DECODES):
                continue
            chunk = chunk_of(sequence, plan.budget, state)
            if chunk <= 0:
                continue
            needed = sequence.num_computed + chunk
            if grow(sequence.slot, needed) or self._make_room(sequence, needed, plan):
                plan.include(sequence, chunk)

    def _make_room(self, sequence: Sequence, num_tokens: int, plan: StepPlan) -> bool:
        """Grow the request's row, evicting others until it fits; False where it had to go itself."""
        while not self.tables.grow(sequence.slot, num_tokens):
            victim = self.policy.eviction.victim(self.state.running)
            self._evict(victim, plan, self.policy.eviction.requeue, SpanKind.EVICTED)
            if victim is sequence:
                return False
        return True

    def _evict(self, victim: Sequence, plan: StepPlan, requeue: Requeue, why: SpanKind) -> None:
        plan.withdraw(victim)
        victim.spans.append(Span(why, self.num_steps, self.num_steps, victim.num_computed))
        plan.preempted.append(victim)
        victim.num_preemptions += 1
        # What lies on the host must be all of what was computed: a row may be longer, never shorter.
        blocks = self.tables.row(victim.slot)[: self.config.blocks_for(victim.num_computed)]
        # What came in during this very step is not on the device yet: nothing to swap.
        is_there = bool(blocks) and victim not in plan.admitted
        if self.policy.eviction.is_swap and is_there and len(blocks) <= self.host_pool.num_free:
            victim.host_blocks = [self.host_pool.take() for _ in blocks]
            plan.swap_out += zip(blocks, victim.host_blocks, strict=True)
            num_computed = victim.num_computed
            self._leave(victim)
            victim.num_computed = num_computed
            victim.status = Status.SWAPPED
            self.state.swapped.append(victim)
            return
        self._leave(victim)
        victim.status = Status.WAITING
        self.state.waiting.requeue(victim, requeue)

    def _swap_in(self, plan: StepPlan) -> None:
        """Bring back who was swapped out first, while the room for newcomers holds it and one token more."""
        while self.state.swapped and not plan.preempted and plan.budget > 0:
            sequence = self.state.swapped[0]
            needed = self.config.blocks_for(sequence.num_computed) + 1
            room = self.policy.admission.room_blocks(self.state)
            if len(self.state.running) >= self.config.max_batch or needed > room:
                return
            del self.state.swapped[0]
            sequence.slot = self.tables.open()
            self.tables.grow(sequence.slot, sequence.num_computed)
            plan.swap_in += zip(sequence.host_blocks, self.tables.row(sequence.slot), strict=True)
            self._free_host(sequence)
            sequence.status = Status.RUNNING
            self.state.running.append(sequence)
            plan.admitted.append(sequence)
            chunk = self.policy.budget.chunk(sequence, plan.budget, self.state)
            if chunk > 0 and self.tables.grow(sequence.slot, sequence.num_computed + chunk):
                plan.include(sequence, chunk)

    def _free_host(self, sequence: Sequence) -> None:
        for block_id in sequence.host_blocks:
            self.host_pool.give(block_id)
        sequence.host_blocks = []

    def _admit(self, plan: StepPlan) -> None:
        state, policy = self.state, self.policy
        if plan.preempted:
            plan.blocked = Constraint.GATE if len(state.waiting) else None
            return
        num_skipped = 0
        while (sequence := state.waiting.head(num_skipped)) is not None:
            # Displaced in this very pass: coming back at once would go round in circles.
            refusal = Constraint.GATE if sequence in plan.preempted else self._try_admit(sequence, plan)
            # Whom it displaces may stand ahead of it now: the place is its own all the same.
            while refusal and num_skipped == 0 and self._displace(sequence, refusal, plan):
                refusal = self._try_admit(sequence, plan)
            if refusal is None:
                continue
            plan.blocked = plan.blocked or refusal
            num_skipped += 1
            if refusal is not Constraint.MEMORY or num_skipped > policy.skip_window:
                return

    def _try_admit(self, sequence: Sequence, plan: StepPlan) -> Constraint | None:
        """Make a waiting request resident and part of the step, or return what stands against it."""
        state, policy = self.state, self.policy
        if len(state.running) + len(self.held) >= self.config.max_batch:
            return Constraint.SLOT
        if plan.budget <= 0:
            return Constraint.BUDGET
        sequence.slot = self.tables.open()
        sequence.num_computed = self.tables.adopt(sequence.slot, sequence.tokens)
        chunk = policy.budget.chunk(sequence, plan.budget, state)
        refusal = policy.admission.refusal(sequence, chunk, state) if chunk > 0 else Constraint.BUDGET
        if refusal is not None:
            self._vacate(sequence)
            return refusal
        reserved = policy.admission.reserved_tokens(sequence, chunk, state)
        has_room = self.tables.grow(sequence.slot, max(reserved, sequence.num_computed + chunk))
        assert has_room, f"{policy.name} admitted {sequence} without room for {reserved} tokens"
        state.waiting.take(sequence)
        sequence.num_cached += sequence.num_computed
        sequence.high_water = max(sequence.high_water, sequence.num_computed)
        sequence.status = Status.RUNNING
        state.running.append(sequence)
        plan.admitted.append(sequence)
        plan.include(sequence, chunk)
        return None

    def _displace(self, sequence: Sequence, refusal: Constraint, plan: StepPlan) -> bool:
        """Evict a resident that `sequence` outranks, where that may help; False where there is none."""
        outranks, running = self.policy.eviction.outranks, self.state.running
        if outranks is None or refusal not in (Constraint.SLOT, Constraint.MEMORY):
            return False
        outranked = [resident for resident in running if outranks(sequence, resident)]
        if not outranked:
            return False
        self._evict(self.policy.eviction.victim(outranked), plan, Requeue.ORDER, SpanKind.DISPLACED)
        return True

    def _leave(self, sequence: Sequence) -> None:
        self.state.running.remove(sequence)
        self._vacate(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        """Give back the row and the blocks; what was computed must be computed again."""
        self.tables.close(sequence.slot)
        sequence.slot = -1
        sequence.num_computed = 0

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason
        self.num_finished += 1

    def _retire(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a resident's answer; its memory goes now, or when its batch has ended."""
        if self.policy.is_batch_held:
            self.state.running.remove(sequence)
            self.held.append(sequence)
        else:
            self._leave(sequence)
        self._finish(sequence, reason)

    def _release_held(self) -> None:
        if not self.state.running:
            for sequence in self.held:
                self._vacate(sequence)
            self.held.clear()

    def postprocess(self, plan: StepPlan, token_ids: list[int]) -> list[Emission]:
        """Take in what the executor computed; token_ids: one an entry of the plan, -1 where none is due."""
        emissions = self._take_in(plan, token_ids)
        self._release_held()
        if plan.num_decodes:
            self.last_decode_step = self.num_steps
        self.num_steps += 1
        self.state.decodes_since_prefill = (
            0 if plan.num_prefill_tokens else self.state.decodes_since_prefill + 1
        )
        for observer in self.policy.observers:
            observer.observe(plan, emissions, self.state)
        return emissions

    def _take_in(self, plan: StepPlan, token_ids: list[int]) -> list[Emission]:
        emissions: list[Emission] = []
        is_sharing, step, decoded_before = self.tables.is_sharing, self.num_steps, self.last_decode_step
        for (sequence, num_tokens), token_id in zip(plan.scheduled, token_ids, strict=True):
            before, high_water, tokens = sequence.num_computed, sequence.high_water, sequence.tokens
            if before + 1 == len(tokens) > sequence.num_prompt:
                sequence.note_decodes(step, step, 1, decoded_before)
            else:
                sequence.spans.append(Span(SpanKind.PREFILL, step, step, num_tokens))
            sequence.num_computed = computed = before + num_tokens
            if high_water > before:
                sequence.num_recomputed += min(high_water, computed) - before
            if computed > high_water:
                sequence.high_water = computed
            if is_sharing:
                self.tables.learn(sequence.slot, tokens, computed)
            if computed < len(tokens):
                continue
            tokens.append(token_id)
            reason = None
            if token_id in self.eos_ids or len(tokens) - sequence.num_prompt >= sequence.max_tokens:
                reason = self._finish_reason(sequence, token_id)
            emissions.append(Emission(sequence, token_id, reason))
            if reason is not None:
                self._retire(sequence, reason)
        return emissions

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        if token_id in self.eos_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if sequence.num_emitted >= sequence.max_tokens else None
