"""Where the time of each request goes: every tick between its arrival and its last token in one bucket.

Waiting is cut at every decision and labelled by what bound there; a step is cut into own work, batch mates,
prompts of others, swapping and what the cost model does not explain. The cuts telescope: own work is what the
step would cost with this request alone, batch mates what all its decodes cost beyond that, interference what
the prompts add. For a prompt, interference is what other prompts add to it, and batch mates what the decodes
add. It takes O(1) a request and event: residents that decode share running totals, waiting ones clocks.
"""

from __future__ import annotations

from reference_engine.account import (
    ALIGN,
    BATCH,
    HOST,
    INTERFERENCE,
    LABELS,
    MEMORY,
    ORDER,
    OWN,
    PREEMPTED,
    RECOMPUTE,
    STALL_DECODE,
    STALL_PREFILL,
    SWAP,
    TIMES,
    WAITS,
    WORKS,
    Account,
    Amount,
    Measure,
    RoomClock,
    Totals,
)
from reference_engine.policies.base import Policy, State
from reference_engine.sequence import Sequence, Status
from reference_engine.step import Load, StepPlan, pairs_of

MAX_STEP_ENDS = 1 << 12


class Accountant:
    """Follows a scheduler's decisions and charges every request's time."""

    def __init__(self, policy: Policy, state: State, measure: Measure) -> None:
        self._admission = policy.admission
        self._state = state
        self._measure = measure
        self._zero: Amount = measure(Load()) * 0
        self._arrived: list[tuple[Sequence, int]] = []
        self._accounts: dict[int, Account] = {}
        self._prompts: dict[int, Account] = {}
        self._decoding: dict[int, Account] = {}
        self._clocks = [0] * len(WAITS)
        self._room_clock = RoomClock(state.config.num_blocks)
        self._room = 0
        self._label: int | None = None
        self._charged = self._start = self._end = 0
        self._totals = Totals(decodes=self._zero, computed=self._zero, all=self._zero)
        self._solo = [self._zero]
        self._step_ends: list[int] = []
        self._num_forgotten = 0
        self._completing: list[tuple[Sequence, bool]] = []
        self._parts: tuple[Amount, Amount, Amount] = (self._zero, self._zero, self._zero)

    def arrive(self, sequence: Sequence, at: int) -> None:
        """Open the account of a request that arrived at `at`; it is cut at the next decision."""
        self._arrived.append((sequence, at))

    def drop(self, sequence: Sequence) -> list[int]:
        """Forget a request that was cancelled; return when its tokens came out."""
        account = self._accounts.pop(sequence.handle, None)
        if account is None:
            self._arrived = [entry for entry in self._arrived if entry[0] is not sequence]
            return []
        self._leave(sequence.handle, account)
        return account.stamps

    def close(self, sequence: Sequence) -> Account:
        """End the account of a request whose last token came out with the last step."""
        account = self._accounts.pop(sequence.handle)
        self._leave(sequence.handle, account)
        assert account.first is not None
        for spent, end in ((account.first, account.stamps[0]), (account.spent(), account.stamps[-1])):
            assert sum(spent.times) + spent.busy == end - account.arrived, f"time of {sequence} is lost"
        return account

    def decide(self, plan: StepPlan, start: int) -> Load:
        """Take in a decision at `start`, before anything of it is computed; return the step's load."""
        self._charge_waiting(start)
        self._totals.host += start - self._end
        self._start = start
        for sequence, at in self._arrived:
            self._open(sequence, at)
        self._arrived.clear()
        for sequence in plan.preempted:
            self._put_back(sequence)
        for sequence in plan.admitted:
            self._admit(sequence)
        load = plan.load()
        self._parts = self._measure_parts(load)
        self._completing.clear()
        if plan.prefills:
            self._charge_prompts(plan, load)
        self._label = None if plan.blocked is None else LABELS[plan.blocked]
        if self._label == MEMORY:
            self._room = self._admission.room_blocks(self._state)
        return load

    def finish(self, plan: StepPlan, end: int) -> None:
        """Take in that the step of `plan` ended and its tokens are out."""
        ticks, totals = end - self._start, self._totals
        num_decodes = plan.num_decodes
        if num_decodes and num_decodes == len(self._decoding):
            decodes, computed, everything = self._parts
            totals.steps += 1
            totals.busy += ticks
            totals.decodes = totals.decodes + decodes
            totals.computed = totals.computed + computed
            totals.all = totals.all + everything
            self._step_ends.append(end)
        elif num_decodes:
            self._charge_some(plan, ticks, end)
        elif plan.prefills:
            totals.stall_prefill += ticks
        else:
            totals.stall_decode += ticks
        if self._prompts:
            self._finish_prompts(ticks, end)
        self._end = end
        if len(self._step_ends) > MAX_STEP_ENDS:
            self._forget_step_ends()

    def repeat(self, ends: list[int], costs: list[Amount], taken: list[int]) -> None:
        """Take in steady steps: the end and the cost of each, and the blocks taken up to each."""
        if self._label == MEMORY:
            room = self._room
            for start, num_taken in zip((self._end, *ends), taken, strict=False):
                self._charge_waiting(start)
                self._room = room - num_taken
        totals, cost = self._totals, sum(costs, self._zero)
        totals.steps += len(ends)
        totals.busy += ends[-1] - self._end
        totals.decodes = totals.decodes + cost
        totals.computed = totals.computed + cost
        totals.all = totals.all + cost
        self._step_ends += ends
        self._end = ends[-1]
        if len(self._step_ends) > MAX_STEP_ENDS:
            self._forget_step_ends()

    def _charge_waiting(self, now: int) -> None:
        """Charge those who wait for the time since the last decision with what bound there."""
        if self._label is not None:
            self._clocks[self._label] += now - self._charged
            if self._label == MEMORY:
                self._room_clock.add(self._room, now - self._charged)
        self._charged = now

    def _open(self, sequence: Sequence, at: int) -> None:
        times = [0] * len(TIMES)
        times[ALIGN] = max(0, self._end - at)
        times[HOST] = self._start - max(at, self._end)
        need = self._admission.need_blocks(sequence, self._state)
        self._accounts[sequence.handle] = Account(
            arrived=at,
            need=need,
            clocks=tuple(self._clocks),
            roomy=self._room_clock.at_least(need),
            times=times,
            works=[self._zero] * len(WORKS),
            mark=self._totals,
        )

    def _put_back(self, sequence: Sequence) -> None:
        account = self._accounts[sequence.handle]
        if account.is_resident:
            self._leave(sequence.handle, account)
            account.since = self._start

    def _admit(self, sequence: Sequence) -> None:
        account = self._accounts[sequence.handle]
        if sequence.status is not Status.RUNNING:
            return  # evicted by the decision that had admitted it
        times = account.times
        if account.since is not None:
            times[PREEMPTED] += self._start - account.since
        elif account.clocks != (now := tuple(self._clocks)):
            for i, then in enumerate(account.clocks):
                times[i] += now[i] - then
            roomy = self._room_clock.at_least(account.need) - account.roomy
            times[ORDER] += roomy
            times[MEMORY] -= roomy
        account.is_resident = True
        account.mark = self._totals.copy()
        if sequence.is_decoding:
            account.context = sequence.num_computed
            self._decoding[sequence.handle] = account
        else:
            self._prompts[sequence.handle] = account

    def _leave(self, handle: int, account: Account) -> None:
        if self._decoding.pop(handle, None) is not None:
            self._settle(account)
        elif self._prompts.pop(handle, None) is not None:
            account.times[HOST] += self._totals.host - account.mark.host
        account.is_resident = False

    def _measure_parts(self, load: Load) -> tuple[Amount, Amount, Amount]:
        """Return what the step costs with its decodes alone, without copies of blocks, and in all."""
        everything = computed = self._measure(load)
        if load.swap_blocks:
            computed = self._measure(load._replace(swap_blocks=0))
        if not load.prefill_seqs:
            return computed, computed, everything
        return self._measure(Load(load.decode_seqs, load.decode_context)), computed, everything

    def _charge_prompts(self, plan: StepPlan, load: Load) -> None:
        _, computed, everything = self._parts
        prompts = computed
        if load.decode_seqs:
            prompts = self._measure(load._replace(decode_seqs=0, decode_context=0, swap_blocks=0))
        for sequence, num_tokens in plan.prefills:
            before, works = sequence.num_computed, self._prompts[sequence.handle].works
            alone = Load(0, 0, 1, num_tokens, pairs_of(before, num_tokens), 0, load.after_idle)
            own = self._measure(alone)
            num_again = min(sequence.high_water, before + num_tokens) - before
            again = own * 0
            if num_again > 0:
                again = self._measure(Load(0, 0, 1, num_again, pairs_of(before, num_again)))
            works[OWN] = works[OWN] + own - again
            works[RECOMPUTE] = works[RECOMPUTE] + again
            works[INTERFERENCE] = works[INTERFERENCE] + prompts - own
            works[BATCH] = works[BATCH] + computed - prompts
            works[SWAP] = works[SWAP] + everything - computed
            self._completing.append((sequence, before + num_tokens == len(sequence.tokens)))

    def _finish_prompts(self, ticks: int, end: int) -> None:
        if len(self._completing) < len(self._prompts):
            computed = {sequence.handle for sequence, _ in self._completing}
            stall = STALL_PREFILL if computed else STALL_DECODE
            for handle, account in self._prompts.items():
                if handle not in computed:
                    account.times[stall] += ticks
        for sequence, is_complete in self._completing:
            account = self._prompts[sequence.handle]
            account.busy += ticks
            if is_complete:
                account.stamps.append(end)
            if is_complete or sequence.is_decoding:
                self._begin_decoding(sequence, account)

    def _begin_decoding(self, sequence: Sequence, account: Account) -> None:
        account.times[HOST] += self._totals.host - account.mark.host
        if account.first is None and account.stamps:
            account.first = account.spent()
        account.mark = self._totals.copy()
        account.context = sequence.num_computed
        del self._prompts[sequence.handle]
        self._decoding[sequence.handle] = account

    def _settle(self, account: Account) -> None:
        """Charge a decoding resident for all steps since its mark."""
        mark, now, times, works = account.mark, self._totals, account.times, account.works
        times[HOST] += now.host - mark.host
        times[STALL_PREFILL] += now.stall_prefill - mark.stall_prefill
        times[STALL_DECODE] += now.stall_decode - mark.stall_decode
        if steps := now.steps - mark.steps:
            decodes, computed = now.decodes - mark.decodes, now.computed - mark.computed
            own = self._solo_work(account.context + steps) - self._solo_work(account.context)
            works[OWN] = works[OWN] + own
            works[BATCH] = works[BATCH] + decodes - own
            works[INTERFERENCE] = works[INTERFERENCE] + computed - decodes
            works[SWAP] = works[SWAP] + (now.all - mark.all) - computed
            account.busy += now.busy - mark.busy
            account.context += steps
            first = mark.steps - self._num_forgotten
            account.stamps += self._step_ends[first : first + steps]
        account.mark = now.copy()

    def _solo_work(self, num_computed: int) -> Amount:
        """Return the cost of decoding alone from nothing to `num_computed` tokens, a token a step."""
        solo = self._solo
        while len(solo) <= num_computed:
            solo.append(solo[-1] + self._measure(Load(1, len(solo))))
        return solo[num_computed]

    def _charge_some(self, plan: StepPlan, ticks: int, end: int) -> None:
        """Charge a step in which some decoding residents took part and some had to stand by."""
        decodes, computed, everything = self._parts
        taking_part = {sequence.handle for sequence, _ in plan.scheduled}
        for handle, account in self._decoding.items():
            self._settle(account)
            if handle not in taking_part:
                account.times[STALL_PREFILL if plan.prefills else STALL_DECODE] += ticks
                continue
            works, context = account.works, account.context
            own = self._solo_work(context + 1) - self._solo_work(context)
            works[OWN] = works[OWN] + own
            works[BATCH] = works[BATCH] + decodes - own
            works[INTERFERENCE] = works[INTERFERENCE] + computed - decodes
            works[SWAP] = works[SWAP] + everything - computed
            account.busy += ticks
            account.context += 1
            account.stamps.append(end)

    def _forget_step_ends(self) -> None:
        for account in self._decoding.values():
            self._settle(account)
        self._num_forgotten = self._totals.steps
        self._step_ends.clear()
