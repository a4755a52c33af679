"""The decode curve of a device: `python -m reference_engine.decode_curve --device cuda --models 8b`.

For each model, batch and context: a decode step as the engine runs it (arrays packed and sent, the decoder,
the ids drawn and fetched; scheduling apart) and the attention of its layers alone, each with the bytes that
it has to read (weights and keys and values; keys and values), beside the bandwidth of memory here. Prints
Markdown, or JSON. Times are the best of many: on a CPU the processor time of the one thread that computes, so
that other work disturbs them little; on a GPU the time until it has done.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from reference_engine.attention.paged import PagedAttention
from reference_engine.attention.pages import Pages
from reference_engine.attention.ragged import (
    RaggedAttention,
    ReadingPlan,
    geometries_of,
    make_tiles,
    rows_of_tile,
    step_spans,
)
from reference_engine.config import ConfigError, Device, EngineConfig
from reference_engine.devices import choose_device
from reference_engine.engine_process import keep_freed_memory
from reference_engine.executors.batch import Batch
from reference_engine.executors.device import GraphCapture, send, size_of
from reference_engine.executors.torch import Forward, load_decoder, make_forward, tokens_that_fit
from reference_engine.kv_cache import BlockPool, BlockTables
from reference_engine.model import Decoder

MODELS = {"cpu": ("tiny", "base"), "cuda": ("1b",)}
BATCHES = {"cpu": (1, 2, 4, 8, 16, 32), "cuda": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
CONTEXTS = {"cpu": (144, 1024), "cuda": (128, 512, 1024, 2048, 4096, 8192)}
MAX_TOKENS = 800_000
MOVED_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
NUM_TIMES = 30
HEAD = (
    "| model | batch | context | step, ms | tokens/s | read, MB | GB/s | share"
    " | attention, ms | GB/s | share |\n|" + "---|" * 11
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    model: str
    batch: int
    context: int
    step_s: float
    step_bytes: int
    attention_s: float
    attention_bytes: int

    def row(self, bandwidth: float) -> str:
        def rate(num_bytes: int, seconds: float) -> str:
            return f"{num_bytes / seconds / 1e9:,.0f} | {num_bytes / seconds / bandwidth:.0%}"

        return (
            f"| {self.model} | {self.batch} | {self.context:,} "
            f"| {1e3 * self.step_s:.2f} | {self.batch / self.step_s:,.0f} "
            f"| {self.step_bytes / 1e6:,.0f} | {rate(self.step_bytes, self.step_s)} "
            f"| {1e3 * self.attention_s:.2f} | {rate(self.attention_bytes, self.attention_s)} |"
        )


def best_s(device: Device, act: Callable[[], object]) -> float:
    """Return the least time of many calls."""
    clock = time.thread_time if device == "cpu" else time.perf_counter
    act()
    times = []
    for _ in range(NUM_TIMES):
        started = clock()
        act()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - started)
    return min(times)


def measure_bandwidth(device: Device) -> float:
    """Return bytes per second: of a copy on a GPU, of a sum on a CPU, where writes read first."""
    source = torch.ones(MOVED_BYTES[device] // 4, device=device)
    if device == "cpu":
        return source.nbytes / best_s(device, source.sum)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_s(device, lambda: target.copy_(source))


def decode_batch(batch: int, context: int, page: int) -> Batch:
    """Return a step of sequences that have `context` tokens with the one that they decode."""
    num_pages, last = -(-context // page), context - 1
    tables = np.random.default_rng(0).permutation(batch * num_pages).reshape(batch, num_pages)
    return Batch(
        token_ids=np.arange(batch) % 500 + 1,
        positions=np.full(batch, last),
        store_at=tables[:, last // page] * page + last % page,
        tables=tables,
        starts=np.full(batch, last),
        counts=np.ones(batch, np.int64),
        emit_rows=np.arange(batch),
    )


def all_layers(decoder: Decoder, pages: Pages, batch: Batch, device: Device) -> Callable[[], object]:
    """Return what runs the attention of every layer; on a GPU, a graph."""
    shape, num = decoder.shape, len(batch.starts)
    query = torch.randn(num, shape.heads * shape.head_dim).to(pages.blocks)
    key_value = torch.randn(num, 2 * shape.kv_heads * shape.head_dim).to(pages.blocks)
    if device == "cpu":
        on_host = PagedAttention(shape, pages)
        on_host.prepare(batch.tables, batch.starts, batch.counts, batch.store_at)
        return lambda: [on_host.attend(layer, query, key_value) for layer in range(shape.layers)]
    from reference_engine.attention.kernels import attend_tiles

    cut = step_spans(batch.tables, batch.starts, batch.counts, pages.page, rows_of_tile(shape))
    parts = [batch.store_at, *cut]
    room = torch.empty(size_of(parts), dtype=torch.int64, device=pages.blocks.device)
    store_at, spans, tables = send(parts, room)
    plan = ReadingPlan(tables=tables, store_at=store_at, tiles=make_tiles(shape, spans, num, num))
    ragged = RaggedAttention(pages, geometries_of(shape, pages.page), plan, attend_tiles)

    def attend_all() -> Tensor:
        return [ragged.attend(layer, query, key_value) for layer in range(shape.layers)][-1]

    return GraphCapture()(attend_all)


@torch.inference_mode()
def measure_curve(
    model: str, device: Device, batches: tuple[int, ...], contexts: tuple[int, ...]
) -> Iterator[Point]:
    """Yield a point for each batch and context of which the cache holds all tokens."""
    config = EngineConfig(
        model=model,
        device=device,
        dtype="float32" if device == "cpu" else "auto",
        max_batch=max(batches),
        max_model_len=max(contexts),
        kv_tokens=MAX_TOKENS,
    )
    decoder, page = load_decoder(config), config.block_tokens
    room = MAX_TOKENS if device == "cpu" else min(MAX_TOKENS, tokens_that_fit(decoder, page))
    grid = [(batch, context) for batch in batches for context in contexts if batch * context <= room]
    most = max(batch * -(-context // page) for batch, context in grid)
    tables = BlockTables(BlockPool(most), page, config.max_batch, config.max_model_len)
    forward = make_forward(config, decoder, tables)
    matrices = [decoder.weights.head]
    for layer in decoder.weights.layers:
        matrices += [layer.qkv, layer.attention_out, layer.gate_up, layer.down]
    weight_bytes = sum(matrix.nbytes for matrix in matrices)
    for batch, context in grid:
        step = decode_batch(batch, context, page)
        context_bytes = batch * context * forward.pages.blocks[:, 0].nbytes // page
        yield Point(
            model=model,
            batch=batch,
            context=context,
            step_s=best_s(device, partial(decode, forward, step)),
            step_bytes=weight_bytes + context_bytes,
            attention_s=best_s(device, all_layers(decoder, forward.pages, step, device)),
            attention_bytes=context_bytes,
        )


def decode(forward: Forward, step: Batch) -> list[int]:
    """Run a step up to the ids that it draws."""
    ids: list[int] = forward.forward(step).argmax(1).tolist()
    return ids


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", choices=("auto", *get_args(Device)))
    parser.add_argument("--models", help="shapes or Hugging Face folders; tiny,base, on CUDA 1b")
    parser.add_argument("--batches", type=numbers, help="such as 1,8,32")
    parser.add_argument("--contexts", type=numbers, help="tokens, such as 128,1024")
    parser.add_argument("--json", action="store_true", help="the points as one JSON document")
    args = parser.parse_args()
    try:
        args.device = choose_device(args.device)
    except ConfigError as error:
        parser.error(str(error))
    return args


def main() -> None:
    args = parse_args()
    device: Device = args.device
    models = args.models.split(",") if args.models else MODELS[device]
    batches, contexts = args.batches or BATCHES[device], args.contexts or CONTEXTS[device]
    torch.set_num_threads(1)
    keep_freed_memory()
    bandwidth = measure_bandwidth(device)
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.processor() or platform.machine()}, one thread, float32"
    )
    points = [point for model in models for point in measure_curve(model, device, batches, contexts)]
    if args.json:
        document = {
            "schema_version": 1,
            "device": name,
            "bandwidth_bytes_per_s": bandwidth,
            "points": [asdict(point) for point in points],
        }
        print(json.dumps(document, indent=2))
        return
    print(f"{name}, torch {torch.__version__}, {datetime.now(UTC):%d %B %Y}; {bandwidth / 1e9:,.0f} GB/s\n")
    print("\n".join([HEAD, *(point.row(bandwidth) for point in points)]))


if __name__ == "__main__":
    main()
