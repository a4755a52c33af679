"""The CUDA path on a CPU: its plans, its static buffers, and its kernels where Triton's interpreter is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reference_engine.attention import ragged
from reference_engine.attention.paged import PagedAttention
from reference_engine.attention.pages import Pages
from reference_engine.attention.ragged import (
    AttendTiles,
    geometries_of,
    make_tiles,
    num_splits,
    rows_of_tile,
    step_spans,
)
from reference_engine.config import Device, EngineConfig, ModelShape
from reference_engine.engine_process import build_engine
from reference_engine.executors.batch import Batch, blank_batch
from reference_engine.executors.device import (
    DeviceForward,
    GraphCapture,
    call_again,
    graph_sizes,
    send,
    size_of,
)
from reference_engine.executors.torch import load_decoder
from reference_engine.kv_cache import BlockTables
from reference_engine.model import Decoder
from reference_engine.sampling import draw
from reference_engine.sequence import Sampling
from reference_engine.weights import random_weights
from tests.reference_engine.ragged import attend_row_by_row
from tests.reference_engine.stub import answer_of, make_sequence, run_to_end

HAS_CUDA = torch.cuda.is_available()
DEVICE = "cuda" if HAS_CUDA else "cpu"
# The interpreter multiplies bfloat16 matrices as if they were integers.
HALF = torch.bfloat16 if HAS_CUDA else torch.float16
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="no CUDA device, and no triton for its interpreter: pip install triton==3.7.1",
)
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="no CUDA device")

SHAPE = ModelShape(hidden=32, layers=2, heads=6, kv_heads=2, head_dim=8, intermediate=48)
WINDOWED = replace(SHAPE, window_tokens=13, windowed_layers=frozenset({1}))
PAGE, NUM_BLOCKS, MAX_BATCH, MAX_BLOCKS = 4, 420, 17, 20
NUM_IDS = 50


def triton_kernels(monkeypatch: pytest.MonkeyPatch) -> AttendTiles:
    if not HAS_CUDA:
        monkeypatch.setenv("TRITON_INTERPRET", "1")  # read where the kernels are defined
    from reference_engine.attention import kernels

    monkeypatch.setattr(kernels, "MIN_SPLIT_TOKENS", 32)  # so that short contexts are split,
    monkeypatch.setattr(ragged, "NUM_PROGRAMS", 8)  # and few programs do: they are interpreted one by one
    return kernels.attend_tiles


@pytest.fixture(params=["row by row", pytest.param("triton", marks=needs_triton)])
def attend_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AttendTiles:
    return attend_row_by_row if request.param == "row by row" else triton_kernels(monkeypatch)


def draw_batch(rng: np.random.Generator, starts: list[int], counts: list[int]) -> Batch:
    """Make a step of sequences with blocks of their own, strewn over the pool; all of them emit."""
    at = np.array(starts), np.array(counts)
    tables = rng.permutation(NUM_BLOCKS)[: len(starts) * MAX_BLOCKS].reshape(len(starts), -1)
    positions = [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
    store_at = [row[p // PAGE] * PAGE + p % PAGE for row, p in zip(tables, positions, strict=True)]
    return Batch(
        token_ids=rng.integers(NUM_IDS, size=sum(counts)),
        positions=np.concatenate(positions),
        store_at=np.concatenate(store_at),
        tables=tables[:, : (max(np.add(starts, counts)) - 1) // PAGE + 1],
        starts=at[0],
        counts=at[1],
        emit_rows=at[1].cumsum() - 1,
    )


def random_decoder(shape: ModelShape) -> Decoder:
    return Decoder(shape, random_weights(shape, NUM_IDS, NUM_IDS, seed=1), PAGE * MAX_BLOCKS)


def moved(decoder: Decoder, device: str) -> Decoder:
    """Copy a decoder to a device: another device draws other weights."""
    weights = decoder.weights
    layers = tuple(
        replace(
            layer,
            **{f.name: m.to(device) for f in fields(layer) if (m := getattr(layer, f.name)) is not None},
        )
        for layer in weights.layers
    )
    there = replace(
        weights,
        embedding=weights.embedding.to(device),
        layers=layers,
        norm=weights.norm.to(device),
        head=weights.head.to(device),
    )
    return Decoder(decoder.shape, there, decoder.max_positions)


def device_of(attend_tiles: AttendTiles) -> Device:
    return "cuda" if HAS_CUDA and attend_tiles is not attend_row_by_row else "cpu"


def device_forward(
    decoder: Decoder, pages: Pages, max_batch: int, max_blocks: int, attend_tiles: AttendTiles
) -> DeviceForward:
    return DeviceForward(
        decoder,
        pages,
        max_batch=max_batch,
        max_blocks=max_blocks,
        attend_tiles=attend_tiles,
        capture=GraphCapture() if device_of(attend_tiles) == "cuda" else call_again,
    )


class Pair:
    """The same pages twice: read by the CPU's attention, and by the forward pass that is made for a GPU."""

    def __init__(self, shape: ModelShape, attend_tiles: AttendTiles) -> None:
        host_pages = Pages(shape, NUM_BLOCKS, PAGE)
        self._decoder, self._attention = random_decoder(shape), PagedAttention(shape, host_pages)
        self._blocks = host_pages.blocks.normal_(generator=torch.Generator().manual_seed(3))
        self._pages = Pages(shape, NUM_BLOCKS + 1, PAGE, device=device_of(attend_tiles))
        self._pages.blocks[:, :-1] = self._blocks
        decoder = moved(self._decoder, device_of(attend_tiles))
        self.forward = device_forward(decoder, self._pages, MAX_BATCH, MAX_BLOCKS, attend_tiles)

    def check(self, batch: Batch) -> None:
        """Run a step both ways: the same logits, and the same pages after it."""
        self._attention.prepare(batch.tables, batch.starts, batch.counts, batch.store_at)
        arrays = (batch.token_ids, batch.positions, batch.emit_rows)
        token_ids, positions, emit_rows = map(torch.from_numpy, arrays)
        expected = self._decoder.forward(token_ids, positions, emit_rows, self._attention)
        got = self.forward.forward(batch).cpu()
        torch.testing.assert_close(got, expected, atol=3e-5, rtol=1e-4)
        torch.testing.assert_close(self._pages.blocks[:, :-1].cpu(), self._blocks, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [SHAPE, WINDOWED], ids=["full", "window"])
def test_mixed_steps_equal_the_attention_of_the_cpu(shape: ModelShape, attend_tiles: AttendTiles) -> None:
    pair, rng = Pair(shape, attend_tiles), np.random.default_rng(7)
    pair.check(draw_batch(rng, [0], [25]))
    pair.check(draw_batch(rng, [35, 0], [45, 30]))  # of several tiles, and one with a past
    pair.check(draw_batch(rng, [0, 13, 79, 31, 0, 41], [1, 1, 1, 2, 22, 21]))


@pytest.mark.parametrize("shape", [SHAPE, WINDOWED], ids=["full", "window"])
def test_decode_steps_reuse_the_buffers_of_their_size(shape: ModelShape, attend_tiles: AttendTiles) -> None:
    pair, rng = Pair(shape, attend_tiles), np.random.default_rng(8)
    for num_rows in (3, 4, 1, 3, MAX_BATCH):
        starts = np.sort(rng.integers(0, PAGE * MAX_BLOCKS, num_rows)).tolist()
        pair.check(draw_batch(rng, starts, [1] * num_rows))


def test_a_step_that_emits_nothing_and_one_that_emits_a_part(attend_tiles: AttendTiles) -> None:
    pair, rng = Pair(SHAPE, attend_tiles), np.random.default_rng(9)
    batch = draw_batch(rng, [5, 0], [1, 30])
    pair.check(replace(batch, emit_rows=batch.emit_rows[:0]))
    pair.check(replace(batch, emit_rows=batch.emit_rows[:1]))
    # Each has one token, but not the last of its prompt.
    batch = draw_batch(rng, [5, 20], [1, 1])
    pair.check(replace(batch, emit_rows=batch.emit_rows[1:]))


def test_an_engine_says_the_same_on_the_path_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, attend_tiles: AttendTiles
) -> None:
    """Shared prefixes, eviction by swapping and chunks, with memory for a few requests at a time."""
    config = EngineConfig(
        model="nano",
        kv_tokens=192,
        max_model_len=128,
        max_batch=9,
        chunk_tokens=40,
        is_prefix_shared=True,
        swap_tokens=256,
        dtype="float32",
        knobs={"swap": True},
        check_invariants=True,
    )
    rng = np.random.default_rng(2)
    requests = [
        (rng.integers(1, 2000, rng.integers(1, 50)).tolist(), int(rng.integers(1, 12))) for _ in range(9)
    ]

    def answers(config: EngineConfig) -> tuple[list[list[int]], int]:
        sequences = [make_sequence(prompt, max_tokens) for prompt, max_tokens in requests]
        engine = build_engine(config)
        run_to_end(engine, sequences)
        return [answer_of(sequence) for sequence in sequences], engine.counters.preemptions

    expected, num_preemptions = answers(config)
    decoder, device = load_decoder(config), device_of(attend_tiles)

    def make_device_forward(config: EngineConfig, decoder: Decoder, tables: BlockTables) -> DeviceForward:
        sizes = tables.pool.num_blocks + 1, config.block_tokens, config.num_swap_blocks
        pages = Pages(decoder.shape, *sizes, device=device)
        max_batch, max_blocks = tables.tables.shape
        return device_forward(decoder, pages, max_batch, max_blocks, attend_tiles)

    monkeypatch.setattr("reference_engine.executors.torch.load_decoder", lambda _: moved(decoder, device))
    monkeypatch.setattr("reference_engine.executors.torch.make_forward", make_device_forward)
    monkeypatch.setattr(ragged, "NUM_PROGRAMS", 2)  # a short warm-up
    assert answers(replace(config, device=device)) == (expected, num_preemptions)
    assert num_preemptions > 0


@needs_triton
@pytest.mark.parametrize(("head_dim", "group"), [(8, 3), (20, 7), (64, 4), (128, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_kernels_take_any_head(
    head_dim: int, dtype: torch.dtype, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend_tiles = triton_kernels(monkeypatch)
    shape = ModelShape(hidden=8, layers=1, heads=2 * group, kv_heads=2, head_dim=head_dim, intermediate=8)
    rng, generator = np.random.default_rng(group), torch.Generator().manual_seed(head_dim)
    batch = draw_batch(rng, [0, 40, 79, 11], [1, 1, 1, 37])
    pages = Pages(shape, NUM_BLOCKS, PAGE, dtype=dtype, device=DEVICE)
    pages.blocks.copy_(torch.randn(pages.blocks.shape, generator=generator))
    spans, blocks = step_spans(batch.tables, batch.starts, batch.counts, PAGE, rows_of_tile(shape))
    query = torch.randn(len(batch.token_ids), shape.heads * head_dim, generator=generator).to(dtype)
    got, expected = torch.full_like(query, torch.nan, device=DEVICE), torch.empty_like(query)
    tables, (geometry,) = torch.from_numpy(blocks), geometries_of(shape, PAGE)
    for tiles in make_tiles(shape, torch.from_numpy(spans), 3, len(query)):
        rows, there = slice(tiles.first, tiles.end), replace(tiles, spans=tiles.spans.to(DEVICE))
        attend_tiles(query[rows].to(DEVICE), pages.layers[0], tables.to(DEVICE), there, got[rows], geometry)
        attend_row_by_row(query[rows], pages.layers[0].cpu(), tables, tiles, expected[rows], geometry)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.cpu(), expected, atol=tolerance, rtol=tolerance)


@needs_triton
def test_padding_reads_nothing_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    attend_tiles = triton_kernels(monkeypatch)
    pages = Pages(SHAPE, 2, PAGE, device=DEVICE)
    pages.blocks.fill_(torch.nan)
    batch = blank_batch(0, 1, 0).padded(5, scratch=PAGE)
    spans, _ = step_spans(batch.tables, batch.starts, batch.counts, PAGE, 1)
    (tiles,) = make_tiles(SHAPE, torch.from_numpy(spans).to(DEVICE), 5, 5)
    query = torch.randn(5, SHAPE.heads * SHAPE.head_dim, device=DEVICE)
    out = torch.full_like(query, torch.nan)
    tables = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    attend_tiles(query, pages.layers[0], tables, tiles, out, geometries_of(SHAPE, PAGE)[0])
    assert torch.equal(out, torch.zeros_like(out))


@needs_cuda
@pytest.mark.parametrize("counts", [[1, 1, 1], [1, 30]], ids=["decode", "mixed"])
def test_a_step_waits_for_nothing(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(SHAPE, triton_kernels(monkeypatch))
    batch = draw_batch(np.random.default_rng(4), [7] * len(counts), counts)
    pair.check(batch)
    sequences = [make_sequence([1], 1) for _ in counts]
    sequences[0].sampling = Sampling(temperature=1.0, top_k=3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        draw(pair.forward.forward(batch), sequences)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_triton
def test_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.reference_engine.compile_kernels"]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    variants = [line.split() for line in done.stdout.splitlines()]
    assert len(variants) == 16
    for _, _, dtype, _, shared_bytes, _, num_products in variants:
        assert int(shared_bytes) <= 99 << 10, "more shared memory than a block of a small GPU has"
        assert (int(num_products) > 0) == (dtype == "torch.bfloat16")


def test_tiles_cover_each_row_once_and_point_at_their_blocks() -> None:
    tables = np.arange(30).reshape(3, 10)
    spans, blocks = step_spans(tables, np.array([9, 0, 4]), np.array([1, 1, 7]), page=4, rows=3)
    assert blocks.tolist() == [0, 1, 2, 10, 20, 21, 22]
    # Where its blocks begin, its first row among rows or among chunks, its position, its rows.
    assert spans.tolist() == [[0, 0, 9, 1], [3, 1, 0, 1], [4, 0, 4, 3], [4, 3, 7, 3], [4, 6, 10, 1]]
    rows, chunks = make_tiles(SHAPE, torch.from_numpy(spans), 2, 9)
    assert (rows.first, rows.end, len(rows.spans)) == (0, 2, 2)
    assert (chunks.first, chunks.end, len(chunks.spans)) == (2, 9, 3)


@pytest.mark.parametrize(
    ("num_tiles", "at_least", "expected"),
    [(1, 4, 32), (8, 4, 4), (4, 4, 8), (256, 4, 4), (256, 1, 1), (20, 1, 2), (32, 1, 1)],
)
def test_few_tiles_are_split_more(num_tiles: int, at_least: int, expected: int) -> None:
    assert num_splits(num_tiles, 8, at_least) == expected


def test_graph_sizes_reach_the_largest_batch() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(8) == [1, 2, 4, 8]
    assert graph_sizes(64) == [1, 2, 4, 8, 16, 32, 48, 64]
    assert graph_sizes(50) == [1, 2, 4, 8, 16, 32, 48, 50]


def test_sent_arrays_keep_their_addresses_whatever_the_last_one_holds() -> None:
    one, two = np.arange(3), np.arange(8).reshape(2, 4)
    room = torch.zeros(size_of([one, two, two]) + 50, dtype=torch.int64, device=DEVICE)
    first = send([one, two, np.zeros(0, np.int64)], room)
    second = send([one + 1, two + 1, np.arange(40)], room)
    assert [t.data_ptr() for t in first] == [t.data_ptr() for t in second]
    assert all(t.data_ptr() % 16 == 0 for t in first)
    assert first[0].tolist() == [1, 2, 3]
    assert first[1].tolist() == (two + 1).tolist()
    assert first[2][:40].tolist() == list(range(40))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_swapped_blocks_come_back_elsewhere(device: str) -> None:
    pages = Pages(SHAPE, 10, PAGE, 6, device=device)
    pages.blocks.normal_()
    kept = pages.blocks.clone()
    pages.swap_out([(3, 5), (7, 0)])
    pages.blocks.zero_()
    pages.swap_in([(0, 2), (5, 9)])
    assert torch.equal(pages.blocks[:, 2], kept[:, 7])
    assert torch.equal(pages.blocks[:, 9], kept[:, 3])
    assert not pages.blocks[:, [0, 1, 3, 4, 5, 6, 7, 8]].any()
