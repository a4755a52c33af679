"""A run in virtual time: the scheduler and its policy as they are, a cost model in place of the model.

Requests arrive at the instants of a schedule, whatever the engine does; steps follow each other without a gap
while there is work. Between two events nothing changes but the lengths of the answers, so steady steps are
taken in together; with `is_jumping` off they run one by one, with the same result to the nanosecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, Protocol

from reference_engine.account import Account
from reference_engine.accounting import Accountant
from reference_engine.cohort import Member
from reference_engine.config import EngineConfig
from reference_engine.cost import PS_PER_NS, CostModel
from reference_engine.door import Door, TurnedAwayError
from reference_engine.executors.simulated import SimulatedExecutor, VirtualClock, to_ns
from reference_engine.invariants import InvariantChecker, InvariantError
from reference_engine.policies import make_policy
from reference_engine.scheduler import Scheduler, UnservableError
from reference_engine.sequence import FinishReason, Sequence
from reference_engine.simulation_log import StepRows
from reference_engine.steady import SteadyScheduler, is_member
from reference_engine.step import Scheduled, StepPlan
from workloads.plan import Plan

NEVER_NS = 2**62
NEVER_PS = NEVER_NS * PS_PER_NS
FIRST_OWN_TOKEN = 1 << 40  # ids of tokens that no other prompt has


class Due(Protocol):
    """A request to be sent: its row in the plan and the instant that its latency runs from."""

    @property
    def position(self) -> int: ...

    @property
    def scheduled_ns(self) -> int: ...


class Schedule(Protocol):
    """Hands out every request of the plan once, as clients do: open or closed loop."""

    def next_ns(self) -> int: ...

    def take(self, now_ns: int) -> Due | None: ...

    def on_end(self, position: int, ended_ns: int) -> object: ...


class Listener(Protocol):
    """Learns when each request was sent and how it ended. stamps_ps: when its tokens came out."""

    def sent(self, row: int, scheduled_ns: int, sent_ns: int) -> None: ...

    def completed(self, sequence: Sequence, account: Account) -> None: ...

    def failed(self, sequence: Sequence, failure: Failure, at_ns: int, stamps_ps: list[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Failure:
    """How a request ended that did not get its whole answer: an outcome as in requests.parquet, and why."""

    outcome: Literal["http_status", "timeout", "cancelled"]
    error: str
    http_status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client waits, in nanoseconds: from the send for the first token and for the end; after the
    last send for whatever is still in flight.
    """

    first_token_ns: int = NEVER_NS
    total_ns: int = NEVER_NS
    drain_ns: int = NEVER_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Nanoseconds between client and engine: of a request on its way in, of tokens on their way out."""

    inbound_ns: int = 0
    outbound_ns: int = 0


class Simulation:
    """One engine in virtual time, from the first request to the last."""

    def __init__(
        self,
        config: EngineConfig,
        cost: CostModel,
        plan: Plan,
        schedule: Schedule,
        listener: Listener,
        *,
        steps: StepRows | None = None,
        patience: Patience | None = None,
        delays: Delays | None = None,
        is_jumping: bool = True,
    ) -> None:
        self.config = config
        self.clock = VirtualClock()
        policy = make_policy(config)
        self.scheduler = SteadyScheduler(config, policy) if is_jumping else Scheduler(config, policy)
        self.num_steps = 0
        self._cost = cost
        self._plan = plan
        self._schedule = schedule
        self._listener = listener
        self._steps = steps
        self._patience = patience or Patience()
        self._delays = delays or Delays()
        self._executor = SimulatedExecutor(cost, self.clock)
        self._accountant = Accountant(self.scheduler.policy, self.scheduler.state, cost.cost_ps)
        self._door = Door(config.door)
        self._checker = InvariantChecker(self.scheduler) if config.check_invariants else None
        self._last = StepPlan(budget=0)
        self._has_news = False  # somebody came or went since the last decision, which may not hold
        self._first_token_by: deque[tuple[int, Sequence]] = deque()
        self._end_by: deque[tuple[int, Sequence]] = deque()
        self._num_sent = 0
        self._next_due_ns = schedule.next_ns()
        self._answers: deque[tuple[int, int]] = deque()  # on their way back: when they arrive, of which row
        self._is_held = False  # a cap on requests in flight kept the client from sending
        self._drained_by = NEVER_PS

    def run(self, must_stop: Callable[[], bool] = lambda: False) -> None:
        """Run until every request of the schedule has ended, or `must_stop` says so."""
        while not must_stop():
            self._let_go()
            self._take_in()
            if self.scheduler.has_work:
                if self._has_news or not self._jump():
                    self._step()
            elif (client_ps := self._next_of_client_ps()) < NEVER_PS:
                self.clock.now_ps = max(self.clock.now_ps, client_ps)
            else:
                return
        self._cancel_all("the run was stopped")

    def _take_in(self) -> None:
        """Queue what has arrived by now."""
        inbound_ns = self._delays.inbound_ns
        now_ns, schedule = self.clock.now_ps // PS_PER_NS, self._schedule
        while self._answers and self._answers[0][0] <= now_ns:
            ended_ns, row = self._answers.popleft()
            schedule.on_end(row, ended_ns)
            self._next_due_ns = schedule.next_ns()
        while self._next_due_ns <= now_ns - inbound_ns:
            due = schedule.take(now_ns - inbound_ns)
            assert due is not None
            sent_ns = now_ns - inbound_ns if self._is_held else due.scheduled_ns
            self._listener.sent(due.position, due.scheduled_ns, sent_ns)
            self._send(self._sequence(due.position, sent_ns + inbound_ns), sent_ns, now_ns)
            self._next_due_ns = schedule.next_ns()
        self._is_held = self._next_due_ns >= NEVER_NS

    def _send(self, sequence: Sequence, sent_ns: int, now_ns: int) -> None:
        patience = self._patience
        self._num_sent += 1
        if self._num_sent == len(self._plan):
            self._drained_by = (sent_ns + patience.drain_ns) * PS_PER_NS
        try:
            self.scheduler.require_servable(sequence)
            self._door.check(sequence, self.scheduler.state, now_ns)
        except (UnservableError, TurnedAwayError) as error:
            status = 400 if isinstance(error, UnservableError) else 429
            self._listener.failed(sequence, Failure("http_status", str(error), status), now_ns, [])
            self._answer(sequence)
            return
        self.scheduler.add(sequence)
        self._has_news = True
        self._accountant.arrive(sequence, sequence.arrived_ns * PS_PER_NS)
        if patience.first_token_ns < NEVER_NS:
            self._first_token_by.append(((sent_ns + patience.first_token_ns) * PS_PER_NS, sequence))
        if patience.total_ns < NEVER_NS:
            self._end_by.append(((sent_ns + patience.total_ns) * PS_PER_NS, sequence))

    def _sequence(self, row: int, arrived_ns: int) -> Sequence:
        plan = self._plan
        num_prompt = int(plan.prompt_tokens[row])
        return Member(
            handle=row,
            request_id=str(row),
            tokens=self._tokens(row, num_prompt) if self.config.is_prefix_shared else [0] * num_prompt,
            num_prompt=num_prompt,
            max_tokens=int(plan.output_tokens[row]),
            arrived_ns=arrived_ns,
            enqueued_ns=arrived_ns,
            user=plan.classes[plan.class_id[row]],
        )

    def _tokens(self, row: int, num_prompt: int) -> list[int]:
        """Return token ids that equal those of another prompt where the plan shares a block, only there."""
        plan, size = self._plan, self._plan.block_tokens
        blocks = plan.prefix_blocks[plan.prefix_offsets[row] : plan.prefix_offsets[row + 1]].tolist()
        shared = [block * size + i for block in blocks for i in range(size)][:num_prompt]
        first = FIRST_OWN_TOKEN + (row << 24)
        return shared + list(range(first, first + num_prompt - len(shared)))

    def _let_go(self) -> None:
        """Drop the requests whose door or client has lost patience by now."""
        now_ps, patience = self.clock.now_ps, self._patience
        for sequence in self._door.expired(now_ps // PS_PER_NS):
            failure = Failure("http_status", "not started before its deadline", 503)
            self._drop(sequence, FinishReason.EXPIRED, failure)
        while self._first_token_by and self._first_token_by[0][0] <= now_ps:
            _, sequence = self._first_token_by.popleft()
            if sequence.num_emitted == 0:
                self._cancel(sequence, "timeout", f"no token within {patience.first_token_ns / 1e9:g} s")
        while self._end_by and self._end_by[0][0] <= now_ps:
            _, sequence = self._end_by.popleft()
            self._cancel(sequence, "timeout", f"no end within {patience.total_ns / 1e9:g} s")
        if now_ps >= self._drained_by:
            self._cancel_all(f"still in flight {patience.drain_ns / 1e9:g} s after the last request was sent")

    def _cancel_all(self, error: str) -> None:
        state = self.scheduler.state
        for sequence in [*state.running, *state.swapped, *state.waiting]:
            self._cancel(sequence, "cancelled", error)

    def _cancel(self, sequence: Sequence, outcome: Literal["timeout", "cancelled"], error: str) -> None:
        if sequence.finish_reason is None:
            self._drop(sequence, FinishReason.CANCELLED, Failure(outcome, error))

    def _drop(self, sequence: Sequence, reason: FinishReason, failure: Failure) -> None:
        self.scheduler.cancel(sequence, reason)
        self._has_news = True
        stamps = self._accountant.drop(sequence)
        now_ns = self.clock.now_ns
        self._listener.failed(sequence, failure, now_ns, stamps)
        self._answer(sequence)

    def _next_event_ps(self) -> int:
        """Return when something other than a step next happens."""
        event_ps = min(self._next_of_client_ps(), self._drained_by)
        for queue in (self._first_token_by, self._end_by):
            # Most patience is never needed: what has been answered by now ends nothing.
            while queue and queue[0][1].finish_reason is not None:
                queue.popleft()
            if queue:
                event_ps = min(event_ps, queue[0][0])
        if (deadline_ns := self._door.next_deadline_ns()) is not None:
            event_ps = min(event_ps, deadline_ns * PS_PER_NS)
        return event_ps

    def _next_of_client_ps(self) -> int:
        """Return when the next request arrives, or an answer that may release one."""
        client_ns = self._next_due_ns + self._delays.inbound_ns
        if self._answers and self._answers[0][0] < client_ns:
            client_ns = self._answers[0][0]
        return min(client_ns, NEVER_NS) * PS_PER_NS

    def _step(self) -> None:
        start_ps, scheduler = self.clock.now_ps, self.scheduler
        self._has_news = False
        plan = self._last = scheduler.schedule()
        load = self._accountant.decide(plan, start_ps)
        token_ids = self._executor.execute(plan, load)
        end_ps = self.clock.now_ps
        if end_ps == start_ps:
            raise InvariantError(f"I4 work conservation: a step that takes no time: {load}")
        for sequence in plan.admitted:
            if sequence.first_scheduled_ns is None:
                sequence.first_scheduled_ns = to_ns(start_ps)
        hidden = self._hidden(plan)
        num_finished = scheduler.num_finished
        emissions = scheduler.postprocess(plan, token_ids)
        self._accountant.finish(plan, end_ps)
        self._door.observe(plan, to_ns(end_ps) - to_ns(start_ps))
        if scheduler.num_finished > num_finished:
            for sequence, _, reason in emissions:
                if reason is not None:
                    self._complete(sequence)
        self.num_steps += 1
        if self._steps is not None:
            self._steps.add(scheduler, plan, load, start_ps, end_ps)
        if self._checker is not None:
            plan.scheduled += hidden
            self._checker.check(plan)

    def _hidden(self, plan: StepPlan) -> list[Scheduled]:
        """List the decodes of the step that it does not list itself, where somebody checks it."""
        if self._checker is None or not plan.cohort_seqs:
            return []
        return [Scheduled(sequence, 1) for sequence in filter(is_member, self.scheduler.state.running)]

    def _jump(self) -> bool:
        """Run steady steps up to the next event; False where not one is sure."""
        scheduler, start_ps = self.scheduler, self.clock.now_ps
        if not isinstance(scheduler, SteadyScheduler):
            return False
        most, load = scheduler.steady_steps(self._last)
        within_ps = self._next_event_ps() - start_ps
        if most < 1 or within_ps <= 0:
            return False
        growth, steps = len(scheduler.state.running), self._steps
        costs = self._cost.costs_of_decodes_ps(load, growth, most, within_ps)
        ends = list(accumulate(costs, initial=start_ps))[1:]
        before = None if steps is None else steps.state_of(scheduler)
        ended, taken = scheduler.repeat(len(costs))
        self._accountant.repeat(ends, costs, taken)
        if before is not None and steps is not None:
            blocked = self._last.blocked if before[0] else None
            steps.add_run(before, blocked, load, growth, start_ps, ends, taken)
            if ended:
                steps.correct_last(scheduler)
        if self.config.door.max_wait_s:
            plan = StepPlan(budget=0, num_decodes=growth)
            for start, end in zip([start_ps, *ends], ends, strict=False):
                self._door.observe(plan, to_ns(end) - to_ns(start))
        self.clock.now_ps = ends[-1]
        for sequence in ended:
            self._complete(sequence)
        self.num_steps += len(costs)
        return True

    def _complete(self, sequence: Sequence) -> None:
        self._listener.completed(sequence, self._accountant.close(sequence))
        self._answer(sequence)

    def _answer(self, sequence: Sequence) -> None:
        """Let the client know of an end, once the way back has been gone."""
        ended_ns = self.clock.now_ps // PS_PER_NS
        self._answers.append((ended_ns + self._delays.outbound_ns, sequence.handle))
