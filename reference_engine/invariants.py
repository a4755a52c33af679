"""What must hold after every step, whatever the policy: checked when `check_invariants` is set.

Conservation of requests (I1) and of blocks (I2), the limits of a step (I3), work conservation (I4), progress
(I5), causality (I7), servability (I9), what was emitted stays emitted (I10), and a walk over the residents
that survives evictions (I11).
"""

from __future__ import annotations

from collections import Counter

from reference_engine.scheduler import Scheduler
from reference_engine.sequence import Sequence, Status
from reference_engine.step import StepPlan

MAX_STEPS_WITHOUT_PROGRESS = 1_000


class InvariantError(AssertionError):
    """An engine invariant does not hold; the message names it and shows the values."""


def require(holds: bool, invariant: str, detail: str) -> None:
    if not holds:
        raise InvariantError(f"{invariant}: {detail}")


class InvariantChecker:
    """Remembers what it saw of each request, so that it can tell what went backwards."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._emitted: dict[int, int] = {}
        self._num_idle_steps = 0

    def check(self, plan: StepPlan) -> None:
        """Raise InvariantError where the state after a step with `plan` breaks an invariant."""
        self._check_requests()
        self._check_blocks()
        self._check_limits(plan)
        self._check_progress(plan)

    def _check_requests(self) -> None:
        scheduler, state = self._scheduler, self._scheduler.state
        waiting, alive = list(state.waiting), [*state.waiting, *state.swapped, *state.running]
        require(
            len(alive) + scheduler.num_finished == scheduler.num_arrived,
            "I1 conservation",
            f"{scheduler.num_arrived} arrived, {len(waiting)} waiting, {len(state.swapped)} swapped,"
            f" {len(state.running)} running, {scheduler.num_finished} finished",
        )
        present = {sequence.handle for sequence in alive}
        require(len(present) == len(alive), "I1 conservation", "a request stands twice")
        for sequence in waiting:
            is_clean = sequence.slot == -1 and sequence.num_computed == 0
            require(sequence.status is Status.WAITING and is_clean, "I1 conservation", f"waiting {sequence}")
        for sequence in state.swapped:
            is_kept = len(sequence.host_blocks) == scheduler.config.blocks_for(sequence.num_computed) > 0
            require(sequence.status is Status.SWAPPED and is_kept, "I1 conservation", f"swapped {sequence}")
        for sequence in state.running:
            require(sequence.status is Status.RUNNING, "I1 conservation", f"running {sequence}")
            self._check_sequence(sequence)
        self._emitted = {handle: n for handle, n in self._emitted.items() if handle in present}

    def _check_sequence(self, sequence: Sequence) -> None:
        config, num_emitted = self._scheduler.config, sequence.num_emitted
        before = self._emitted.get(sequence.handle, 0)
        require(num_emitted >= before, "I10 emitted stays", f"{sequence} had emitted {before} tokens before")
        self._emitted[sequence.handle] = num_emitted
        require(num_emitted < sequence.max_tokens, "I9 servability", f"{sequence} runs past its end")
        can_fit = config.blocks_for(sequence.max_total) <= config.num_blocks
        require(can_fit, "I9 servability", f"{sequence} can never fit")
        first = sequence.first_scheduled_ns
        if first is not None:
            in_order = sequence.arrived_ns <= sequence.enqueued_ns <= first
            in_order = in_order and first <= (sequence.first_token_ns or first)
            require(in_order, "I7 causality", f"the time line of {sequence} runs backwards")

    def _check_blocks(self) -> None:
        scheduler, tables, config = self._scheduler, self._scheduler.tables, self._scheduler.config
        holders = Counter(tables.held())
        require(
            tables.pool.num_free + len(holders) == config.num_blocks,
            "I2 blocks",
            f"{tables.pool.num_free} free and {len(holders)} held of {config.num_blocks}",
        )
        for block_id, num_holders in holders.items():
            is_counted = num_holders == tables.pool.num_holders_of(block_id)
            require(is_counted, "I2 blocks", f"block {block_id} is held {num_holders} times")
        num_swapped = sum(len(sequence.host_blocks) for sequence in scheduler.state.swapped)
        require(num_swapped == scheduler.host_pool.num_used, "I2 blocks", "host blocks are lost")
        for sequence in scheduler.state.running:
            num_held = tables.num_blocks_of(sequence.slot)
            is_covered = num_held >= config.blocks_for(sequence.num_computed)
            require(is_covered, "I2 blocks", f"{sequence} holds {num_held} blocks")

    def _check_limits(self, plan: StepPlan) -> None:
        scheduler, limit = self._scheduler, self._scheduler.policy.step_tokens
        num_tokens = sum(count for _, count in plan.scheduled)
        require(num_tokens <= limit, "I3 budget", f"{num_tokens} of {limit} tokens")
        num_rows, max_rows = len(scheduler.state.running) + len(scheduler.held), scheduler.config.max_batch
        require(num_rows <= max_rows, "I3 batch", f"{num_rows} of {max_rows} resident")
        require(
            num_tokens == plan.num_decodes + plan.num_prefill_tokens, "I3 budget", "tokens are miscounted"
        )
        handles = [sequence.handle for sequence, _ in plan.scheduled]
        require(len(set(handles)) == len(handles), "I11 walk", "a request is scheduled twice in a step")
        evicted = {sequence.handle for sequence in plan.preempted}
        require(not evicted & set(handles), "I11 walk", "an evicted request is scheduled")

    def _check_progress(self, plan: StepPlan) -> None:
        has_new = any(
            sequence.status is Status.FINISHED or sequence.num_computed == sequence.high_water
            for sequence, _ in plan.scheduled
        )
        self._num_idle_steps = 0 if has_new else self._num_idle_steps + 1
        limit = MAX_STEPS_WITHOUT_PROGRESS
        require(self._num_idle_steps <= limit, "I5 progress", f"no request got further in {limit} steps")
        is_stuck = not plan.scheduled and not plan.preempted
        require(not is_stuck, "I4 work conservation", "there is work, and the step does none")
