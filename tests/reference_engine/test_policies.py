"""What each policy is for, and what it costs, on a stub executor in virtual time.

Times are those of a step of 1 ms plus a price a token, so that a long prompt in one step is a long step.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import pytest

from reference_engine.config import ConfigError, EngineConfig
from reference_engine.engine import Engine
from reference_engine.policies import POLICIES, all_knobs, make_policy
from reference_engine.policies.admission import peak_tokens
from reference_engine.policies.order import FairQueue
from reference_engine.sequence import FinishReason, Sequence
from reference_engine.step import Constraint
from reference_engine.steplog import STEP_COLUMNS
from tests.reference_engine.stub import Simulated, make_sequence, run_to_end, simulate, stub_engine

MS = 1_000_000
STEP_NS, TOKEN_NS = 1 * MS, 50_000
CONFIG = EngineConfig(
    block_tokens=4,
    kv_tokens=8192,
    max_batch=16,
    chunk_tokens=32,
    max_model_len=1024,
    check_invariants=True,
)
LONG_PROMPT = 800


def engine_for(
    policy: str, *, per_token_ns: int = TOKEN_NS, config: EngineConfig = CONFIG, **knobs: Any
) -> Engine:
    return stub_engine(replace(config, policy=policy, knobs=knobs), STEP_NS, per_token_ns)


def request(prompt: int = 4, output: int = 8, at_ms: float = 0, **fields: Any) -> Sequence:
    return make_sequence([1] * prompt, output, arrived_ns=int(at_ms * MS), **fields)


def decodes_and_one_long_prompt() -> list[Sequence]:
    return [request(output=100) for _ in range(4)] + [request(LONG_PROMPT, 4, at_ms=20)]


# Static batching against deciding each step (A.1, A.2; check 1).


def saturated_ratio(lengths: list[int], batch: int, *, padded: bool) -> float:
    """Throughput of vllm-v1 over static, everybody there from the start, every step of the same cost."""
    config = replace(CONFIG, max_batch=batch, kv_tokens=1 << 20, check_invariants=False)
    spans = []
    for policy, knobs in (("static", {"padded": padded}), ("vllm-v1", {})):
        engine = engine_for(policy, per_token_ns=0, config=config, **knobs)
        spans.append(simulate(engine, [request(1, n) for n in lengths]).span_ns)
    return spans[0] / spans[1]


def test_static_loses_nothing_when_all_answers_are_equally_long() -> None:
    assert saturated_ratio([40] * 320, batch=16, padded=True) == pytest.approx(1, abs=0.02)


def test_static_loses_the_harmonic_number_when_lengths_are_geometric() -> None:
    lengths = np.random.default_rng(1).geometric(1 / 60, size=1600).clip(1, 900).tolist()
    expected = sum(1 / k for k in range(1, 9))  # E[longest of 8] / E[length]
    assert saturated_ratio(lengths, batch=8, padded=True) == pytest.approx(expected, rel=0.12)


def test_padding_costs_time_where_rows_cost_time() -> None:
    lengths = [5, 5, 5, 200] * 4
    spans = {
        padded: simulate(engine_for("static", padded=padded), [request(1, n) for n in lengths]).span_ns
        for padded in (True, False)
    }
    assert spans[True] > 1.05 * spans[False]


def test_a_newcomer_waits_for_the_whole_batch_only_under_static() -> None:
    ttft = {}
    for policy in ("static", "orca"):
        load = [request(output=300), request(output=8), request(output=8, at_ms=5)]
        result = simulate(engine_for(policy), load)
        ttft[policy] = result.ttft_ns(load[2])
    assert ttft["static"] > 250 * MS
    assert ttft["orca"] < 3 * MS


def test_static_holds_memory_until_the_batch_ends() -> None:
    engine = engine_for("static")
    run_to_end_of_short = [request(output=2), request(output=50)]
    for sequence in run_to_end_of_short:
        engine.add(sequence)
    used = []
    for _ in range(10):
        engine.step()
        used.append(engine.scheduler.tables.pool.num_used)
    assert run_to_end_of_short[0].finish_reason is FinishReason.LENGTH
    assert len(set(used)) == 1
    run_to_end(engine)
    assert engine.scheduler.tables.pool.num_used == 0


def flapping(policy: str) -> tuple[float, float]:
    """Return how the number of decodes changes from step to step, and how it is spread, over its mean."""
    rng = np.random.default_rng(5)
    load = [request(30, int(n), at_ms=4 * i) for i, n in enumerate(rng.geometric(1 / 40, 200))]
    engine = engine_for(policy)
    simulate(engine, load)
    decodes = engine.log.steps()[20:-200, STEP_COLUMNS.index("decode_seqs")]
    return float(np.abs(np.diff(decodes)).mean() / decodes.mean()), float(decodes.std() / decodes.mean())


def test_the_batch_flaps_where_it_drains_or_prompts_have_steps_of_their_own() -> None:
    change, spread = ({p: flapping(p)[i] for p in ("static", "orca", "vllm-v0", "vllm-v1")} for i in (0, 1))
    assert change["vllm-v0"] > 5 * max(change["orca"], change["vllm-v1"])
    assert spread["static"] > 1.5 * max(spread["orca"], spread["vllm-v1"])


# Prompts against decodes (A.2 to A.6; check 6, G4).


def test_a_whole_prompt_stalls_every_decode_for_its_whole_length() -> None:
    whole_ns = STEP_NS + LONG_PROMPT * TOKEN_NS
    for policy in ("orca", "vllm-v0"):
        load = decodes_and_one_long_prompt()
        result = simulate(engine_for(policy), load)
        for resident in load[:4]:
            assert result.max_gap_ns(resident) == pytest.approx(whole_ns, rel=0.1), policy


@pytest.mark.parametrize(
    ("policy", "knobs"), [("sarathi", {}), ("vllm-v0", {"chunked": True}), ("vllm-v1", {})]
)
def test_chunks_bound_the_gap_by_one_step_and_cost_the_prompt_time(
    policy: str, knobs: dict[str, Any]
) -> None:
    load, whole = decodes_and_one_long_prompt(), decodes_and_one_long_prompt()
    result = simulate(engine_for(policy, **knobs), load)
    prefill_first = simulate(engine_for("vllm-v0"), whole)
    longest_step_ns = STEP_NS + CONFIG.chunk_tokens * TOKEN_NS
    for resident in load[:4]:
        assert result.max_gap_ns(resident) <= longest_step_ns
    assert result.ttft_ns(load[4]) > prefill_first.ttft_ns(whole[4])


def test_sarathi_never_skips_a_resident_decode() -> None:
    engine = engine_for("sarathi")
    for sequence in decodes_and_one_long_prompt():
        engine.add(sequence)
    while engine.has_work:
        decoding = {s.handle for s in engine.scheduler.state.running if s.is_decoding}
        plan = engine.scheduler.schedule()
        assert decoding <= {s.handle for s, _ in plan.scheduled}
        engine.scheduler.postprocess(plan, [1 if s.num_missing == n else -1 for s, n in plan.scheduled])


def test_prefill_first_gives_newcomers_the_shorter_wait() -> None:
    ttft = {}
    for policy in ("vllm-v0", "vllm-v1"):
        load = [request(30, 60, at_ms=3 * i) for i in range(14)]
        result = simulate(engine_for(policy), load)
        ttft[policy] = mean(result.ttft_ns(r) for r in load)
    assert ttft["vllm-v0"] < ttft["vllm-v1"]


def test_one_long_prompt_at_a_time_unless_a_threshold_shares_the_step() -> None:
    waits = {}
    for threshold in (0, 16):
        load = [request(LONG_PROMPT, 4), request(8, 4, at_ms=1)]
        result = simulate(engine_for("vllm-v1", long_prefill_tokens=threshold), load)
        waits[threshold] = result.ttft_ns(load[1])
    assert waits[0] > 50 * MS
    assert waits[16] < 10 * MS


def test_the_interval_gives_decodes_their_turn_under_prefill_first() -> None:
    gaps = {}
    for interval in (0, 4):
        load = [request(output=60)] + [request(64, 2, at_ms=5 + i) for i in range(12)]
        config = replace(CONFIG, chunk_tokens=64)
        result = simulate(engine_for("sglang", config=config, decode_interval=interval), load)
        gaps[interval] = result.max_gap_ns(load[0])
    assert gaps[4] < gaps[0] / 3


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


# Order (A.9, A.10, A.12; checks 16, 17; G5, G7).


def mean_and_longest(order: str, **knobs: Any) -> tuple[float, float]:
    """Mean latency of all, and of the longest tenth, at more load than the engine has room for."""
    rng = np.random.default_rng(7)
    load = [request(4, int(n), at_ms=2 * i) for i, n in enumerate(rng.geometric(1 / 40, 200).clip(1, 400))]
    config = replace(CONFIG, max_batch=4)
    result = simulate(engine_for("vllm-v1", config=config, order=order, **knobs), load)
    by_length = sorted(load, key=lambda r: r.max_tokens)
    return mean(map(result.e2e_ns, load)), mean(map(result.e2e_ns, by_length[-20:]))


def test_shortest_first_helps_the_mean_and_costs_the_longest() -> None:
    fcfs, sjf, predicted, srpt = (
        mean_and_longest("fcfs"),
        mean_and_longest("sjf-oracle"),
        mean_and_longest("sjf-predicted", sigma=1.0),
        mean_and_longest("srpt-oracle", displace=True),
    )
    assert sjf[0] < predicted[0] < fcfs[0]
    assert srpt[0] < fcfs[0]  # not below sjf: whoever is displaced is computed again
    assert sjf[1] > fcfs[1]


def test_a_perfect_prediction_is_the_oracle() -> None:
    assert mean_and_longest("sjf-predicted", sigma=0.0) == mean_and_longest("sjf-oracle")


@pytest.mark.parametrize(
    ("order", "expected"), [("fcfs", "abc"), ("sjf-prompt", "cab"), ("priority", "bca"), ("edf", "cab")]
)
def test_orders_sort_by_what_their_name_says(order: str, expected: str) -> None:
    load = {
        "a": request(20, 5, at_ms=0, priority=2),
        "b": request(30, 1, at_ms=1, priority=0),
        "c": request(10, 9, at_ms=2, priority=1),
    }
    knobs: dict[str, Any] = {"order": order, "deadline_floor_s": 0.001, "deadline_per_token_s": 0.001}
    queue = make_policy(replace(CONFIG, policy="vllm-v1", knobs=knobs)).order
    for sequence in load.values():
        queue.add(sequence)
    assert [name for s in queue for name, other in load.items() if s is other] == list(expected)


def test_a_full_batch_inverts_priorities_unless_it_may_be_displaced() -> None:
    ttft = {}
    for displace in (False, True):
        config = replace(CONFIG, max_batch=2)
        load = [request(output=200, priority=5) for _ in range(2)] + [request(at_ms=10, priority=0)]
        result = simulate(engine_for("vllm-v1", config=config, order="priority", displace=displace), load)
        ttft[displace] = result.ttft_ns(load[2])
    assert ttft[False] > 150 * MS
    assert ttft[True] < 5 * MS


def least_important_under_pressure(**knobs: Any) -> tuple[Sequence, int]:
    """Return an unimportant request amid a stream of important ones that fill the memory, and its latency."""
    low = request(24, 200, priority=1)
    load = [low, *(request(24, 80, at_ms=1 + 18 * i, priority=0) for i in range(60))]
    config = replace(CONFIG, kv_tokens=640, chunk_tokens=64, max_model_len=512)
    result = simulate(engine_for("vllm-v1", config=config, order="priority", **knobs), load)
    return low, result.e2e_ns(low)


def test_the_least_important_is_recomputed_again_and_again_unless_another_may_go() -> None:
    """Who always goes first and comes back where its order puts it is behind all who came meanwhile (G7)."""
    by_order, by_order_ns = least_important_under_pressure(requeue="order")
    front, front_ns = least_important_under_pressure(requeue="front")
    assert by_order.num_preemptions > 15
    assert by_order.num_recomputed > 10 * (24 + 200)
    assert front.num_preemptions < by_order.num_preemptions
    assert front_ns < 0.7 * by_order_ns
    for cure in ({"victim": "least-computed"}, {"watermark": 0.1}):
        assert least_important_under_pressure(requeue="order", **cure)[0].num_preemptions == 0


def test_the_fair_queue_bounds_the_gap_between_tenants_and_fcfs_does_not() -> None:
    gaps = {}
    num_prompt, batch = 8, 4
    for order in ("fcfs", "vtc"):
        # One tenant floods, the other sends as much later: both are backlogged from then on.
        load = [request(num_prompt, 20, user="a") for _ in range(100)]
        load += [request(num_prompt, 20, at_ms=1, user="b") for _ in range(100)]
        config = replace(CONFIG, max_batch=batch)
        result = simulate(engine_for("vllm-v1", config=config, order=order), load)
        half = result.span_ns // 2
        served = {
            user: sum(
                num_prompt + 2 * sum(t <= half for t in result.token_ns[r.handle])
                for r in load
                if r.user == user and result.token_ns[r.handle][0] <= half
            )
            for user in "ab"
        }
        gaps[order] = abs(served["a"] - served["b"])
    bound = 2 * max(num_prompt, 2 * batch * 28)
    assert gaps["vtc"] <= bound
    assert gaps["fcfs"] > 5 * bound


def test_an_unfit_head_of_one_tenant_blocks_all_tenants() -> None:
    ttft = {}
    for order in ("vtc", "fcfs"):
        config = replace(CONFIG, kv_tokens=512, max_model_len=512)
        load = [request(100, 150, user="a"), request(440, 4, at_ms=10, user="b")]
        load.append(request(8, 4, at_ms=11, user="c"))
        result = simulate(engine_for("vllm-v1", config=config, order=order, skip_window=2), load)
        ttft[order] = result.ttft_ns(load[2])
    assert ttft["vtc"] > 100 * MS
    assert ttft["fcfs"] < 10 * MS


def test_a_tenant_that_paused_gets_no_credit_for_it() -> None:
    queue = FairQueue()
    early = [request(user="a") for _ in range(3)]
    for sequence in early:
        queue.add(sequence)
    queue.take(early[0])
    queue.take(early[1])
    queue.add(request(user="b"))
    assert queue.served["b"] == queue.served["a"] > 0


def test_longest_cached_prefix_goes_first() -> None:
    config = replace(CONFIG, is_prefix_shared=True, max_batch=1)
    engine = engine_for("sglang", config=config, order="lpm")
    shared = list(range(1, 33))
    run_to_end(engine, [make_sequence(shared, 2)])
    cold, warm = make_sequence([9] * 40, 2), make_sequence([*shared, 5, 6], 2)
    engine.add(cold)
    engine.add(warm)
    plan = engine.scheduler.schedule()
    assert [s for s, _ in plan.scheduled] == [warm]
    assert warm.num_cached == 32


# The batch cap (A.14), and knobs.


def test_a_batch_cap_trades_the_wait_for_the_gap() -> None:
    results = {}
    for cap in (4, 16):
        load = [request(4, 50, at_ms=2 * i) for i in range(40)]
        results[cap] = simulate(
            engine_for("vllm-v1", per_token_ns=500_000, config=replace(CONFIG, max_batch=cap)), load
        )
    gap = {cap: max(result.max_gap_ns(r) for r in result.requests) for cap, result in results.items()}
    wait = {cap: max(result.ttft_ns(r) for r in result.requests) for cap, result in results.items()}
    assert gap[4] < gap[16]
    assert wait[4] > wait[16]


@pytest.mark.parametrize(
    ("policy", "knobs", "words"),
    [
        ("magic", {}, "unknown policy 'magic'; known policies: static"),
        ("orca", {"watermark": 0.1}, "policy orca has no knob 'watermark'; its knobs: "),
        ("vllm-v1", {"watermark": "much"}, "knob watermark must be float, not 'much'"),
        ("vllm-v1", {"watermark": -0.1}, "must not be negative"),
        ("vllm-v1", {"whole_prompt": 1}, "knob whole_prompt must be bool"),
        ("vllm-v1", {"victim": "me"}, "unknown victim 'me'; known victims: latest-admitted"),
        ("vllm-v1", {"requeue": "middle"}, "must be one of front, order, back"),
        ("vllm-v1", {"order": "luck"}, "unknown order 'luck'; known orders: fcfs"),
        ("vllm-v1", {"displace": True}, "displace needs one of the orders"),
        ("vllm-v1", {"swap": True}, "swap needs swap_tokens"),
        ("orca", {"reserve": "context"}, "cannot reserve a context of 1024"),
    ],
)
def test_knobs_that_do_not_fit_are_refused(policy: str, knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_policy(replace(CONFIG, policy=policy, knobs=knobs, kv_tokens=512))


def test_every_knob_says_whose_it_is_and_its_default() -> None:
    knobs = all_knobs()
    assert knobs["decode_interval"].defaults == {"vllm-v0": 0, "sglang": 0, "no-evict": 6}
    assert set(knobs["order"].defaults) == set(POLICIES)
    assert knobs["requeue"].choices == ("front", "order", "back")


def test_what_blocks_the_head_is_named() -> None:
    engine = engine_for("vllm-v0", decode_interval=4)
    run = [request(output=20), request()]
    engine.add(run[0])
    engine.step()
    engine.step()
    engine.add(run[1])
    assert engine.scheduler.schedule().blocked is Constraint.POLICY
