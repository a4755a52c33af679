"""The decode curve of this device: `python -m reference_engine.decode_curve` prints it as JSON.

For each model and batch: a whole decode step of the engine, and the attention of all its layers alone, each
with the bytes that it has to read (weights and keys and values; keys and values), beside the bandwidth of a
plain sum over memory. Times are processor time of the one thread that computes, the best of many steps, so
that other work on the machine disturbs them little.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from reference_engine.attention.paged import PagedAttention
from reference_engine.attention.pages import Pages
from reference_engine.config import EngineConfig, ModelShape
from reference_engine.engine_process import build_engine
from reference_engine.executors.torch import load_decoder
from reference_engine.model_info import describe_model
from reference_engine.sequence import Sequence

BATCHES = (1, 2, 4, 8, 16, 32)
NUM_PROMPT, NUM_OUTPUT = 128, 32
CONTEXT = NUM_PROMPT + NUM_OUTPUT // 2
NUM_TIMES = 30
NUM_BYTES = 4  # float32
SUMMED_BYTES = 1 << 28


def config_of(model: str) -> EngineConfig:
    return EngineConfig(model=model, dtype="float32", chunk_tokens=2048)


def requests(number: int) -> Iterator[Sequence]:
    """Requests that decode side by side, each with a prompt of its own."""
    rng = np.random.default_rng(number)
    for handle in range(number):
        yield Sequence(
            handle=handle,
            request_id=str(handle),
            tokens=rng.integers(1, 2049, NUM_PROMPT).tolist(),
            num_prompt=NUM_PROMPT,
            max_tokens=NUM_OUTPUT,
            arrived_ns=handle,
        )


def best_s(act: Callable[[], object]) -> float:
    """Return the least processor time of many calls."""
    times = []
    for _ in range(NUM_TIMES):
        started = time.thread_time()
        act()
        times.append(time.thread_time() - started)
    return min(times)


def measure_bandwidth() -> float:
    """Return the bytes per second of a sum over memory that no cache holds."""
    numbers = torch.ones(SUMMED_BYTES // NUM_BYTES)
    return SUMMED_BYTES / best_s(numbers.sum)


def measure_steps(model: str) -> Iterator[float]:
    """Yield the time of a decode step for each batch."""
    engine = build_engine(config_of(model))
    for batch in BATCHES:
        residents = list(requests(batch))
        for sequence in residents:
            engine.add(sequence)
        times = []
        while engine.has_work:
            is_decode = all(sequence.is_decoding for sequence in residents)
            started = time.thread_time()
            engine.step()
            if is_decode:
                times.append(time.thread_time() - started)
        yield min(times)


@torch.inference_mode()
def measure_attention(shape: ModelShape, batch: int) -> float:
    """Return the time of the attention of one decode step, over all layers, at the mean context."""
    page = EngineConfig().block_tokens
    num_pages = -(-CONTEXT // page)
    attention = PagedAttention(shape, Pages(shape, batch * num_pages, page))
    tables = np.arange(batch * num_pages).reshape(batch, num_pages)
    starts, counts = np.full(batch, CONTEXT - 1), np.ones(batch, np.int64)
    attention.prepare(tables, starts, counts, tables[:, -1] * page + (CONTEXT - 1) % page)
    query = torch.randn(batch, shape.heads * shape.head_dim)
    key_value = torch.randn(batch, 2 * shape.kv_heads * shape.head_dim)
    return best_s(lambda: [attention.attend(layer, query, key_value) for layer in range(shape.layers)])


def measure_curve(model: str) -> Iterator[dict[str, Any]]:
    """Yield a point of the curve for each batch."""
    shape, weights = describe_model(model).shape, load_decoder(config_of(model)).weights
    parts = [(layer.qkv, layer.attention_out, layer.gate_up, layer.down) for layer in weights.layers]
    weight_bytes = sum(matrix.nbytes for layer in parts for matrix in layer) + weights.head.nbytes
    context_bytes = NUM_BYTES * CONTEXT * shape.layers * 2 * shape.kv_heads * shape.head_dim
    for batch, step_s in zip(BATCHES, measure_steps(model), strict=True):
        yield {
            "model": model,
            "batch": batch,
            "step_s": step_s,
            "step_bytes": weight_bytes + batch * context_bytes,
            "attention_s": measure_attention(shape, batch),
            "attention_bytes": batch * context_bytes,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="tiny,base", help="shapes, by name")
    models = parser.parse_args().models.split(",")
    torch.set_num_threads(1)
    document = {
        "schema_version": 1,
        "device": f"{platform.processor() or platform.machine()}, one thread, float32",
        "context_tokens": CONTEXT,
        "bandwidth_bytes_per_s": measure_bandwidth(),
        "points": [point for model in models for point in measure_curve(model)],
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
