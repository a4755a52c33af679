"""What was published of schedulers and needs long runs: the same signs in virtual time, tolerances loose.

Each test names its source. What was measured there depends on a machine; what is asserted here are directions
and thresholds that follow from the scheduler.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from reference_engine.account import BUCKETS
from reference_engine.config import EngineConfig
from reference_engine.steplog import STEP_COLUMNS
from tests.reference_engine.simulated import Outcomes, make_plan, simulate
from tests.reference_engine.test_accounting import CONFIG as TIGHT
from tests.reference_engine.test_accounting import spent_s
from tests.reference_engine.test_oracles import backlog_slope
from workloads.plan import Plan

BIG = EngineConfig(kv_tokens=1_000_000, max_batch=256, chunk_tokens=512, max_model_len=8192)


def poisson(rate_per_s: float, n: int, prompt: int, mean_output: int, seed: int = 0) -> Plan:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, n))
    return make_plan(arrivals, prompt, rng.geometric(1 / mean_output, n))


def column(outcomes: Outcomes, name: str) -> NDArray[np.int64]:
    assert outcomes.steps is not None
    return np.asarray(outcomes.steps[:, STEP_COLUMNS.index(name)], np.int64)


def test_prompts_that_fill_the_time_starve_decodes_while_memory_is_free() -> None:
    """sgl-project/sglang#32549: under prefill-first, decodes stop where prompts take all the time."""
    prompt_s = 4000 * 40e-6
    plan = poisson(1.3 / prompt_s, 150, 4000, 60)
    cost = "affine(base=8ms,per_seq=0.1ms,per_token=40us)"
    outcomes = simulate(replace(BIG, kv_tokens=2_000_000, policy="vllm-v0"), plan, cost, has_steps=True)
    during = column(outcomes, "end_ns") < plan.arrival_ns[-1]
    prompts, decodes = (column(outcomes, name)[during] > 0 for name in ("prefill_tokens", "decode_seqs"))
    took = (column(outcomes, "end_ns") - column(outcomes, "start_ns"))[during]
    assert took[prompts].sum() > 0.9 * took.sum()
    assert decodes.sum() < 0.8 * prompts.sum()  # 60 tokens each, and not one decode step for each prompt
    used, free = (column(outcomes, name)[during].astype(float) for name in ("kv_used", "kv_free"))
    assert float(np.average(used / (used + free), weights=took)) < 0.5
    mixed = simulate(replace(BIG, kv_tokens=2_000_000, policy="sarathi"), plan, cost)
    stalled = max(np.diff(stamps).max() for stamps in outcomes.stamps_ns.values() if len(stamps) > 1)
    assert stalled > 10 * max(np.diff(s).max() for s in mixed.stamps_ns.values() if len(s) > 1)


def test_few_are_evicted_and_they_make_the_tail() -> None:
    """Llumnix, motivation: 8 % of requests preempted, and preemption most of the P99 latency."""
    knobs: dict[str, int | float | bool | str] = {"requeue": "back", "victim": "fewest-emitted"}
    config = replace(TIGHT, kv_tokens=4200, max_batch=32, chunk_tokens=512, knobs=knobs)
    arrivals = np.cumsum(np.random.default_rng(4).exponential(1 / 8.6, 800))
    plan = make_plan(arrivals, 200, 120)
    outcomes = simulate(config, plan, "affine(base=8ms,per_seq=0.2ms,per_token=100us)")
    e2e = outcomes.latencies(plan)
    lost = np.sum([outcomes.column(name) for name in ("preempted", "recompute")], axis=0)
    slowest = np.argsort(e2e)[-8:]
    share, share_of_tail = lost.sum() / e2e.sum(), lost[slowest].sum() / e2e[slowest].sum()
    assert share < 0.2
    assert share_of_tail > max(0.4, 2 * share)


def test_knowing_the_length_helps_the_mean_and_the_longest_pay() -> None:
    """vllm-ltr, FastServe: the oracle beats a prediction, which beats first come first served."""
    config = replace(BIG, max_batch=8)
    rng = np.random.default_rng(3)
    lengths = rng.lognormal(np.log(60), 1.0, 1500).astype(int).clip(1, 2000)
    rate = 0.9 * 8 / (lengths.mean() * 0.010)
    plan = make_plan(np.cumsum(rng.exponential(1 / rate, 1500)), 10, lengths)
    e2e = {}
    for order in ("fcfs", "sjf-predicted", "sjf-oracle"):
        outcomes = simulate(replace(config, knobs={"order": order}), plan, "affine(base=8ms,per_seq=0.25ms)")
        e2e[order] = outcomes.latencies(plan) / 1e9
    assert e2e["sjf-oracle"].mean() < e2e["sjf-predicted"].mean() < e2e["fcfs"].mean()
    longest = lengths >= np.quantile(lengths, 0.9)
    assert np.quantile(e2e["sjf-oracle"][longest], 0.99) > np.quantile(e2e["fcfs"][longest], 0.99)


def test_a_load_exists_that_mixed_batches_carry_and_others_do_not() -> None:
    """Li, Dai and Peng, arXiv 2504.07347: vanilla vLLM and FasterTransformer are not maximally stable."""
    config = replace(BIG, max_batch=16, chunk_tokens=64)
    cost = "affine(base=8ms,per_token=0.01us)"  # a step costs the same up to its budget
    rate = 0.8 * 16 / (0.008 * 41)  # of what 16 slots can carry when the prompt rides along
    plan = poisson(rate, 2000, 40, 40, seed=1)
    slopes = {policy: backlog_slope(replace(config, policy=policy), plan, cost) for policy in
              ("vllm-v1", "vllm-v0", "static")}  # fmt: skip
    assert abs(slopes["vllm-v1"]) < 0.03 * rate
    assert slopes["static"] > 0.1 * rate
    assert slopes["vllm-v0"] > 0.03 * rate


@pytest.mark.parametrize("penalty_ms", [0, 30])
def test_mixing_wins_until_a_mixed_step_costs_extra(penalty_ms: int) -> None:
    """arXiv 2606.00516: with a penalty on mixed steps, steps of one kind are the better ones."""
    plan = poisson(4.0, 800, 400, 60, seed=2)
    cost = f"affine(base=8ms,per_seq=0.1ms,per_token=20us,mixed={penalty_ms}ms)"
    mean = {
        policy: float(simulate(replace(BIG, policy=policy), plan, cost).latencies(plan).mean())
        for policy in ("vllm-v1", "vllm-v0")
    }
    assert (mean["vllm-v1"] < mean["vllm-v0"]) is (penalty_ms == 0)


def test_the_account_of_the_longest_decile_says_who_went_first() -> None:
    """What shortest-first does to the longest is waiting for a slot, and nothing else."""
    config = replace(BIG, max_batch=8)
    rng = np.random.default_rng(3)
    lengths = rng.lognormal(np.log(60), 1.0, 1500).astype(int).clip(1, 2000)
    plan = make_plan(np.cumsum(rng.exponential(lengths.mean() * 0.010 / 7.2, 1500)), 10, lengths)
    rows = np.flatnonzero(lengths >= np.quantile(lengths, 0.9)).tolist()
    found, rest = (
        spent_s(simulate(replace(config, knobs={"order": order}), plan), rows)
        for order in ("sjf-oracle", "fcfs")
    )
    excess = {name: found[name] - rest[name] for name in BUCKETS}
    assert excess["wait_slot"] > 0.7 * sum(excess.values()) > 0
