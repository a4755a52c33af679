from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from reference_engine.attention.paged import PagedAttention
from reference_engine.attention.pages import Pages
from reference_engine.config import SHAPES, ModelShape
from reference_engine.model import Decoder, fold_norm, unit_rows
from reference_engine.weights import random_weights
from tests.reference_engine.dense import dense_logits

WIDE = ModelShape(hidden=48, layers=3, heads=6, kv_heads=2, head_dim=16, intermediate=80)
WINDOWED = replace(WIDE, window_tokens=5, windowed_layers=frozenset({0, 2}))
PAGE, NUM_PAGES = 4, 32


@pytest.mark.parametrize("shape", [SHAPES["nano"], WIDE, WINDOWED], ids=["one kv head", "two", "window"])
@pytest.mark.parametrize("chunks", [[23], [8, 8, 7], [1] * 23, [22, 1]])
def test_logits_equal_the_dense_model_whatever_the_chunking(shape: ModelShape, chunks: list[int]) -> None:
    weights = random_weights(shape, num_input_ids=100, num_output_ids=50, seed=3)
    decoder = Decoder(shape, weights, max_positions=64)
    attention = PagedAttention(shape, Pages(shape, NUM_PAGES, PAGE))
    rng = np.random.default_rng(1)
    token_ids = rng.integers(100, size=sum(chunks))
    table = rng.permutation(NUM_PAGES)[:8]
    got, start = [], 0
    for count in chunks:
        positions = np.arange(start, start + count)
        store_at = table[positions // PAGE] * PAGE + positions % PAGE
        attention.prepare(table[None], np.array([start]), np.array([count]), store_at)
        ids, rows = token_ids[start : start + count], torch.arange(count)
        got.append(decoder.forward(torch.from_numpy(ids), torch.from_numpy(positions), rows, attention))
        start += count
    expected = dense_logits(shape, weights, token_ids.tolist())
    np.testing.assert_allclose(torch.cat(got).numpy(), expected, atol=2e-5)


def test_folded_norm_is_rms_norm() -> None:
    x, weight, matrix = torch.randn(5, 16) * 1e-3, torch.rand(16), torch.randn(16, 7)
    eps = 1e-5
    floor = torch.tensor((16 * eps) ** 0.5)
    expected = torch.nn.functional.rms_norm(x, (16,), weight, eps) @ matrix
    torch.testing.assert_close(unit_rows(x, floor) @ fold_norm(weight, matrix), expected)


def test_weights_follow_from_the_seed() -> None:
    draws = [random_weights(SHAPES["nano"], 10, 10, seed).head for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
