"""The scheduler under vLLM v1's policy, on a stub executor: who computes what in each step."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from reference_engine.config import EngineConfig
from reference_engine.scheduler import UnservableError
from reference_engine.sequence import FinishReason, Sequence, Status
from reference_engine.step import Constraint, StepPlan
from reference_engine.steplog import STEP_COLUMNS
from tests.reference_engine.stub import answer_of, make_sequence, run_to_end, stub_engine, stub_token

CONFIG = EngineConfig(
    block_tokens=4, kv_tokens=64, max_batch=4, chunk_tokens=8, max_model_len=64, check_invariants=True
)


def counts(plan: StepPlan) -> list[tuple[int, int]]:
    return [(sequence.handle, n) for sequence, n in plan.scheduled]


def test_an_answer_is_the_models_own_and_as_long_as_asked() -> None:
    engine, sequence = stub_engine(CONFIG), make_sequence(range(1, 20), max_tokens=5)
    assert run_to_end(engine, [sequence]) == 3 + 4  # three chunks of the prompt, the last emits
    tokens = list(range(1, 20))
    for _ in range(5):
        tokens.append(stub_token(tokens))
    assert sequence.tokens == tokens
    assert sequence.finish_reason is FinishReason.LENGTH
    assert engine.scheduler.tables.pool.num_used == 0


def test_residents_come_first_and_prompts_fill_the_rest_in_chunks() -> None:
    engine = stub_engine(CONFIG)
    old, new = make_sequence([1, 2, 3], max_tokens=9), make_sequence(range(1, 12), max_tokens=2)
    engine.add(old)
    engine.step()
    engine.add(new)
    plan = engine.scheduler.schedule()
    assert counts(plan) == [(old.handle, 1), (new.handle, 7)]
    assert (plan.num_decodes, plan.num_prefill_tokens) == (1, 7)
    engine.scheduler.postprocess(plan, [5, -1])
    plan = engine.scheduler.schedule()
    assert counts(plan) == [(old.handle, 1), (new.handle, 4)]


def test_a_prompt_in_progress_keeps_later_ones_waiting() -> None:
    engine = stub_engine(CONFIG)
    first, second = make_sequence(range(1, 21), max_tokens=2), make_sequence([1], max_tokens=2)
    engine.add(first)
    engine.add(second)
    plan = engine.scheduler.schedule()
    assert counts(plan) == [(first.handle, 8)]
    assert plan.blocked is Constraint.BUDGET


def test_the_batch_cap_is_named_as_what_holds_a_request_back() -> None:
    engine = stub_engine(CONFIG)
    for _ in range(5):
        engine.add(make_sequence([1], max_tokens=3))
    plan = engine.scheduler.schedule()
    assert len(plan.scheduled) == 4
    assert plan.blocked is Constraint.SLOT


def test_an_unfit_head_blocks_those_behind_it() -> None:
    engine = stub_engine(CONFIG)
    resident = make_sequence(range(1, 9), max_tokens=40)
    engine.add(resident)
    for _ in range(34):
        engine.step()
    heavy, light = make_sequence(range(1, 30), max_tokens=3), make_sequence([1], max_tokens=3)
    engine.add(heavy)
    engine.add(light)
    plan = engine.scheduler.schedule()
    assert counts(plan) == [(resident.handle, 1)]
    assert plan.blocked is Constraint.MEMORY
    assert light.status is Status.WAITING


def test_the_last_admitted_is_evicted_recomputed_and_says_the_same() -> None:
    engine = stub_engine(CONFIG)
    first, second = make_sequence(range(1, 21), max_tokens=40), make_sequence(range(1, 21), max_tokens=40)
    run_to_end(engine, [first, second])
    assert first.num_preemptions == 0
    assert second.num_preemptions >= 1
    assert second.num_recomputed > 0
    assert answer_of(first) == answer_of(second)
    preempted = engine.log.steps()[:, STEP_COLUMNS.index("preempted")]
    assert preempted.sum() == second.num_preemptions


def test_nobody_is_admitted_in_a_step_that_evicts() -> None:
    engine = stub_engine(CONFIG)
    residents = [make_sequence(range(1, 21), max_tokens=40) for _ in range(2)]
    for sequence in residents:
        engine.add(sequence)
    while not (plan := engine.scheduler.schedule()).preempted:
        engine.scheduler.postprocess(plan, [1 if s.num_missing == n else -1 for s, n in plan.scheduled])
    assert plan.preempted == [residents[1]]
    assert plan.blocked is Constraint.GATE
    assert list(engine.scheduler.state.waiting) == [residents[1]]


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "kv_tokens", "words"),
    [(60, 10, 64, "exceed the context of 64"), (30, 20, 48, "can never fit in a KV cache of 48 tokens")],
)
def test_what_can_never_fit_is_refused_on_arrival(
    num_prompt: int, max_tokens: int, kv_tokens: int, words: str
) -> None:
    config = EngineConfig(block_tokens=4, kv_tokens=kv_tokens, max_model_len=64)
    engine = stub_engine(config)
    with pytest.raises(UnservableError, match=words):
        engine.add(make_sequence([1] * num_prompt, max_tokens))
    assert not engine.has_work
    run_to_end(engine, [make_sequence([1] * 28, 20)])  # what just fits is served


@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_a_cancelled_request_frees_its_blocks_at_once(num_steps: int) -> None:
    engine, sequence = stub_engine(CONFIG), make_sequence(range(1, 20), max_tokens=5)
    engine.add(sequence)
    for _ in range(num_steps):
        engine.step()
    engine.cancel(sequence)
    engine.cancel(sequence)
    assert sequence.finish_reason is FinishReason.CANCELLED
    assert not engine.has_work
    assert engine.scheduler.tables.pool.num_used == 0
    assert len(engine.log.requests) == 1


def test_eos_ends_an_answer() -> None:
    engine, sequence = stub_engine(CONFIG), make_sequence([1, 2], max_tokens=9)
    engine.scheduler.eos_ids = frozenset({7, 9})
    engine.add(sequence)
    engine.scheduler.postprocess(engine.scheduler.schedule(), [9])
    assert sequence.finish_reason is FinishReason.STOP
    assert sequence.num_emitted == 1


def test_many_requests_with_cancellations_leave_nothing_behind() -> None:
    rng = random.Random(6)
    engine = stub_engine(replace(CONFIG, check_invariants=False, is_prefix_shared=True))
    alive: list[Sequence] = []
    for _ in range(5_000):
        alive.append(make_sequence([rng.randint(1, 3)] * rng.randint(1, 12), rng.randint(1, 8)))
        engine.add(alive[-1])
        while len(engine.scheduler.state.waiting) > 8:
            engine.step()
        if rng.random() < 0.3:
            engine.cancel(alive.pop(rng.randrange(len(alive))))
        alive = [sequence for sequence in alive if sequence.finish_reason is None]
    run_to_end(engine)
    assert engine.scheduler.tables.pool.num_used == 0
    assert sum(engine.counters.finished.values()) == 5_000
    assert len(engine.scheduler.tables.held()) == 0
    assert [engine.scheduler.tables.open() for _ in range(CONFIG.max_batch)]  # every row is free again
