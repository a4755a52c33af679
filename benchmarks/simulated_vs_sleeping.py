"""Simulated against live with the model taken out: the engine's loop on real time, and a model that sleeps.

`python -m benchmarks.simulated_vs_sleeping` prints a Markdown table like that of `simulated_vs_live`, for
each policy below and above capacity. The step times are known, so that what is compared is the scheduler in
its loop: who runs when. The cost model of the simulation is fitted to the engine's steps on another workload.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadgen.drive.dispatch import OpenSchedule, split_plan
from reference_engine.account import Account
from reference_engine.config import EngineConfig
from reference_engine.cost import CostModel
from reference_engine.engine import Engine
from reference_engine.fit import fit_profile
from reference_engine.policies import make_policy
from reference_engine.scheduler import STAND_IN, Scheduler
from reference_engine.sequence import Sequence
from reference_engine.simulate import Failure, Simulation
from reference_engine.step import StepPlan
from workloads.plan import Plan

BASE_S, PER_SEQ_S, PER_TOKEN_S = 0.015, 0.001, 0.0002
CONFIG = EngineConfig(kv_tokens=1024, max_batch=8, chunk_tokens=64, max_model_len=256)
POLICIES = ("vllm-v1", "sarathi", "vllm-v0", "sglang", "orca", "static")
NUM_REQUESTS = 220

Stamps = dict[int, list[float]]  # seconds from the start of the run, by row of the plan


class SleepingExecutor:
    """Sleeps for what a step should take."""

    def execute(self, plan: StepPlan) -> list[int]:
        load = plan.load()
        step_s = (
            BASE_S + PER_SEQ_S * (load.decode_seqs + load.prefill_seqs) + PER_TOKEN_S * load.prefill_tokens
        )
        time.sleep(step_s)
        return [STAND_IN if sequence.num_missing == n else -1 for sequence, n in plan.scheduled]


def make_plan(seed: int, rate_per_s: float, prompt: float, output: float) -> Plan:
    rng = np.random.default_rng(seed)
    arrival_ns = np.cumsum(rng.exponential(1e9 / rate_per_s, NUM_REQUESTS)).astype(np.int64)
    prompts = 1 + rng.geometric(1 / prompt, NUM_REQUESTS).clip(max=120)
    outputs = 1 + rng.geometric(1 / output, NUM_REQUESTS).clip(max=120)
    return Plan.of(arrival_ns, prompts.astype(np.int32), outputs.astype(np.int32))


def run_live(config: EngineConfig, plan: Plan) -> tuple[Engine, Stamps]:
    """Send the plan in real time to an engine in this process."""
    engine = Engine(config, Scheduler(config, make_policy(config)), SleepingExecutor(), time.monotonic_ns)
    stamps: Stamps = {row: [] for row in range(len(plan))}
    start_ns, row = time.monotonic_ns(), 0
    while row < len(plan) or engine.has_work:
        now_ns = time.monotonic_ns() - start_ns
        while row < len(plan) and plan.arrival_ns[row] <= now_ns:
            engine.add(sequence_of(plan, row, start_ns))
            row += 1
        if not engine.has_work:
            time.sleep(max(0, int(plan.arrival_ns[row]) - now_ns) / 1e9)
            continue
        for sequence, _, _ in engine.step():
            stamps[sequence.handle].append((time.monotonic_ns() - start_ns) / 1e9)
    return engine, stamps


def sequence_of(plan: Plan, row: int, start_ns: int) -> Sequence:
    prompt = int(plan.prompt_tokens[row])
    return Sequence(
        handle=row,
        request_id=str(row),
        tokens=[STAND_IN] * prompt,
        num_prompt=prompt,
        max_tokens=int(plan.output_tokens[row]),
        arrived_ns=start_ns + int(plan.arrival_ns[row]),
    )


@dataclass(slots=True)
class Stamper:
    """A listener that keeps the stamps."""

    stamps: Stamps

    def sent(self, row: int, scheduled_ns: int, sent_ns: int) -> None: ...

    def completed(self, sequence: Sequence, account: Account) -> None:
        self.stamps[sequence.handle] = [stamp / 1e12 for stamp in account.stamps]

    def failed(self, sequence: Sequence, failure: Failure, at_ns: int, stamps_ps: list[int]) -> None:
        raise AssertionError(f"{sequence}: {failure} at {at_ns} after {len(stamps_ps)} tokens")


def run_simulated(config: EngineConfig, plan: Plan, cost: CostModel) -> Stamps:
    listener = Stamper({})
    Simulation(config, cost, plan, OpenSchedule(split_plan(plan, 1)[0], 0), listener).run()
    return listener.stamps


def figures(plan: Plan, stamps: Stamps) -> NDArray[np.float64]:
    """Return p50 and p99 of TTFT and of the gaps, in milliseconds."""
    ttft = [stamps[row][0] - plan.arrival_ns[row] / 1e9 for row in range(len(plan))]
    gaps = np.concatenate([np.diff(stamps[row]) for row in range(len(plan))])
    return 1e3 * np.concatenate([np.quantile(values, (0.5, 0.99)) for values in (ttft, gaps)])


def main() -> None:
    fitted, _ = run_live(CONFIG, make_plan(1, 6.0, 60, 30))
    profile = fit_profile(fitted.log.steps(), CONFIG, "sleeping")
    print("| policy | rate /s | TTFT p50, ms | TTFT p99, ms | ITL p50, ms | ITL p99, ms |")
    print("|---|---|---|---|---|---|")
    for rate in (12.0, 26.0):
        medians: dict[str, NDArray[np.float64]] = {}
        for policy in POLICIES:
            config, plan = replace(CONFIG, policy=policy), make_plan(2, rate, 30, 15)
            live = figures(plan, run_live(config, plan)[1])
            simulated = figures(plan, run_simulated(config, plan, profile.cost))
            cells = " | ".join(
                f"{a:.1f} ({(b / a - 1) * 100:+.1f} %)" for a, b in zip(live, simulated, strict=True)
            )
            print(f"| {policy} | {rate:g} | {cells} |", flush=True)
            medians[policy] = np.array([live[0], simulated[0]])
        live_order, simulated_order = (sorted(POLICIES, key=lambda p: medians[p][i]) for i in (0, 1))
        print(f"\n{rate:g} /s, by median TTFT: live {' < '.join(live_order)}")
        is_same = live_order == simulated_order
        print(f"simulated: {'the same order' if is_same else ' < '.join(simulated_order)}\n")


if __name__ == "__main__":
    main()
