"""Runs the decoder on a GPU: one packed copy in, decode steps replayed as CUDA graphs, mixed steps eagerly.

A graph is captured for each of some batch sizes, over arrays at fixed places; a smaller batch is padded with
rows that read nothing and write to a block of their own. Nothing here waits for the device: the executor
does, once a step, when it asks for the token ids. Only `GraphCapture` is bound to CUDA: tests run the same
code on a CPU with `call_again` in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reference_engine.attention.pages import Pages
from reference_engine.attention.ragged import (
    AttendTiles,
    RaggedAttention,
    ReadingPlan,
    geometries_of,
    make_tiles,
    num_splits,
    rows_of_tile,
    step_spans,
)
from reference_engine.executors.batch import Batch, Ints, blank_batch
from reference_engine.model import Decoder

Compute = Callable[[], Tensor]
ALIGNED = 16  # int64s: a kernel is compiled once more for addresses that are no multiple of 16 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a step reads, on the device."""

    token_ids: Tensor
    positions: Tensor
    emit_rows: Tensor
    plan: ReadingPlan


def size_of(parts: list[Ints]) -> int:
    """Return the room that `send` needs for these arrays, at most."""
    return sum(part.size + ALIGNED for part in parts)


def send(parts: list[Ints], room: Tensor) -> list[Tensor]:
    """Copy arrays to the device in one transfer; return each there, the last with all the room behind it.

    Arrays of the same sizes sent to the same room land at the same addresses, the last whatever its size.
    """
    host = torch.empty(size_of(parts), dtype=torch.int64, pin_memory=room.is_cuda)
    array, end, views = host.numpy(), 0, []
    for part in parts:
        first = -(-end // ALIGNED) * ALIGNED
        end = first + part.size
        array[first:end] = part.ravel()
        views.append(room[first:end].view(part.shape))
    room[:end].copy_(host[:end], non_blocking=True)
    return [*views[:-1], room[first:]]


def graph_sizes(max_batch: int) -> list[int]:
    """Return the batch sizes to capture: 1, 2, 4, 8, every 16 from there, and `max_batch`."""
    return [*(size for size in (1, 2, 4, 8) if size < max_batch), *range(16, max_batch, 16), max_batch]


def call_again(compute: Compute) -> Compute:
    """Stand in for `GraphCapture` where there is no CUDA."""
    return compute


class GraphCapture:
    """Records what a computation launches, to be replayed; all graphs share one pool, for only one runs."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute) -> Compute:
        """Return what replays `compute` and returns the tensor that it wrote when it was recorded."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            compute()  # libraries and kernels set themselves up, which must not be recorded
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = compute()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


class DeviceForward:
    """A decoder over pages on one device. The last block of `pages` is nobody's: padding writes there."""

    def __init__(
        self,
        decoder: Decoder,
        pages: Pages,
        *,
        max_batch: int,
        max_blocks: int,
        attend_tiles: AttendTiles,
        capture: Callable[[Compute], Compute],
    ) -> None:
        """max_blocks: of one sequence."""
        self.pages = pages
        self._decoder = decoder
        self._attend_tiles = attend_tiles
        self._capture = capture
        self._sizes = graph_sizes(max_batch)
        self._geometries = geometries_of(decoder.shape, pages.page)
        self._scratch = (pages.blocks.shape[1] - 1) * pages.page
        self._graphs: dict[int, Compute] = {}
        widest = blank_batch(max_batch, 1, 0)
        self._room = self._make_room(size_of(self._parts(widest)) + max_batch * max_blocks)

    def warm_up(self) -> None:
        """Capture every size, the largest first, whose memory others then use; compile what chunks need."""
        for size in reversed(self._sizes):
            self._decode(blank_batch(0, 1, 0).padded(size, self._scratch))
        shape, num_tiles = self._decoder.shape, 1
        count = min(rows_of_tile(shape), self._decoder.max_positions)
        while num_splits(num_tiles, shape.kv_heads, 1) > 1:
            self._mixed(blank_batch(num_tiles, count, self._scratch))
            num_tiles *= 2
        self._mixed(blank_batch(num_tiles, count, self._scratch))

    def forward(self, batch: Batch) -> Tensor:
        """Return logits [len(emit_rows), output ids], on the device and perhaps not computed yet."""
        if batch.is_decode:
            size = next(size for size in self._sizes if size >= len(batch.starts))
            return self._decode(batch.padded(size, self._scratch))[: len(batch.starts)]
        return self._mixed(batch)

    def _mixed(self, batch: Batch) -> Tensor:
        parts = self._parts(batch)
        return self._compute(self._send(batch, parts, self._make_room(size_of(parts))))

    def _decode(self, batch: Batch) -> Tensor:
        size, inputs = len(batch.starts), self._send(batch, self._parts(batch), self._room)
        if size not in self._graphs:
            self._graphs[size] = self._capture(lambda: self._compute(inputs))
        return self._graphs[size]()

    def _parts(self, batch: Batch) -> list[Ints]:
        spans, blocks = step_spans(
            batch.tables, batch.starts, batch.counts, self.pages.page, rows_of_tile(self._decoder.shape)
        )
        return [batch.token_ids, batch.positions, batch.emit_rows, batch.store_at, spans, blocks]

    def _make_room(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int64, device=self.pages.blocks.device)

    def _send(self, batch: Batch, parts: list[Ints], room: Tensor) -> Inputs:
        token_ids, positions, emit_rows, store_at, spans, tables = send(parts, room)
        num_rows = int(np.count_nonzero(batch.counts == 1))
        tiles = make_tiles(self._decoder.shape, spans, num_rows, len(token_ids))
        plan = ReadingPlan(tables=tables, store_at=store_at, tiles=tiles)
        return Inputs(token_ids=token_ids, positions=positions, emit_rows=emit_rows, plan=plan)

    def _compute(self, inputs: Inputs) -> Tensor:
        attention = RaggedAttention(self.pages, self._geometries, inputs.plan, self._attend_tiles)
        return self._decoder.forward(inputs.token_ids, inputs.positions, inputs.emit_rows, attention)
