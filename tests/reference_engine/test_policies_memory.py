"""What policies do about memory: who is let in, who is evicted, what comes back. In virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reference_engine.config import EngineConfig
from reference_engine.policies import POLICIES, make_policy
from reference_engine.policies.admission import peak_tokens
from tests.reference_engine.policy_runs import CONFIG, MS, engine_for, request
from tests.reference_engine.stub import Simulated, run_to_end, simulate, stub_engine

# Memory (A.2, A.7, A.8; checks 3, 11, 12; G1, G2).


def admitted_at_once(config: EngineConfig, prompt: int, output: int) -> int:
    engine = stub_engine(config)
    for _ in range(config.max_batch):
        engine.add(request(prompt, output))
    engine.scheduler.schedule()
    return len(engine.scheduler.state.running)


def test_paged_memory_admits_what_reservation_of_the_context_cannot() -> None:
    config = EngineConfig(
        policy="orca",
        kv_tokens=30_832 * 16,
        block_tokens=16,
        max_model_len=131_072,
        max_batch=4096,
        chunk_tokens=1 << 20,
        knobs={"reserve": "context"},
    )
    assert admitted_at_once(config, 127, 1) == 3
    assert admitted_at_once(replace(config, policy="vllm-v1", knobs={}), 128, 1) == 3854


@pytest.mark.parametrize(("reserve", "expected"), [("context", 2), ("pow2", 14), ("declared", 22)])
def test_reservations_differ_in_how_much_they_hold_back(reserve: str, expected: int) -> None:
    config = replace(CONFIG, policy="orca", kv_tokens=2048, max_batch=64, knobs={"reserve": reserve})
    assert admitted_at_once(config, 12, 80) == expected


def pressed(policy: str, config: EngineConfig | None = None, **knobs: Any) -> Simulated:
    """More answers than memory: 24 requests that grow to 104 tokens in a pool of 640."""
    tight = replace(config or CONFIG, kv_tokens=640, chunk_tokens=64, max_model_len=256)
    load = [request(24, 80, at_ms=4 * i) for i in range(24)]
    return simulate(engine_for(policy, config=tight, **knobs), load)


def test_only_policies_that_gamble_on_memory_evict() -> None:
    evictions = {policy: pressed(policy).num_preemptions for policy in POLICIES}
    assert evictions["vllm-v1"] > 10
    assert evictions["sglang"] > 0
    assert {p for p, n in evictions.items() if n == 0} == {"static", "orca", "no-evict"}


def test_no_evict_admits_more_than_reserving_does() -> None:
    assert pressed("no-evict", decode_interval=0).span_ns <= pressed("orca").span_ns


def test_a_watermark_buys_fewer_evictions() -> None:
    evictions = [pressed("vllm-v1", watermark=w).num_preemptions for w in (0.0, 0.1, 0.3)]
    assert evictions[0] > evictions[1] >= evictions[2]


def test_sglang_raises_its_guess_after_a_retraction_and_lowers_it_while_it_holds() -> None:
    engine = engine_for("sglang", config=replace(CONFIG, kv_tokens=640, max_model_len=256))
    admission = engine.scheduler.policy.admission
    before = vars(admission)["ratio"]
    engine.add(request(output=200))
    for _ in range(100):
        engine.step()
    assert vars(admission)["ratio"] < before
    run_to_end(engine)
    engine.add(request(output=1))
    engine.step()
    assert vars(admission)["ratio"] == before  # nothing runs: as at the start


def test_sglang_retracts_to_the_back_and_vllm_to_the_front() -> None:
    assert make_policy(replace(CONFIG, policy="sglang")).eviction.requeue == "back"
    assert make_policy(replace(CONFIG, policy="vllm-v1")).eviction.requeue == "front"


def thrash(*, whole_prompt: bool) -> Simulated:
    """Long prompts hold most of the memory when another of their size arrives (G1)."""
    config = replace(CONFIG, kv_tokens=1088, chunk_tokens=64, max_model_len=512)
    load = [request(240, 60) for _ in range(4)] + [request(240, 60, at_ms=80)]
    return simulate(engine_for("vllm-v1", config=config, whole_prompt=whole_prompt), load)


def test_admission_by_first_chunk_thrashes_and_by_whole_prompt_does_not() -> None:
    by_chunk, by_prompt = thrash(whole_prompt=False), thrash(whole_prompt=True)
    recomputed = [sum(r.num_recomputed for r in result.requests) for result in (by_chunk, by_prompt)]
    assert recomputed[0] > 3 * recomputed[1]
    assert by_chunk.span_ns > by_prompt.span_ns


def test_a_heavy_head_blocks_the_light_unless_they_may_pass() -> None:
    ttft = {}
    for window in (0, 2):
        config = replace(CONFIG, kv_tokens=512, max_model_len=512)
        load = [request(100, 150), request(440, 4, at_ms=10), request(8, 4, at_ms=11)]
        result = simulate(engine_for("vllm-v1", config=config, skip_window=window), load)
        ttft[window] = result.ttft_ns(load[2])
    assert ttft[0] > 100 * MS
    assert ttft[2] < 10 * MS


def test_peak_memory_is_that_of_running_everybody_to_the_end() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        residents = [request(int(rng.integers(1, 30)), int(rng.integers(1, 30))) for _ in range(5)]
        by_hand = 0
        for step in range(31):
            alive = [r for r in residents if r.max_tokens >= step]
            by_hand = max(by_hand, sum(r.num_prompt + step for r in alive))
        assert peak_tokens(residents) == by_hand


def test_swap_keeps_what_was_computed() -> None:
    swapped = pressed("vllm-v0", config=replace(CONFIG, swap_tokens=2048), swap=True)
    recomputed = pressed("vllm-v0")
    assert swapped.num_preemptions > 0
    assert sum(r.num_recomputed for r in swapped.requests) == 0
    assert sum(r.num_recomputed for r in recomputed.requests) > 0


def test_what_was_swapped_out_comes_back_only_above_the_watermark() -> None:
    config = replace(CONFIG, swap_tokens=2048)
    num_swaps = [
        pressed("vllm-v0", config=config, swap=True, watermark=w).num_preemptions for w in (0.0, 0.2)
    ]
    assert num_swaps[1] < num_swaps[0]


def test_what_is_swapped_out_comes_back_before_anyone_new() -> None:
    tight = replace(CONFIG, kv_tokens=640, chunk_tokens=64, max_model_len=256, swap_tokens=2048)
    engine = engine_for("vllm-v0", config=tight, swap=True)
    for sequence in (request(24, 80) for _ in range(24)):
        engine.add(sequence)
    num_held_back = 0
    while engine.has_work:
        is_swapped, num_waiting = bool(engine.scheduler.state.swapped), len(engine.scheduler.state.waiting)
        plan = engine.scheduler.schedule()
        if is_swapped:
            assert not any(sequence.num_emitted == 0 for sequence in plan.admitted)
            num_held_back += num_waiting > 0
        engine.scheduler.postprocess(plan, [1 if s.num_missing == n else -1 for s, n in plan.scheduled])
    assert num_held_back > 0


def test_a_full_swap_space_falls_back_to_recomputing() -> None:
    result = pressed("vllm-v0", config=replace(CONFIG, swap_tokens=32), swap=True)
    assert sum(r.num_recomputed for r in result.requests) > 0
