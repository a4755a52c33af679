from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.attention.paged import MIN_TOKENS_SAVED, PagedAttention, split_by_length
from reference_engine.attention.pages import Pages
from reference_engine.config import ModelShape

PAGE, NUM_PAGES = 4, 128
SHAPE = ModelShape(hidden=32, layers=2, heads=6, kv_heads=2, head_dim=8, intermediate=16)


def dense_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """query [heads, dim] over keys, values [tokens, kv_heads, dim], head by head."""
    group = SHAPE.heads // SHAPE.kv_heads
    rows = []
    for h in range(SHAPE.heads):
        scores = keys[:, h // group] @ query[h] / SHAPE.head_dim**0.5
        rows.append(scores.softmax(0) @ values[:, h // group])
    return torch.cat(rows)


@settings(max_examples=40, deadline=None)
@given(
    singles=st.lists(st.integers(0, 37), max_size=6),
    chunks=st.lists(st.tuples(st.integers(0, 20), st.integers(2, 17)), max_size=3),
    seed=st.integers(0, 1000),
)
def test_paged_attention_equals_dense(singles: list[int], chunks: list[tuple[int, int]], seed: int) -> None:
    if not singles and not chunks:
        return
    work = [(start, 1) for start in sorted(singles)] + chunks
    generator = torch.Generator().manual_seed(seed)
    order = np.random.default_rng(seed).permutation(NUM_PAGES)
    attention, width = (
        PagedAttention(SHAPE, Pages(SHAPE, NUM_PAGES, PAGE)),
        2 * SHAPE.kv_heads * SHAPE.head_dim,
    )
    tables = order[: len(work) * 10].reshape(len(work), 10)
    past = [torch.randn(start + count, width, generator=generator) for start, count in work]
    layer = seed % SHAPE.layers
    for i, (start, _) in enumerate(work):
        if start:  # what earlier steps stored
            before = np.arange(start)
            at = tables[i, before // PAGE] * PAGE + before % PAGE
            attention.prepare(tables[i : i + 1], np.array([0]), np.array([start]), at)
            attention.attend(layer, torch.zeros(start, SHAPE.heads * SHAPE.head_dim), past[i][:start])
    positions = [np.arange(start, start + count) for start, count in work]
    store_at = np.concatenate([tables[i, p // PAGE] * PAGE + p % PAGE for i, p in enumerate(positions)])
    query = torch.randn(len(store_at), SHAPE.heads * SHAPE.head_dim, generator=generator)
    attention.prepare(tables, np.array([s for s, _ in work]), np.array([c for _, c in work]), store_at)
    new = torch.cat([kv[start:] for kv, (start, _) in zip(past, work, strict=True)])
    got = attention.attend(layer, query, new)
    row = 0
    for kv, (start, count) in zip(past, work, strict=True):
        keys, values = kv.view(-1, 2, SHAPE.kv_heads, SHAPE.head_dim).unbind(1)
        for t in range(start, start + count):
            expected = dense_attention(query[row].view(SHAPE.heads, -1), keys[: t + 1], values[: t + 1])
            torch.testing.assert_close(got[row], expected, atol=1e-5, rtol=1e-5)
            row += 1


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([96, 100, 128], [(0, 3)]),
        ([5], [(0, 1)]),
        ([30, 31, 32, 2048], [(0, 3), (3, 4)]),
        ([1, 2, 4, 8, 1024], [(0, 4), (4, 5)]),
        ([1, 20, 40, 200], [(0, 4)]),
        ([60] * 20 + [400] * 5 + [2000], [(0, 20), (20, 25), (25, 26)]),
    ],
)
def test_rows_are_split_only_where_padding_wastes_much(
    lengths: list[int], expected: list[tuple[int, int]]
) -> None:
    assert split_by_length(np.array(lengths)) == expected


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=64))
def test_split_covers_all_rows_and_bounds_the_waste(lengths: list[int]) -> None:
    ascending = np.array(sorted(lengths))
    cuts = split_by_length(ascending)
    assert [first for first, _ in cuts] == [0, *(end for _, end in cuts[:-1])]
    assert cuts[-1][1] == len(ascending)
    padded = sum(int(ascending[end - 1]) * (end - first) for first, end in cuts)
    num_buckets = 13  # powers of two up to 4096
    assert padded <= 2 * ascending.sum() + num_buckets * MIN_TOKENS_SAVED
