from __future__ import annotations

from dataclasses import replace

import pytest

from reference_engine.config import DoorConfig, EngineConfig
from reference_engine.door import TurnedAwayError
from reference_engine.engine import Engine
from reference_engine.sequence import FinishReason, Sequence
from tests.reference_engine.stub import VirtualClock, make_sequence, run_to_end, stub_engine

MS = 1_000_000
CONFIG = EngineConfig(block_tokens=4, kv_tokens=1024, max_batch=2, chunk_tokens=32, max_model_len=256)


def engine_with(**rules: float) -> Engine:
    door = DoorConfig(**rules)  # type: ignore[arg-type]
    return stub_engine(replace(CONFIG, door=door, check_invariants=True))


def request(engine: Engine, prompt: int = 4, output: int = 20) -> Sequence:
    return make_sequence([1] * prompt, output, arrived_ns=engine.clock_ns())


def pass_time(engine: Engine, ns: int) -> None:
    assert isinstance(engine.clock_ns, VirtualClock)
    engine.clock_ns.now_ns += ns


def num_let_in(engine: Engine, number: int, **shape: int) -> int:
    num_in = 0
    for _ in range(number):
        try:
            engine.add(request(engine, **shape))
        except TurnedAwayError:
            continue
        num_in += 1
    return num_in


def test_without_rules_everybody_comes_in() -> None:
    engine = engine_with()
    assert num_let_in(engine, 50) == 50
    assert engine.drop_expired() == []
    run_to_end(engine)


def test_the_queue_is_capped_and_opens_again() -> None:
    engine = engine_with(max_waiting=3)
    assert num_let_in(engine, 10) == 3
    engine.step()  # two become resident
    assert num_let_in(engine, 10) == 2
    with pytest.raises(TurnedAwayError, match="3 requests are waiting"):
        engine.add(request(engine))
    assert engine.counters.refused == 7 + 8 + 1
    run_to_end(engine)


def test_the_bucket_lets_a_burst_in_and_then_its_rate() -> None:
    engine = engine_with(bucket_tokens=40, bucket_tokens_per_s=100.0)
    assert num_let_in(engine, 10, prompt=10) == 4
    pass_time(engine, 100 * MS)
    assert num_let_in(engine, 10, prompt=10) == 1
    pass_time(engine, 100_000 * MS)
    assert num_let_in(engine, 10, prompt=10) == 4  # never more than the bucket holds
    run_to_end(engine)


def test_a_wait_longer_than_promised_is_foreseen() -> None:
    engine = engine_with(max_wait_s=0.05)
    run_to_end(engine, [request(engine)])  # the first one teaches the rate
    num_in = num_let_in(engine, 50)
    assert 2 <= num_in < 20
    with pytest.raises(TurnedAwayError, match="first token would take about"):
        engine.add(request(engine))
    run_to_end(engine)
    engine.add(request(engine))  # nobody ahead: in again


def test_who_was_not_started_in_time_is_dropped_and_others_are_not() -> None:
    engine = engine_with(drop_after_s=0.01)
    requests = [request(engine, output=50) for _ in range(4)]
    for sequence in requests:
        engine.add(sequence)
    engine.step()
    pass_time(engine, 5 * MS)
    assert engine.drop_expired() == []
    pass_time(engine, 10 * MS)
    assert engine.drop_expired() == requests[2:]
    run_to_end(engine)
    reasons = [sequence.finish_reason for sequence in requests]
    assert reasons == [FinishReason.LENGTH] * 2 + [FinishReason.EXPIRED] * 2
    assert engine.counters.finished == {"length": 2, "expired": 2}
