"""An executor that computes nothing: a step takes what a cost model says, on a clock of its own.

The clock counts picoseconds and moves only when a step is run; nothing here reads the time of day, so that
the same plan gives the same run on any machine, however busy.
"""

from __future__ import annotations

from reference_engine.cost import PS_PER_NS, CostModel
from reference_engine.scheduler import STAND_IN
from reference_engine.step import Load, StepPlan


def to_ns(instant_ps: int) -> int:
    """Round an instant to nanoseconds; instants are sums of whole picoseconds, rounded only here."""
    return (instant_ps + PS_PER_NS // 2) // PS_PER_NS


class VirtualClock:
    """Picoseconds that pass only when somebody says so."""

    __slots__ = ("now_ps",)

    def __init__(self) -> None:
        self.now_ps = 0

    @property
    def now_ns(self) -> int:
        return to_ns(self.now_ps)


class SimulatedExecutor:
    """Passes the time of each step; the tokens that come out are all the same."""

    def __init__(self, cost: CostModel, clock: VirtualClock) -> None:
        self._cost = cost
        self._clock = clock

    def execute(self, plan: StepPlan, load: Load) -> list[int]:
        """Pass the time of a step that has not been taken in yet, and return its stand-in tokens."""
        self._clock.now_ps += self._cost.cost_ps(load)
        tokens = [STAND_IN] * len(plan.scheduled)
        if any(len(s.tokens) - s.num_computed != num_tokens for s, num_tokens in plan.prefills):
            for i, (sequence, num_tokens) in enumerate(plan.scheduled):
                if len(sequence.tokens) - sequence.num_computed != num_tokens:
                    tokens[i] = -1
        return tokens
