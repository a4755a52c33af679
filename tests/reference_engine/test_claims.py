"""What papers and issue trackers say of schedulers, in virtual time: directions and sizes, not their numbers.

Sources: Sarathi-Serve (OSDI 2024) for capacity under a limit on gaps and for the ablation, PagedAttention
(SOSP 2023) for useful memory, vLLM's issues 44594 and 37307 for the watermark and for admission by chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reference_engine.config import EngineConfig
from reference_engine.steplog import STEP_COLUMNS
from tests.reference_engine.simulated import Outcomes, make_plan, simulate
from workloads.plan import Plan

COST = "affine(base=8ms,per_seq=0.1ms,per_token=0.03ms)"
DECODE_S = 0.010  # a step of about 20 decodes
CONFIG = EngineConfig(kv_tokens=1 << 20, max_batch=128, max_model_len=8192, chunk_tokens=512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Seconds of one run: of gaps between tokens and to the first."""

    gap_p99: float
    ttft_p50: float


def chat(policy: str, rate: float, chunk_tokens: int, **knobs: Any) -> Seen:
    """Poisson arrivals of prompts of 1,000 tokens, answers of 50 to 150."""
    rng = np.random.default_rng(1)
    plan = make_plan(np.cumsum(rng.exponential(1 / rate, 300)), 1000, rng.integers(50, 150, 300))
    config = replace(CONFIG, policy=policy, chunk_tokens=chunk_tokens, knobs=knobs)
    outcomes = simulate(config, plan, COST)
    gaps_ns = np.concatenate([np.diff(stamps) for stamps in outcomes.stamps_ns.values()])
    return Seen(
        gap_p99=float(np.quantile(gaps_ns, 0.99)) / 1e9,
        ttft_p50=float(np.median(outcomes.latencies(plan, 0))) / 1e9,
    )


def capacity_per_s(policy: str, chunk_tokens: int, gap_limit_s: float) -> float:
    """Return the highest rate at which gaps keep their limit and nobody waits for long."""
    low, high = 0.05, 16.0
    for _ in range(7):
        rate = (low * high) ** 0.5
        seen = chat(policy, rate, chunk_tokens)
        low, high = (rate, high) if seen.gap_p99 <= gap_limit_s and seen.ttft_p50 < 1 else (low, rate)
    return low


def test_chunks_carry_more_load_under_a_strict_limit_and_as_much_under_a_loose_one() -> None:
    ratios = [
        capacity_per_s("sarathi", chunk_tokens, limit * DECODE_S)
        / capacity_per_s("vllm-v0", chunk_tokens, limit * DECODE_S)
        for limit, chunk_tokens in ((5, 512), (25, 2048))
    ]
    assert ratios[0] >= 1.5
    assert ratios[1] == pytest.approx(1, abs=0.25)


def test_mixing_alone_and_chunking_alone_each_help_one_side() -> None:
    mixing, chunking, both = (
        chat("orca", 4, 256),
        chat("sglang", 4, 256, decode_interval=1),
        chat("sarathi", 4, 256),
    )
    assert mixing.ttft_p50 < both.ttft_p50 < chunking.ttft_p50
    assert both.gap_p99 < chunking.gap_p99 < mixing.gap_p99


def column(outcomes: Outcomes, name: str) -> NDArray[np.int64]:
    assert outcomes.steps is not None
    values: NDArray[np.int64] = outcomes.steps[:, STEP_COLUMNS.index(name)]
    return values


def span_s(outcomes: Outcomes) -> float:
    return max(stamps[-1] for stamps in outcomes.stamps_ns.values()) / 1e9


def test_reserving_the_context_wastes_memory_and_throughput() -> None:
    config = replace(CONFIG, kv_tokens=16_384, max_batch=256, max_model_len=2048, chunk_tokens=2048)
    rng = np.random.default_rng(3)
    plan = make_plan(np.zeros(300), rng.integers(50, 250, 300), rng.integers(50, 250, 300))
    useful, residents, tokens_per_s = [], [], []
    for fields in ({"policy": "orca", "knobs": {"reserve": "context"}}, {"policy": "vllm-v1"}):
        outcomes = simulate(replace(config, **fields), plan, COST, has_steps=True)
        ticks = column(outcomes, "end_ns") - column(outcomes, "start_ns")
        ticks = np.where(column(outcomes, "waiting") > 0, ticks, 0)
        share = column(outcomes, "decode_context") / (column(outcomes, "kv_used") * config.block_tokens + 1)
        useful.append(np.average(share, weights=ticks))
        residents.append(np.average(column(outcomes, "running"), weights=ticks))
        tokens_per_s.append(plan.output_tokens.sum() / span_s(outcomes))
    assert useful[0] < 0.4
    assert useful[1] > 0.9
    footprint = float((plan.prompt_tokens + plan.output_tokens / 2).mean())
    gain = residents[1] / residents[0]
    assert gain == pytest.approx(config.max_model_len / footprint, rel=0.2)
    assert 1 < tokens_per_s[1] / tokens_per_s[0] < gain


def test_a_watermark_trades_evictions_for_waiting_with_a_best_in_between() -> None:
    config = replace(CONFIG, kv_tokens=24_000, max_model_len=4096, chunk_tokens=2048)
    plan = make_plan(np.zeros(600), 100, np.random.default_rng(5).integers(100, 900, 600))
    evictions, speeds, waits_s = [], [], []
    for watermark in (0.0, 0.02, 0.05, 0.15, 0.4):
        outcomes = simulate(replace(config, knobs={"watermark": watermark}), plan, COST, concurrency=128)
        evictions.append(sum(outcomes.preemptions.values()))
        speeds.append(1 / span_s(outcomes))
        firsts = [stamps[0] - outcomes.sent_ns[row] for row, stamps in outcomes.stamps_ns.items()]
        waits_s.append(float(np.median(firsts)) / 1e9)
    assert evictions == sorted(evictions, reverse=True)
    assert evictions[0] > 10 * evictions[-1]
    assert 0 < int(np.argmax(speeds)) < len(speeds) - 1
    assert waits_s[-1] > 1.5 * waits_s[0]


def residents_tokens_per_s(plan: Plan, *, whole_prompt: bool) -> float:
    """Return how fast the first four decode from 200 ms after the fifth came until one of them ends."""
    config = replace(CONFIG, kv_tokens=4800, max_model_len=4096, chunk_tokens=256)
    config = replace(config, knobs={"whole_prompt": whole_prompt})
    outcomes = simulate(config, plan, "affine(base=8ms,per_seq=0.1ms,per_token=0.2ms)")
    stamps = [np.array(outcomes.stamps_ns[row]) for row in range(4)]
    begin_ns, end_ns = int(plan.arrival_ns[4]) + 200_000_000, min(int(s[-1]) for s in stamps)
    num_tokens = sum(int(((s > begin_ns) & (s <= end_ns)).sum()) for s in stamps)
    return num_tokens / (end_ns - begin_ns) * 1e9


def test_admission_by_first_chunk_starves_the_residents_when_memory_is_full() -> None:
    plan = make_plan([0, 0, 0, 0, 1.0], 1000, 150)
    by_chunk, by_prompt = (residents_tokens_per_s(plan, whole_prompt=whole) for whole in (False, True))
    assert by_chunk / by_prompt <= 0.3
