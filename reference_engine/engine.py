"""The engine: schedule, execute, postprocess, once per step.

It knows no sockets and no processes. The clock is given to it, so that the same engine runs on real time with
a torch executor and on virtual time with a simulated one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from reference_engine.account import Account
from reference_engine.accounting import Accountant
from reference_engine.config import EngineConfig
from reference_engine.cost import features
from reference_engine.door import Door, TurnedAwayError
from reference_engine.invariants import InvariantChecker
from reference_engine.metrics import EngineCounters, EngineStatus
from reference_engine.scheduler import Scheduler, UnservableError
from reference_engine.sequence import FinishReason, Sequence
from reference_engine.step import Emission, Load, StepPlan
from reference_engine.steplog import BLOCKED, RequestRow, StepLog


class Executor(Protocol):
    """Computes what a plan schedules."""

    def execute(self, plan: StepPlan) -> list[int]:
        """Return the next token of each scheduled entry, -1 where none is due by the end of this step."""
        ...


class Engine:
    """One scheduler and one executor under one clock."""

    def __init__(
        self, config: EngineConfig, scheduler: Scheduler, executor: Executor, clock_ns: Callable[[], int]
    ) -> None:
        self.config = config
        self.scheduler = scheduler
        self.executor = executor
        self.clock_ns = clock_ns
        self.log = StepLog(num_requests=config.log_requests)
        self.counters = EngineCounters()
        self._door = Door(config.door)
        self._accountant = Accountant(scheduler.policy, scheduler.state, features)
        self._checker = InvariantChecker(scheduler) if config.check_invariants else None

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, sequence: Sequence) -> None:
        """Queue a request; raises UnservableError where it could never be finished, or TurnedAwayError."""
        sequence.enqueued_ns = self.clock_ns()
        try:
            self.scheduler.require_servable(sequence)
            self._door.check(sequence, self.scheduler.state, sequence.enqueued_ns)
        except (UnservableError, TurnedAwayError):
            self.counters.refused += 1
            raise
        self.scheduler.add(sequence)
        self._accountant.arrive(sequence, sequence.arrived_ns)

    def cancel(self, sequence: Sequence, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Drop a request at once; its blocks are free before the next step."""
        if sequence.finish_reason is None:
            self.scheduler.cancel(sequence, reason)
            self._accountant.drop(sequence)
            self._record(sequence, self.clock_ns())

    def drop_expired(self) -> list[Sequence]:
        """Drop the waiting requests whose deadline has passed, and return them."""
        late = self._door.expired(self.clock_ns())
        for sequence in late:
            self.cancel(sequence, FinishReason.EXPIRED)
        return late

    def status(self) -> EngineStatus:
        """Return the state of the queues and of memory, and the counters."""
        state, pool = self.scheduler.state, self.scheduler.tables.pool
        return EngineStatus(
            running=len(state.running),
            waiting=len(state.waiting),
            swapped=len(state.swapped),
            blocks_used=pool.num_used,
            blocks_cached=pool.num_cached,
            blocks_free=pool.num_free - pool.num_cached,
            counters=self.counters,
        )

    def step(self) -> list[Emission]:
        """Run one step and return the tokens it emitted."""
        start_ns = self.clock_ns()
        plan = self.scheduler.schedule()
        load = self._accountant.decide(plan, start_ns)
        token_ids = self.executor.execute(plan) if plan.scheduled else []
        return self._postprocess(plan, load, token_ids, start_ns)

    def _postprocess(self, plan: StepPlan, load: Load, token_ids: list[int], start_ns: int) -> list[Emission]:
        counters = self.counters
        for sequence, _ in plan.scheduled:
            if sequence.first_scheduled_ns is None:
                sequence.first_scheduled_ns = start_ns
                counters.queue_time.observe((start_ns - sequence.arrived_ns) / 1e9)
                counters.cached_tokens += sequence.num_cached
        emissions = self.scheduler.postprocess(plan, token_ids)
        end_ns = self.clock_ns()
        self._accountant.finish(plan, end_ns)
        for sequence, _, reason in emissions:
            if sequence.first_token_ns is None:
                sequence.first_token_ns = end_ns
            if reason is not None:
                self._record(sequence, end_ns, self._accountant.close(sequence))
        counters.steps += 1
        counters.prompt_tokens += plan.num_prefill_tokens
        counters.output_tokens += len(emissions)
        counters.preemptions += len(plan.preempted)
        self._door.observe(plan, end_ns - start_ns)
        state, pool = self.scheduler.state, self.scheduler.tables.pool
        self.log.add(
            start_ns,
            end_ns,
            load.decode_seqs,
            plan.num_prefill_tokens,
            pool.num_used,
            pool.num_cached,
            pool.num_free - pool.num_cached,
            len(state.waiting),
            len(state.running),
            len(plan.preempted),
            load.decode_context,
            load.prefill_seqs,
            load.prefill_pairs,
            load.swap_blocks,
            load.after_idle,
            BLOCKED[plan.blocked],
        )
        if self._checker is not None:
            self._checker.check(plan)
        return emissions

    def _record(self, sequence: Sequence, end_ns: int, account: Account | None = None) -> None:
        sequence.finished_ns = end_ns
        reason = str(sequence.finish_reason)
        self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1
        self.log.requests.append(RequestRow.of(sequence))
        if account is not None:
            account.stamps.clear()  # clients take their own, and there may be very many
        self.log.accounts.append(account)
