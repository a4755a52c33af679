"""What a step of the reference engine costs: `python -m benchmarks.engine [--model tiny]`.

The decode curve (step time by batch, and what is left of it a request), the share of scheduling and
book-keeping, and the scheduler alone under a long queue. Times are processor time of the engine's one thread,
so that a busy machine disturbs them little; the best of many steps is taken.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.engine_process import build_engine
from reference_engine.sequence import Sequence, Span, SpanKind
from reference_engine.step import StepPlan
from reference_engine.steplog import NUM_VALUES, StepLog

BATCHES = (1, 2, 4, 8, 16, 32, 64)
NUM_PROMPT, NUM_OUTPUT = 64, 64  # contexts 64 to 128, 96 on average
QUEUE_CONFIG = EngineConfig(kv_tokens=1 << 20, max_batch=256, chunk_tokens=512)
NUM_WAITING = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The cheapest decode step of a batch, in milliseconds, and how much of it the model took."""

    batch: int
    step_ms: float
    model_ms: float


class TimedExecutor:
    """Runs another executor and remembers how long it took."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner.executor
        self.spent_s = 0.0

    def execute(self, plan: StepPlan) -> list[int]:
        started_s = time.thread_time()
        token_ids = self._inner.execute(plan)
        self.spent_s = time.thread_time() - started_s
        return token_ids


class NoModel:
    """Costs nothing and says 1."""

    def execute(self, plan: StepPlan) -> list[int]:
        return [1 if sequence.num_missing == n else -1 for sequence, n in plan.scheduled]


def requests(number: int, num_output: int) -> Iterator[Sequence]:
    rng = np.random.default_rng(number)
    for handle in range(number):
        prompt = rng.integers(1, 2049, NUM_PROMPT).tolist()
        yield Sequence(
            handle=handle,
            request_id=str(handle),
            tokens=prompt,
            num_prompt=NUM_PROMPT,
            max_tokens=num_output,
            arrived_ns=handle,
        )


def measure_curve(model: str) -> Iterator[StepCost]:
    engine = build_engine(EngineConfig(model=model))
    executor = engine.executor = TimedExecutor(engine)
    for batch in BATCHES:
        residents = list(requests(batch, NUM_OUTPUT))
        for sequence in residents:
            engine.add(sequence)
        costs: list[tuple[float, float]] = []
        while engine.has_work:
            is_decode = all(sequence.is_decoding for sequence in residents)
            started_s = time.thread_time()
            engine.step()
            if is_decode:
                costs.append((time.thread_time() - started_s, executor.spent_s))
        step_s, model_s = min(costs)
        yield StepCost(batch=batch, step_ms=1e3 * step_s, model_ms=1e3 * model_s)


def measure_queue() -> float:
    """Return the median milliseconds of a step without a model, at batch 256 with 10,000 waiting."""
    engine = build_engine(QUEUE_CONFIG)
    engine.executor = NoModel()
    for sequence in requests(QUEUE_CONFIG.max_batch + NUM_WAITING, 400):
        engine.add(sequence)
    times: list[float] = []
    for _ in range(300):
        started_s = time.thread_time()
        engine.step()
        times.append(time.thread_time() - started_s)
    return 1e3 * float(np.median(times[100:]))


def measure_step_log(batch: int) -> float:
    """Return the milliseconds that recording a decode step of so many takes, the best of many."""
    log, residents = StepLog(), list(requests(batch, 400))
    for sequence in residents:
        sequence.spans.append(Span(SpanKind.DECODE, 0, 0, 1))
    times: list[float] = []
    for step in range(1, 300):
        started_s = time.thread_time()
        for sequence in residents:
            sequence.note_decodes(step, step, 1, step - 1)
        log.add(*range(NUM_VALUES - 1))
        times.append(time.thread_time() - started_s)
    return 1e3 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", help="a shape, or a Hugging Face folder")
    model = parser.parse_args().model
    print(f"{model}, one thread, context 64-128, {platform.processor() or platform.machine()}")
    print("batch   step ms   a request us   scheduling")
    costs = list(measure_curve(model))
    for cost in costs:
        share = 1 - cost.model_ms / cost.step_ms
        print(f"{cost.batch:5} {cost.step_ms:9.3f} {1e3 * cost.step_ms / cost.batch:14.1f} {share:12.1%}")
    step_ms = {cost.batch: cost.step_ms for cost in costs}
    print(f"cost a request, batch 1 over 32: {32 * step_ms[1] / step_ms[32]:.1f} (target 8)")
    print(f"step log at batch 32: {measure_step_log(32) / step_ms[32]:.2%} of the step (target 2 %)")
    print(f"scheduler at batch 256 with 10,000 waiting: {measure_queue():.2f} ms (target 2)")


if __name__ == "__main__":
    main()
