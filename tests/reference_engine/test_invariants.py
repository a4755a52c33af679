"""Each invariant holds on a sound engine and fires on one that is broken by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.invariants import MAX_STEPS_WITHOUT_PROGRESS, InvariantChecker, InvariantError
from reference_engine.policies import DISPLACING, POLICIES, all_knobs
from reference_engine.policies.eviction import VICTIMS
from reference_engine.policies.order import ORDERS
from reference_engine.step import Scheduled, StepPlan
from tests.reference_engine.stub import answer_of, make_sequence, run_to_end, stub_engine, stub_token

CONFIG = EngineConfig(block_tokens=4, kv_tokens=64, max_batch=4, chunk_tokens=8, max_model_len=64)


def busy_engine() -> Engine:
    engine = stub_engine(CONFIG)
    for _ in range(6):
        engine.add(make_sequence(range(1, 7), max_tokens=8))
    for _ in range(4):
        engine.step()
    return engine


def checker_and_plan(engine: Engine) -> tuple[InvariantChecker, StepPlan]:
    plan = engine.scheduler.schedule()
    tokens = [1 if s.num_missing == n else -1 for s, n in plan.scheduled]
    checker = InvariantChecker(engine.scheduler)
    engine.scheduler.postprocess(plan, tokens)
    checker.check(plan)
    return checker, plan


def lose_a_request(engine: Engine, plan: StepPlan) -> None:
    del plan
    engine.scheduler.state.waiting.remove(next(iter(engine.scheduler.state.waiting)))


def keep_a_request_twice(engine: Engine, plan: StepPlan) -> None:
    del plan
    engine.scheduler.state.running.append(engine.scheduler.state.running[0])
    engine.scheduler.num_arrived += 1


def leak_a_block(engine: Engine, plan: StepPlan) -> None:
    del plan
    engine.scheduler.tables.pool.take()


def hold_a_block_twice(engine: Engine, plan: StepPlan) -> None:
    del plan
    a, b = engine.scheduler.state.running[:2]
    tables = engine.scheduler.tables.tables
    tables[a.slot, 0] = tables[b.slot, 0]


def compute_without_blocks(engine: Engine, plan: StepPlan) -> None:
    del plan
    engine.scheduler.state.running[0].num_computed += 40


def overspend(engine: Engine, plan: StepPlan) -> None:
    plan.scheduled.append(Scheduled(make_sequence([1], 1), CONFIG.chunk_tokens))
    plan.num_decodes += CONFIG.chunk_tokens
    del engine


def miscount(engine: Engine, plan: StepPlan) -> None:
    del engine
    plan.num_decodes += 1


def schedule_twice(engine: Engine, plan: StepPlan) -> None:
    del engine
    plan.scheduled.append(plan.scheduled[0])
    plan.num_decodes += plan.scheduled[0].num_tokens


def schedule_the_evicted(engine: Engine, plan: StepPlan) -> None:
    del engine
    plan.preempted.append(plan.scheduled[0].sequence)


def take_back_a_token(engine: Engine, plan: StepPlan) -> None:
    del plan
    sequence = next(s for s in engine.scheduler.state.running if s.num_emitted)
    sequence.tokens.pop()


def run_backwards(engine: Engine, plan: StepPlan) -> None:
    del plan
    sequence = engine.scheduler.state.running[0]
    sequence.arrived_ns = 10**12
    sequence.first_scheduled_ns = 5


def do_nothing(engine: Engine, plan: StepPlan) -> None:
    del engine
    plan.scheduled.clear()
    plan.num_decodes = plan.num_prefill_tokens = 0


def admit_the_unservable(engine: Engine, plan: StepPlan) -> None:
    del plan
    engine.scheduler.state.running[0].max_tokens = 1000


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("I1", lose_a_request),
        ("I1", keep_a_request_twice),
        ("I2", leak_a_block),
        ("I2", hold_a_block_twice),
        ("I2", compute_without_blocks),
        ("I3", overspend),
        ("I3", miscount),
        ("I4", do_nothing),
        ("I7", run_backwards),
        ("I9", admit_the_unservable),
        ("I10", take_back_a_token),
        ("I11", schedule_twice),
        ("I11", schedule_the_evicted),
    ],
)
def test_a_broken_engine_is_caught(name: str, damage: Callable[[Engine, StepPlan], None]) -> None:
    engine = busy_engine()
    checker, plan = checker_and_plan(engine)
    damage(engine, plan)
    with pytest.raises(InvariantError, match=f"^{name} "):
        checker.check(plan)


def test_steps_without_progress_are_bounded() -> None:
    engine = busy_engine()
    checker, plan = checker_and_plan(engine)
    for sequence, _ in plan.scheduled:
        sequence.high_water += 100
    for _ in range(MAX_STEPS_WITHOUT_PROGRESS):
        checker.check(plan)
    with pytest.raises(InvariantError, match="^I5"):
        checker.check(plan)


def draw_knobs(data: st.DataObject, policy: str, swap_tokens: int) -> dict[str, Any]:
    """Draw any combination of the knobs that a policy takes."""
    known = {name: knob for name, knob in all_knobs().items() if policy in knob.defaults}
    order = data.draw(st.sampled_from(("fcfs", *ORDERS)))
    knobs: dict[str, Any] = {
        "order": order,
        "victim": data.draw(st.sampled_from(tuple(VICTIMS))),
        "requeue": data.draw(st.sampled_from(("front", "order", "back"))),
        "skip_window": data.draw(st.integers(0, 3)),
        "swap": swap_tokens > 0,
        "displace": order in DISPLACING and data.draw(st.booleans()),
    }
    if policy in EVER_EVICTING:
        knobs["watermark"] = data.draw(st.sampled_from((0.0, 0.1)))
    for name in ("chunked", "padded", "whole_prompt"):
        if name in known:
            knobs[name] = data.draw(st.booleans())
    for name in ("decode_interval", "long_prefill_tokens"):
        if name in known:
            knobs[name] = data.draw(st.integers(0, 4))
    if "reserve" in known:
        knobs["reserve"] = data.draw(st.sampled_from(("pow2", "declared")))
    return knobs


EVER_EVICTING = ("vllm-v0", "vllm-v1", "sarathi")


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_load_ends_and_each_answer_is_as_alone(policy: str, data: st.DataObject) -> None:
    """Random arrivals, lengths, cancellations, priorities, knobs and tiny memory; invariants are on."""
    swap_tokens = data.draw(st.sampled_from((0, 32, 400)))
    config = EngineConfig(
        policy=policy,
        swap_tokens=swap_tokens,
        knobs=draw_knobs(data, policy, swap_tokens) if data.draw(st.booleans()) else {},
        is_prefix_shared=data.draw(st.booleans()),
        block_tokens=4,
        kv_tokens=data.draw(st.integers(12, 40)) * 4,
        max_batch=data.draw(st.integers(1, 6)),
        chunk_tokens=data.draw(st.integers(6, 40)),
        max_model_len=48,
        check_invariants=True,
    )
    engine = stub_engine(config)
    num_requests = data.draw(st.integers(1, 12))
    sequences = []
    for _ in range(num_requests):
        num_prompt, max_tokens = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 18))
        prompt = [data.draw(st.integers(1, 2))] * num_prompt
        prompt[-1] = data.draw(st.integers(1, 9))
        sequence = make_sequence(
            prompt,
            max_tokens,
            arrived_ns=engine.clock_ns(),
            priority=data.draw(st.integers(0, 2)),
            user=data.draw(st.sampled_from("abc")),
        )
        engine.add(sequence)
        sequences.append(sequence)
        for _ in range(data.draw(st.integers(0, 6))):
            if engine.has_work:
                engine.step()
        if data.draw(st.integers(0, 5)) == 0:
            engine.cancel(data.draw(st.sampled_from(sequences)))
    run_to_end(engine, max_steps=5_000)
    assert engine.scheduler.tables.pool.num_used == 0
    for sequence in sequences:
        tokens = sequence.tokens[: sequence.num_prompt]
        for token_id in answer_of(sequence):
            assert token_id == stub_token(tokens)
            tokens.append(token_id)
        if sequence.finish_reason != "cancelled":
            assert sequence.num_emitted == sequence.max_tokens
