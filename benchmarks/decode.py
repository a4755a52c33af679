"""The decode curve of a device: `python -m benchmarks.decode --device cuda --model 8b`.

For each batch and context: a whole decode step as the engine runs it (arrays packed and sent, the decoder,
the ids drawn and fetched) and the attention of its layers alone, each beside the bytes that it has to read,
as a share of what a plain copy moves here. Prints Markdown for docs/engine.md. Times are the best of several,
by the wall clock: run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from loadgen.environment import describe_environment
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
from reference_engine.devices import DEFAULT_MODELS, choose_device
from reference_engine.executors.batch import Batch
from reference_engine.executors.device import GraphCapture, send, size_of
from reference_engine.executors.torch import Forward, load_decoder, make_forward, tokens_that_fit
from reference_engine.kv_cache import BlockPool, BlockTables
from reference_engine.model import Decoder

GRIDS = {
    "cuda": ((1, 2, 4, 8, 16, 32, 64, 128, 256), (128, 512, 1024, 2048, 4096, 8192)),
    "cpu": ((1, 8, 32), (128, 1024)),
}
MAX_TOKENS = 800_000
COPIED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
NUM_TIMES = {"cuda": 20, "cpu": 5}
TARGETS = {(32, 1024): 0.7, (1, 1024): 0.5}  # of the copy bandwidth, for an 8B model on a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    batch: int
    context: int
    step_s: float
    step_bytes: int
    attention_s: float
    attention_bytes: int


def best_s(device: str, act: Callable[[], object]) -> float:
    """Return the shortest of several times that it takes until the device has done it."""
    act()
    times = []
    for _ in range(NUM_TIMES[device]):
        started = time.perf_counter()
        act()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)


def copy_bandwidth(device: str) -> float:
    """Return the bytes per second that a copy reads and writes."""
    source = torch.ones(COPIED_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES[device] / best_s(device, lambda: target.copy_(source))


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


class Curve:
    """A loaded model, measured point by point."""

    def __init__(self, config: EngineConfig, decoder: Decoder) -> None:
        self._device, self._page, self._decoder = config.device, config.block_tokens, decoder
        tables = BlockTables(
            BlockPool(config.num_blocks), config.block_tokens, config.max_batch, config.max_model_len
        )
        self._forward: Forward = make_forward(config, decoder, tables)

    def measure(self, batch: int, context: int) -> Point:
        decoder, step = self._decoder, decode_batch(batch, context, self._page)
        matrices = [decoder.weights.head]
        for layer in decoder.weights.layers:
            matrices += [layer.qkv, layer.attention_out, layer.gate_up, layer.down]
        cache_bytes = batch * context * self._forward.pages.blocks[:, 0].nbytes // self._page
        return Point(
            batch=batch,
            context=context,
            step_s=best_s(self._device, lambda: self._forward.forward(step).argmax(1).tolist()),
            step_bytes=sum(matrix.nbytes for matrix in matrices) + cache_bytes,
            attention_s=best_s(self._device, self._attention(step)),
            attention_bytes=cache_bytes,
        )

    def _attention(self, batch: Batch) -> Callable[[], object]:
        """Return what runs the attention of every layer; on a GPU, a graph."""
        shape, pages = self._decoder.shape, self._forward.pages
        query = torch.randn(len(batch.starts), shape.heads * shape.head_dim).to(pages.blocks)
        key_value = torch.randn(len(batch.starts), 2 * shape.kv_heads * shape.head_dim).to(pages.blocks)
        if self._device == "cpu":
            on_host = PagedAttention(shape, pages)
            on_host.prepare(batch.tables, batch.starts, batch.counts, batch.store_at)
            return lambda: [on_host.attend(layer, query, key_value) for layer in range(shape.layers)]
        attention = self._ragged(batch, pages)

        def attend_all() -> Tensor:
            return [attention.attend(layer, query, key_value) for layer in range(shape.layers)][-1]

        return GraphCapture()(attend_all)

    def _ragged(self, batch: Batch, pages: Pages) -> RaggedAttention:
        from reference_engine.attention.kernels import attend_tiles

        shape = self._decoder.shape
        spans_and_tables = step_spans(
            batch.tables, batch.starts, batch.counts, pages.page, rows_of_tile(shape)
        )
        parts = [batch.store_at, *spans_and_tables]
        room = torch.empty(size_of(parts), dtype=torch.int64, device=pages.blocks.device)
        store_at, spans, tables = send(parts, room)
        tiles = make_tiles(shape, spans, len(batch.starts), len(batch.starts))
        plan = ReadingPlan(tables=tables, store_at=store_at, tiles=tiles)
        return RaggedAttention(pages, geometries_of(shape, pages.page), plan, attend_tiles)


def show(point: Point, bandwidth: float) -> str:
    def rate(num_bytes: int, seconds: float) -> str:
        return f"{num_bytes / seconds / 1e9:,.0f} | {num_bytes / seconds / bandwidth:.0%}"

    return (
        f"| {point.batch} | {point.context:,} | {1e3 * point.step_s:.2f} | {point.batch / point.step_s:,.0f} "
        f"| {point.step_bytes / 1e6:,.0f} | {rate(point.step_bytes, point.step_s)} "
        f"| {1e3 * point.attention_s:.2f} | {rate(point.attention_bytes, point.attention_s)} |"
    )


def head_of_table(model: str, decoder: Decoder, device: Device, bandwidth: float) -> str:
    name = (
        torch.cuda.get_device_name() if device == "cuda" else describe_environment()["machine"]["cpu_model"]
    )
    dtype = str(decoder.weights.norm.dtype).removeprefix("torch.")
    return (
        f"{model}, {dtype}, {name}, torch {torch.__version__}, {datetime.now(UTC):%d %B %Y};"
        f" a copy moves {bandwidth / 1e9:,.0f} GB/s.\n\n"
        "| batch | context | step, ms | tokens/s | read, MB | GB/s | of a copy"
        " | attention, ms | GB/s | of a copy |\n|" + "---|" * 10
    )


def parse_args() -> tuple[Device, str]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", choices=("auto", *get_args(Device)))
    parser.add_argument("--model", help="a shape or a Hugging Face folder; tiny, on CUDA 1b")
    args = parser.parse_args()
    try:
        device = choose_device(args.device)
    except ConfigError as error:
        parser.error(str(error))
    return device, args.model or DEFAULT_MODELS[device]


@torch.inference_mode()
def main() -> None:
    device, model = parse_args()
    batches, contexts = GRIDS[device]
    config = EngineConfig(model=model, device=device, max_batch=max(batches), max_model_len=max(contexts))
    torch.set_num_threads(config.threads)
    decoder, bandwidth = load_decoder(config), copy_bandwidth(device)
    room = MAX_TOKENS
    if device == "cuda":
        room = min(room, tokens_that_fit(decoder, config.block_tokens))
    grid = [(batch, context) for batch in batches for context in contexts if batch * context <= room]
    curve = Curve(replace(config, kv_tokens=max(batch * context for batch, context in grid)), decoder)
    print(head_of_table(model, decoder, device, bandwidth))
    shares = {}
    for batch, context in grid:
        point = curve.measure(batch, context)
        shares[batch, context] = point.step_bytes / point.step_s / bandwidth
        print(show(point, bandwidth), flush=True)
    if model == "8b" and device == "cuda":
        for (batch, context), target in TARGETS.items():
            share = shares[batch, context]
            print(f"\nbatch {batch}, context {context:,}: {share:.0%} of a copy (target {target:.0%})")


if __name__ == "__main__":
    main()
