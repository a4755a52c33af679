"""Where the time goes: the sum identity at scale, and pathologies that land in the bucket that names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.sum_identity import check_policy
from reference_engine.account import BUCKETS, RoomClock
from reference_engine.config import EngineConfig
from reference_engine.policies import POLICIES
from reference_engine.sequence import Sequence as EngineSequence
from reference_engine.simulate import Simulation
from tests.reference_engine.simulated import Outcomes, make_plan, simulate
from workloads.plan import Plan

CONFIG = EngineConfig(kv_tokens=1600, max_batch=16, chunk_tokens=128, max_model_len=1600)


def spent_s(outcomes: Outcomes, rows: Sequence[int], *, to_first: bool = False) -> dict[str, float]:
    """Mean seconds of these requests in each bucket."""
    at = len(BUCKETS) if to_first else 0
    splits = np.array([outcomes.buckets[row][at : at + len(BUCKETS)] for row in rows]) / 1e9
    return dict(zip(BUCKETS, splits.mean(axis=0).tolist(), strict=True))


def share_of_excess(found: dict[str, float], rest: dict[str, float], names: Sequence[str]) -> float:
    excess = {name: found[name] - rest[name] for name in BUCKETS}
    return sum(excess[name] for name in names) / sum(excess.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_every_nanosecond_is_in_one_bucket(policy: str) -> None:
    """`python -m benchmarks.sum_identity` does the same on 100,000 requests a policy."""
    checked, _, preempted = check_policy(policy, 2500, seed=1)
    assert checked >= 2500
    if policy in ("vllm-v0", "vllm-v1", "sarathi"):
        assert preempted > 0


def test_who_displaces_a_resident_takes_its_place() -> None:
    """Evicted requests at the back outrank those in front: a step that only displaces would end nothing."""
    knobs: dict[str, Any] = {
        "order": "srpt-oracle",
        "displace": True,
        "requeue": "back",
        "whole_prompt": False,
    }
    config = EngineConfig(
        kv_tokens=336, max_batch=32, chunk_tokens=512, max_model_len=320, knobs=knobs, check_invariants=True
    )
    rng = np.random.default_rng(0)
    plan = make_plan(
        np.cumsum(rng.exponential(0.02, 300)), rng.integers(1, 200, 300), rng.integers(1, 100, 300)
    )
    assert len(simulate(config, plan).buckets) == 300


def test_a_request_alone_is_all_its_own_work() -> None:
    outcomes = simulate(CONFIG, make_plan([0.0], 100, 50))
    assert spent_s(outcomes, [0])["own"] * 1e9 == outcomes.stamps_ns[0][-1]


def test_a_cold_start_is_the_own_work_of_who_woke_the_engine() -> None:
    cost = "affine(base=8ms,cold=5ms)"
    outcomes = simulate(CONFIG, make_plan([0.0, 0.02, 2.0], 100, 10), cost)
    own = [spent_s(outcomes, [row])["own"] for row in range(3)]
    assert own == pytest.approx([0.085, 0.08, 0.085])


def test_batch_mates_and_prompts_are_told_apart() -> None:
    cost = "affine(base=8ms,per_seq=1ms,per_token=0.1ms)"
    outcomes = simulate(
        replace(CONFIG, policy="sarathi"), make_plan([0, 0, 0.05], [10, 10, 100], [40, 40, 1]), cost
    )
    spent = spent_s(outcomes, [0])
    # A mate costs 1 ms a step, the first of which computes both prompts; the third comes in one step.
    assert spent["batch"] == pytest.approx(0.039)
    assert spent["interference"] == pytest.approx(0.002 + 0.011)
    assert spent_s(outcomes, [2])["batch"] == pytest.approx(0.002)


def test_the_full_batch_is_named_slot() -> None:
    plan = make_plan([0.0, 0.0, 0.0], 10, [100, 100, 5])
    spent = spent_s(simulate(replace(CONFIG, max_batch=2), plan), [2], to_first=True)
    assert spent["wait_slot"] > 0.95 * sum(spent.values())


def test_a_static_batch_is_named_policy() -> None:
    spent = spent_s(simulate(replace(CONFIG, policy="static"), make_plan([0, 0.01], 10, [100, 5])), [1])
    assert spent["wait_policy"] > 0.9 * (sum(spent.values()) - spent["own"])


def test_memory_is_told_from_the_order_behind_an_unfit_head() -> None:
    """vllm-project/vllm#31731: light requests wait behind one that needs more than is free."""
    plan = make_plan([0, 0.05, 0.06, 0.07, 0.08], [1000, 900, 40, 40, 900], [200, 5, 5, 5, 5])
    outcomes = simulate(CONFIG, plan, "affine(base=8ms)")
    heavy, light = spent_s(outcomes, [1], to_first=True), spent_s(outcomes, [2, 3], to_first=True)
    assert heavy["wait_memory"] > 0.9 * sum(heavy.values())
    assert heavy["wait_order"] == 0
    assert light["wait_order"] > 0.9 * sum(light.values())
    last = spent_s(outcomes, [4], to_first=True)
    assert last["wait_memory"] > 0.9 * (sum(last.values()) - last["own"] - last["interference"])
    skipping = simulate(replace(CONFIG, knobs={"skip_window": 4}), plan, "affine(base=8ms)")
    assert spent_s(skipping, [2, 3], to_first=True)["wait_order"] == 0


def test_one_long_prompt_in_progress_is_named_budget() -> None:
    """vllm-project/vllm#57413: short prompts wait until a long one has been computed chunk by chunk."""
    config = replace(CONFIG, kv_tokens=64_000, max_model_len=16_000)
    plan = make_plan([0, *np.linspace(0.01, 0.5, 8)], [12_800, *[20] * 8], 5)
    cost = "affine(base=8ms,per_token=20us)"
    stuck, rest = (
        simulate(config, plan, cost),
        simulate(replace(config, knobs={"long_prefill_tokens": 64}), plan, cost),
    )
    shorts = range(1, 9)
    found, fixed = (spent_s(outcomes, shorts, to_first=True) for outcomes in (stuck, rest))
    assert sum(found.values()) > 10 * sum(fixed.values())
    assert share_of_excess(found, fixed, ["wait_budget"]) > 0.7


def test_prefill_first_starves_decodes_and_is_named_so() -> None:
    """sgl-project/sglang#32549: a stream of long prompts leaves no step for the decodes."""
    config = replace(CONFIG, kv_tokens=64_000, max_batch=64, chunk_tokens=512, max_model_len=2048)
    plan = make_plan(np.arange(60) * 0.09, 1000, 40)
    cost = "affine(base=8ms,per_seq=0.1ms,per_token=70us)"
    first, mixed = (simulate(replace(config, policy=policy), plan, cost) for policy in ("vllm-v0", "sarathi"))
    rows = range(10, 50)
    found, rest = spent_s(first, rows), spent_s(mixed, rows)
    assert found["stall_prefill"] > 0.7 * (sum(found.values()) - found["own"])
    assert rest["stall_prefill"] == 0


def test_admission_by_the_first_chunk_thrashes_and_is_named_eviction() -> None:
    """vllm-project/vllm#37307: a prompt is let in, fills memory, is evicted, and begins again."""
    config = replace(CONFIG, kv_tokens=4400, max_model_len=2048, max_batch=16)
    plan = make_plan([0, 0, 0, 0, 0.6], 1000, [90, 90, 90, 90, 5])
    cost = "affine(base=8ms,per_token=50us)"
    thrashing, whole = (
        simulate(replace(config, knobs={"whole_prompt": is_whole}), plan, cost) for is_whole in (False, True)
    )
    assert thrashing.preemptions[4] >= 5
    assert whole.preemptions[4] == 0
    found = spent_s(thrashing, [4])
    assert found["preempted"] + found["recompute"] + found["interference"] > 0.7 * sum(found.values())
    residents, calm = spent_s(thrashing, range(4)), spent_s(whole, range(4))
    assert share_of_excess(residents, calm, ["interference"]) > 0.7


@pytest.fixture
def low_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests with a prompt of 40 tokens are important (0), all others are not (1)."""
    make = Simulation._sequence

    def with_priority(simulation: Simulation, row: int, arrived_ns: int) -> EngineSequence:
        sequence = make(simulation, row, arrived_ns)
        sequence.priority = int(sequence.num_prompt != 40)
        return sequence

    monkeypatch.setattr(Simulation, "_sequence", with_priority)


@pytest.mark.usefixtures("low_first")
def test_a_full_batch_of_the_unimportant_is_named_slot() -> None:
    """vllm-project/vllm#40004: priority does not help who arrives when every slot is taken."""
    config = replace(CONFIG, max_batch=4, kv_tokens=16_000, knobs={"order": "priority"})
    plan = make_plan([0, 0, 0, 0, *np.linspace(0.2, 0.6, 6)], [*[60] * 4, *[40] * 6], [*[200] * 4, *[5] * 6])
    stuck = simulate(config, plan)
    helped = simulate(replace(config, knobs={"order": "priority", "displace": True}), plan)
    found, rest = (spent_s(outcomes, range(4, 10)) for outcomes in (stuck, helped))
    assert sum(found.values()) > 5 * sum(rest.values())
    assert share_of_excess(found, rest, ["wait_slot"]) > 0.7


@pytest.mark.usefixtures("low_first")
def test_the_same_victim_again_and_again_is_named_eviction() -> None:
    """vllm-project/vllm#41951: the evicted is put behind those that came later, and is evicted again."""
    important = 0.05 + np.arange(30) * 0.3
    config = replace(CONFIG, kv_tokens=832, max_batch=16)
    plan = make_plan([0, *important], [600, *[40] * 30], [150, *[80] * 30])
    cost = "affine(base=8ms,per_token=100us)"
    again = simulate(replace(config, knobs={"order": "priority"}), plan, cost)
    roomy = simulate(replace(config, kv_tokens=16_000, knobs={"order": "priority"}), plan, cost)
    assert again.preemptions[0] > 5
    assert roomy.preemptions[0] == 0
    found, rest = spent_s(again, [0]), spent_s(roomy, [0])
    assert share_of_excess(found, rest, ["preempted", "recompute"]) > 0.7


NO_CAP: dict[str, Any] = {"max_batch": 512}
MORE_MEMORY: dict[str, Any] = {"kv_tokens": 160_000}
MEMORY_CAUSES = ("wait_memory", "wait_order", "wait_gate", "preempted", "recompute")


@pytest.mark.parametrize(
    ("changes", "causes", "engine"),
    [
        (MORE_MEMORY, MEMORY_CAUSES, {"max_batch": 256}),
        (NO_CAP, ("wait_slot",), {"kv_tokens": 160_000, "max_batch": 6}),
        (MORE_MEMORY | NO_CAP, (*MEMORY_CAUSES, "wait_slot"), {}),
    ],
    ids=["infinite memory", "no cap", "both"],
)
def test_removing_a_cause_gives_back_what_the_account_says(
    changes: dict[str, Any], causes: Sequence[str], engine: dict[str, Any]
) -> None:
    rng = np.random.default_rng(2)
    plan = make_plan(np.cumsum(rng.exponential(0.1, 600)), 200, rng.geometric(1 / 60, 600))
    cost = "affine(base=8ms,per_seq=10us,per_token=5us)"
    check_counterfactual(
        plan, cost, replace(CONFIG, **engine), replace(CONFIG, **{**engine, **changes}), causes
    )


def check_counterfactual(
    plan: Plan, cost: str, as_it_is: EngineConfig, without: EngineConfig, causes: Sequence[str]
) -> None:
    """Hold the drop of the mean E2E against the time that the account charges to the causes removed."""
    found, freed = simulate(as_it_is, plan, cost), simulate(without, plan, cost)
    spent = spent_s(found, range(len(plan)))
    predicted = sum(spent[name] for name in causes)
    realised = float((found.latencies(plan).mean() - freed.latencies(plan).mean()) / 1e9)
    assert predicted > 0.05 * sum(spent.values())
    assert realised == pytest.approx(predicted, rel=0.25)


def test_prompts_that_cost_nothing_give_back_their_interference() -> None:
    """Free prefill for others: the prompts of every other request take no time, those of one class do."""
    rng = np.random.default_rng(3)
    n = 400
    arrivals = np.cumsum(rng.exponential(0.25, n))
    prompts, outputs = np.full(n, 10), np.full(n, 60)
    prompts[::2] = 700  # the disturbers; the rest is who is disturbed
    outputs[::2] = 1
    config = replace(CONFIG, kv_tokens=64_000, max_batch=64, chunk_tokens=1024)
    cost = "affine(base=8ms,per_seq=0.1ms,per_token=50us)"
    plan = make_plan(arrivals, prompts, outputs)
    found = simulate(config, plan, cost)
    free = simulate(config, make_plan(arrivals, np.minimum(prompts, 10), outputs), cost)
    disturbed = np.arange(1, n, 2)
    spent = spent_s(found, disturbed.tolist())
    predicted = spent["interference"] + spent["stall_prefill"] + spent["wait_budget"] + spent["wait_align"]
    drop = (found.latencies(plan) - free.latencies(plan))[disturbed].mean() / 1e9
    assert predicted > 0.02
    assert drop == pytest.approx(predicted, rel=0.25)


def test_the_room_clock_counts_ticks_with_at_least_so_much_room() -> None:
    clock, added = RoomClock(10), [(0, 5), (3, 7), (10, 11), (3, 1)]
    for room, ticks in added:
        clock.add(room, ticks)
    for need in range(11):
        assert clock.at_least(need) == sum(ticks for room, ticks in added if room >= need)
