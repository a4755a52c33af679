"""Virtual time: jumping over steady steps changes nothing; the clock is that of the cost model alone."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from reference_engine.config import DoorConfig, EngineConfig
from reference_engine.policies import POLICIES
from reference_engine.sequence import SpanKind
from reference_engine.simulate import Delays, Patience
from reference_engine.steplog import STEP_COLUMNS
from tests.reference_engine.simulated import Outcomes, make_plan, simulate
from workloads.plan import Plan

CONFIG = EngineConfig(
    block_tokens=4, kv_tokens=256, max_batch=6, chunk_tokens=16, max_model_len=96, check_invariants=True
)
COSTS = (
    "affine(base=8ms,per_seq=0.25ms)",
    "affine(base=3.3333us,per_seq=77ps,per_token=1.7us,per_context=13ns,per_pair=3ns,mixed=2us)",
    "roofline(base=8ms,per_context=1us,per_seq=0.9ms,per_token=0.3ms)",
)
VARIANTS: tuple[dict[str, Any], ...] = (
    *({"policy": name} for name in POLICIES),
    {"policy": "static", "knobs": {"padded": False}},
    {"policy": "vllm-v0", "knobs": {"decode_interval": 3}},
    {"policy": "vllm-v0", "knobs": {"swap": True}, "swap_tokens": 256},
    {"policy": "vllm-v1", "knobs": {"watermark": 0.1, "skip_window": 2}},
    {"policy": "vllm-v1", "knobs": {"whole_prompt": False}},
    {"policy": "vllm-v1", "knobs": {"order": "srpt-oracle", "displace": True}},
    {"policy": "sarathi", "knobs": {"order": "vtc"}},
    {"policy": "sarathi", "knobs": {"order": "sjf-prompt", "victim": "least-computed"}},
    {"policy": "vllm-v1", "is_prefix_shared": True},
    {"policy": "sglang", "knobs": {"order": "lpm"}, "is_prefix_shared": True},
    {"policy": "vllm-v1", "door": DoorConfig(max_waiting=3)},
    {"policy": "vllm-v1", "door": DoorConfig(max_wait_s=0.2)},
    {"policy": "vllm-v1", "door": DoorConfig(drop_after_s=0.1)},
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    n = draw(st.integers(1, 30))
    seed, pace = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0.0, 0.001, 0.02, 0.2]))
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(pace, n)) if pace else np.zeros(n)
    plan = make_plan(arrival_s, rng.integers(1, 60, n), rng.integers(1, 36, n))
    blocks = [rng.integers(0, 3, min(2, int(tokens) // 8)) for tokens in plan.prompt_tokens]
    offsets = np.append(0, np.cumsum([len(block) for block in blocks]))
    return replace(
        plan, prefix_blocks=np.concatenate(blocks).astype(np.int64), prefix_offsets=offsets, block_tokens=8
    )


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(plan=plans(), cost=st.sampled_from(COSTS))
def test_jumping_changes_nothing(variant: dict[str, Any], plan: Plan, cost: str) -> None:
    config = replace(CONFIG, **variant)
    jumped, stepped = (
        simulate(config, plan, cost, is_jumping=is_jumping, has_steps=True) for is_jumping in (True, False)
    )
    assert jumped.stamps_ns == stepped.stamps_ns
    assert jumped.buckets == stepped.buckets
    assert jumped.failures == stepped.failures
    assert jumped.spans == stepped.spans
    assert jumped.blocked == stepped.blocked
    np.testing.assert_array_equal(jumped.steps, stepped.steps)
    check_identity(plan, jumped.stamps_ns, jumped.buckets)
    if variant.get("policy") != "static":  # whose finished rows count as decodes
        check_spans(jumped)


def check_spans(outcomes: Outcomes) -> None:
    """The spans of all requests tell who computed how many tokens in each step."""
    assert outcomes.steps is not None
    decodes, prefill, evicted = (
        outcomes.steps[:, STEP_COLUMNS.index(name)] for name in ("decode_seqs", "prefill_tokens", "preempted")
    )
    told = {kind: np.zeros(len(decodes), np.int64) for kind in SpanKind}
    for kind, first, last, tokens in (astuple(s) for spans in outcomes.spans.values() for s in spans):
        if kind is SpanKind.DECODE:
            told[kind][first : last + 1] += decodes[first : last + 1] > 0
            assert tokens == (decodes[first : last + 1] > 0).sum()
        else:
            told[kind][first] += tokens if kind is SpanKind.PREFILL else 1
    np.testing.assert_array_equal(told[SpanKind.DECODE], decodes)
    np.testing.assert_array_equal(told[SpanKind.PREFILL], prefill)
    np.testing.assert_array_equal(told[SpanKind.EVICTED] + told[SpanKind.DISPLACED], evicted)


def check_identity(plan: Plan, stamps_ns: dict[int, list[int]], buckets: dict[int, list[int]]) -> None:
    """Every nanosecond of each request is in one bucket, up to its last token and up to its first."""
    for row, split in buckets.items():
        half, arrived = len(split) // 2, int(plan.arrival_ns[row])
        assert sum(split[:half]) == stamps_ns[row][-1] - arrived
        assert sum(split[half:]) == stamps_ns[row][0] - arrived
        assert split[half - 1] == split[-1] == 0, "a simulated step has a residual"
        assert min(split) >= 0
        assert len(stamps_ns[row]) == plan.output_tokens[row]


def test_steady_steps_are_jumped_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from reference_engine.scheduler import Scheduler

    decisions = 0
    schedule = Scheduler.schedule

    def counted(scheduler: Scheduler) -> object:
        nonlocal decisions
        decisions += 1
        return schedule(scheduler)

    monkeypatch.setattr(Scheduler, "schedule", counted)
    config = replace(CONFIG, max_model_len=256, kv_tokens=1024)
    outcomes = simulate(config, make_plan([0.0, 0.5], 10, 200))
    assert outcomes.num_steps == 200 + 61  # the second joins the first in its 62nd step
    assert decisions == 2


def test_the_wall_clock_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise AssertionError("the wall clock was read")

    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"):
        monkeypatch.setattr(time, name, fail)
    outcomes = simulate(CONFIG, make_plan([0.0, 0.1, 7.0], 10, 20))
    monkeypatch.undo()
    assert outcomes.stamps_ns[2][0] == 7_000_000_000 + 8_250_000


def test_a_step_takes_what_the_cost_model_says() -> None:
    config = replace(CONFIG, policy="sarathi")
    outcomes = simulate(
        config, make_plan([0, 0], [10, 20], [3, 2]), "affine(base=1ms,per_seq=10us,per_token=1us)"
    )
    # 10 and 6 tokens of prompts; then a decode and the other 14; then two decodes; then one ends alone
    assert outcomes.stamps_ns[0] == [1_036_000, 1_036_000 + 1_034_000, 1_036_000 + 1_034_000 + 1_020_000]
    assert outcomes.stamps_ns[1] == [2_070_000, 3_090_000]


def test_impatient_clients_go_and_their_rows_say_why() -> None:
    config = replace(CONFIG, max_batch=1)
    plan = make_plan([0, 0, 0], 4, [30, 30, 1])
    patience = Patience(first_token_ns=100_000_000, total_ns=220_000_000)
    outcomes = simulate(config, plan, patience=patience)
    assert {row: failure.error for row, failure in outcomes.failures.items()} == {
        0: "no end within 0.22 s",
        1: "no token within 0.1 s",
        2: "no token within 0.1 s",
    }
    assert all(failure.outcome == "timeout" for failure in outcomes.failures.values())
    assert len(outcomes.stamps_ns[0]) == 27 + 1  # tokens that came before, and the end


def test_what_never_fits_and_what_the_door_refuses_fails_at_once() -> None:
    config = replace(CONFIG, max_batch=1, door=DoorConfig(max_waiting=1))
    outcomes = simulate(config, make_plan([0, 0.001, 0.002, 0.003], [90, 4, 4, 4], 30))
    assert {row: failure.http_status for row, failure in outcomes.failures.items()} == {0: 400, 3: 429}


def test_a_run_that_cannot_end_is_drained() -> None:
    patience = Patience(drain_ns=150_000_000)
    outcomes = simulate(replace(CONFIG, max_batch=1), make_plan([0, 0.1], 4, 30), patience=patience)
    assert {failure.outcome for failure in outcomes.failures.values()} == {"cancelled"}
    assert outcomes.failures.keys() == {1}
    assert outcomes.failures[1].error == "still in flight 0.15 s after the last request was sent"


def test_a_closed_loop_sends_when_an_answer_has_ended() -> None:
    outcomes = simulate(CONFIG, make_plan(np.zeros(5), 4, 10), concurrency=2)
    assert sorted(outcomes.sent_ns.values()) == [0, 0, 85_000_000, 85_000_000, 170_000_000]


def test_a_cap_holds_requests_back_at_the_client() -> None:
    outcomes = simulate(CONFIG, make_plan([0, 0, 0.01], 4, 10), limit=2)
    assert outcomes.sent_ns == {0: 0, 1: 0, 2: 85_000_000}
    assert sum(outcomes.buckets[2][: len(outcomes.buckets[2]) // 2]) == 82_500_000


def test_a_turn_waits_for_the_answer_before_it() -> None:
    plan = replace(
        make_plan([0, 0.01], 4, 10),
        session=np.zeros(2, np.int64),
        turn=np.arange(2),
        think_ns=np.array([-1, 1_000_000_000]),
    )
    assert simulate(CONFIG, plan).sent_ns[1] == 10 * 8_250_000 + 1_000_000_000


def test_the_way_to_the_engine_and_back_takes_its_time() -> None:
    delays = Delays(inbound_ns=1_000_000, outbound_ns=2_000_000)
    outcomes = simulate(CONFIG, make_plan([0.5, 0.6], 4, 10), delays=delays)
    assert outcomes.stamps_ns[0][0] == 501_000_000 + 8_250_000
    closed = simulate(CONFIG, make_plan([0, 0], 4, 10), concurrency=1, delays=delays)
    assert closed.sent_ns == {0: 0, 1: 82_500_000 + 3_000_000}
    held = simulate(CONFIG, make_plan([0, 0], 4, 10), limit=1, delays=delays)
    assert held.sent_ns[1] >= 82_500_000 + 2_000_000
