"""What the tests of the simulator share: plans, runs in virtual time, and what came out of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loadgen.drive.dispatch import ClosedSchedule, OpenSchedule, split_plan
from reference_engine.account import BUCKETS, Account
from reference_engine.config import EngineConfig
from reference_engine.cost import PS_PER_NS, parse_cost
from reference_engine.executors.simulated import to_ns
from reference_engine.sequence import Sequence, Span
from reference_engine.simulate import Delays, Failure, Patience, Simulation
from reference_engine.simulation_log import StepRows
from reference_engine.steplog import split_accounts
from workloads.plan import Plan

AFFINE = "affine(base=8ms,per_seq=0.25ms)"


@dataclass(slots=True)
class Outcomes:
    """A listener that keeps everything: stamps and buckets in ns by request, and who failed."""

    sent_ns: dict[int, int] = field(default_factory=dict)
    stamps_ns: dict[int, list[int]] = field(default_factory=dict)
    accounts: dict[int, Account] = field(default_factory=dict)
    buckets: dict[int, list[int]] = field(default_factory=dict)
    preemptions: dict[int, int] = field(default_factory=dict)
    recomputed: dict[int, int] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    spans: dict[int, list[Span]] = field(default_factory=dict)
    steps: NDArray[np.int64] | None = None
    blocked: list[str | None] | None = None
    num_steps: int = 0

    def sent(self, row: int, scheduled_ns: int, sent_ns: int) -> None:
        assert scheduled_ns <= sent_ns
        self.sent_ns[row] = sent_ns

    def completed(self, sequence: Sequence, account: Account) -> None:
        self.stamps_ns[sequence.handle] = [to_ns(stamp) for stamp in account.stamps]
        self.accounts[sequence.handle] = account
        self.preemptions[sequence.handle] = sequence.num_preemptions
        self.recomputed[sequence.handle] = sequence.num_recomputed
        self.spans[sequence.handle] = sequence.spans

    def failed(self, sequence: Sequence, failure: Failure, at_ns: int, stamps_ps: list[int]) -> None:
        self.failures[sequence.handle] = failure
        self.stamps_ns[sequence.handle] = [*map(to_ns, stamps_ps), at_ns]

    def column(self, bucket: str, *, to_first: bool = False) -> NDArray[np.int64]:
        """Nanoseconds in a bucket, by request that was served, in order of arrival."""
        at = BUCKETS.index(bucket) + (len(BUCKETS) if to_first else 0)
        return np.array([self.buckets[row][at] for row in sorted(self.buckets)], np.int64)

    def latencies(self, plan: Plan, at: int = -1) -> NDArray[np.int64]:
        """Nanoseconds from arrival to the first token (at=0) or the last (at=-1), in order of arrival."""
        return np.array([self.stamps_ns[row][at] - plan.arrival_ns[row] for row in sorted(self.buckets)])


def make_plan(arrival_s: ArrayLike, prompts: ArrayLike, outputs: ArrayLike) -> Plan:
    arrival_ns = np.rint(np.asarray(arrival_s, float) * 1e9).astype(np.int64)
    shape = arrival_ns.shape
    return Plan.of(
        arrival_ns,
        np.broadcast_to(np.asarray(prompts, np.int32), shape).copy(),
        np.broadcast_to(np.asarray(outputs, np.int32), shape).copy(),
    )


def simulate(
    config: EngineConfig,
    plan: Plan,
    cost: str = AFFINE,
    *,
    is_jumping: bool = True,
    patience: Patience | None = None,
    has_steps: bool = False,
    limit: int | None = None,
    concurrency: int | None = None,
    delays: Delays | None = None,
) -> Outcomes:
    """Run a plan to its end and return what happened."""
    outcomes, model = Outcomes(), parse_cost(cost).cost
    steps = StepRows(None, model, {}) if has_steps else None
    (share,) = split_plan(plan, 1)
    schedule = OpenSchedule(share, 0, limit) if concurrency is None else ClosedSchedule(share, 0, concurrency)
    simulation = Simulation(
        config,
        model,
        plan,
        schedule,
        outcomes,
        steps=steps,
        patience=patience,
        delays=delays,
        is_jumping=is_jumping,
    )
    simulation.run()
    outcomes.num_steps = simulation.num_steps
    splits = split_accounts(list(outcomes.accounts.values()), np.asarray, PS_PER_NS)
    outcomes.buckets = {row: split for row, split in zip(outcomes.accounts, splits, strict=True) if split}
    if steps is not None:
        table = steps.flush()
        *names, _ = table.column_names
        outcomes.steps = np.column_stack([table.column(name).to_numpy() for name in names])
        outcomes.blocked = table.column("blocked").to_pylist()
    return outcomes
