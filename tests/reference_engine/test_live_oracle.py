"""The live engine on real time, with a model that sleeps: what it does is what the simulator says.

A step sleeps until base + per_seq * batch have passed since it began, so that what differs from the simulator
is the engine's own time, and how late it is woken up: tolerances grow with what was seen of that.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.fit import fit_account
from reference_engine.policies import make_policy
from reference_engine.scheduler import STAND_IN, Scheduler
from reference_engine.step import StepPlan
from reference_engine.steplog import write_logs
from tests.reference_engine.simulated import make_plan, simulate
from tests.reference_engine.stub import make_sequence
from workloads.plan import Plan

BASE_NS, PER_SEQ_NS = 15_000_000, 1_000_000
CONFIG = EngineConfig(kv_tokens=4096, max_batch=8, chunk_tokens=64, max_model_len=256)


class SleepingExecutor:
    """Takes its time, and returns stand-in tokens."""

    def __init__(self) -> None:
        self.asked_ns = self.slept_ns = 0

    @property
    def lateness(self) -> float:
        """How much longer all sleeps took than asked for, as a share."""
        return self.slept_ns / self.asked_ns - 1

    def execute(self, plan: StepPlan) -> list[int]:
        asked_ns, start_ns = BASE_NS + PER_SEQ_NS * len(plan.scheduled), time.monotonic_ns()
        time.sleep(asked_ns / 1e9)
        self.asked_ns += asked_ns
        self.slept_ns += time.monotonic_ns() - start_ns
        return [STAND_IN if sequence.num_missing == n else -1 for sequence, n in plan.scheduled]


def run_live(plan: Plan, executor: SleepingExecutor) -> tuple[Engine, int]:
    """Send the plan in real time; return the engine and when the run began."""
    engine = Engine(CONFIG, Scheduler(CONFIG, make_policy(CONFIG)), executor, time.monotonic_ns)
    start_ns, row = time.monotonic_ns(), 0
    while row < len(plan) or engine.has_work:
        now_ns = time.monotonic_ns() - start_ns
        while row < len(plan) and plan.arrival_ns[row] <= now_ns:
            arrived_ns = start_ns + int(plan.arrival_ns[row])
            prompt = [1] * int(plan.prompt_tokens[row])
            engine.add(make_sequence(prompt, int(plan.output_tokens[row]), arrived_ns=arrived_ns))
            row += 1
        if engine.has_work:
            engine.step()
        else:
            time.sleep(max(0, int(plan.arrival_ns[row]) - now_ns) / 1e9)
    return engine, start_ns


@pytest.mark.load
def test_the_live_engine_does_what_the_simulator_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    n = 60
    plan = make_plan(np.cumsum(rng.exponential(0.09, n)), 20, rng.integers(3, 30, n))
    executor = SleepingExecutor()
    engine, start_ns = run_live(plan, executor)
    late = executor.lateness
    cost = f"affine(base={BASE_NS}ns,per_seq={PER_SEQ_NS}ns)"
    simulated = simulate(CONFIG, plan, cost)

    rows = sorted(engine.log.requests, key=lambda row: row.arrived_ns)
    ends_ns = [row.finished_ns for row in rows if row.finished_ns is not None]
    live_s = np.array([end - start_ns - at for end, at in zip(ends_ns, plan.arrival_ns, strict=True)]) / 1e9
    simulated_s = simulated.latencies(plan) / 1e9
    assert np.median(live_s) == pytest.approx(np.median(simulated_s), rel=0.1 + 4 * late)
    assert np.corrcoef(live_s, simulated_s)[0, 1] > 0.95 - late

    weights = fit_account(engine.log.steps())
    assert weights is not None
    write_logs(engine.log, tmp_path, {}, weights)
    table = pq.read_table(tmp_path / "engine_requests.parquet").to_pandas()
    e2e_ns = table["finished_ns"] - table["arrived_ns"]
    assert table["residual_ns"].abs().sum() < (0.1 + late) * e2e_ns.sum()
    waited = sum(simulated.column(f"wait_{name}").sum() for name in ("align", "slot", "budget"))
    live_waited = sum(table[f"wait_{name}_ns"].sum() for name in ("align", "slot", "budget"))
    assert live_waited == pytest.approx(waited, rel=0.3 + 8 * late)
