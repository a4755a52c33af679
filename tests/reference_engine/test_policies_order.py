"""In which order policies let requests in, and who pays for it. In virtual time."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import pytest

from reference_engine.policies import make_policy
from reference_engine.policies.order import FairQueue
from reference_engine.sequence import Sequence
from tests.reference_engine.policy_runs import CONFIG, MS, engine_for, request
from tests.reference_engine.stub import make_sequence, run_to_end, simulate

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
