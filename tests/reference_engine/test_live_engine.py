"""Policies on the real model: what queueing theory says of them holds on torch as well."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.engine_process import build_engine
from reference_engine.sequence import Sequence
from tests.reference_engine.stub import make_sequence

pytestmark = pytest.mark.engine

BATCH = 8
CONFIG = EngineConfig(model="nano", max_batch=BATCH, kv_tokens=16_384, max_model_len=512)
CONSTANT = [40] * 80
GEOMETRIC = np.random.default_rng(1).geometric(1 / 12, 480).clip(1, 400).tolist()


class Saturated:
    """An engine with everybody there from the start; begins again when it is through."""

    def __init__(self, policy: str, lengths: list[int]) -> None:
        self._engine = build_engine(replace(CONFIG, policy=policy))
        self._lengths = lengths
        self._times: list[float] = []
        self.num_steps = 0  # of one pass, once it is known

    def step(self) -> None:
        if not self._engine.has_work:
            self.num_steps = self.num_steps or len(self._times)
            for length in self._lengths:
                self._engine.add(make_sequence([5], length))
        started_s = time.thread_time()
        self._engine.step()
        self._times.append(time.thread_time() - started_s)

    @property
    def cpu_s(self) -> float:
        return self.num_steps * float(np.median(self._times))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [(CONSTANT, 1.0), (GEOMETRIC, sum(1 / k for k in range(1, BATCH + 1)))],
    ids=["constant", "geometric"],
)
def test_saturated_throughput_over_static_is_the_oracles(lengths: list[int], expected: float) -> None:
    static, continuous = Saturated("static", lengths), Saturated("vllm-v1", lengths)
    while not (static.num_steps and continuous.num_steps):
        for engine in (static, continuous):  # turn by turn: what disturbs one disturbs the other
            engine.step()
    assert static.cpu_s / continuous.cpu_s == pytest.approx(expected, rel=0.15)


def newcomer_ttft_s(policy: str) -> float:
    """Return the 99th percentile of the wait of short requests that come while others run."""
    engine = build_engine(replace(CONFIG, policy=policy))
    rng = np.random.default_rng(2)
    pending = [make_sequence([7] * 8, int(n)) for n in rng.geometric(1 / 30, 80).clip(1, 300)]
    started: list[Sequence] = []
    while pending or engine.has_work:
        if pending and engine.log.num_steps >= 8 * len(started):
            started.append(arrive(engine, pending.pop()))
        engine.step()
    waits = [(s.first_token_ns or 0) - s.arrived_ns for s in started]
    return float(np.quantile(waits, 0.99)) / 1e9


def arrive(engine: Engine, sequence: Sequence) -> Sequence:
    sequence.arrived_ns = engine.clock_ns()
    engine.add(sequence)
    return sequence


def test_newcomers_wait_far_longer_under_static() -> None:
    assert newcomer_ttft_s("static") > 5 * newcomer_ttft_s("vllm-v1")
