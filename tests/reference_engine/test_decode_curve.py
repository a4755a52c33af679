"""The decode curve: what a step has to read, and that its points are those asked for."""

from __future__ import annotations

import pytest

from reference_engine import decode_curve, tokenizer
from reference_engine.config import SHAPES

CONTEXT = 40


def test_a_point_counts_the_bytes_of_weights_and_of_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_curve, "NUM_TIMES", 2)
    first, last = decode_curve.measure_curve("nano", "cpu", (1, 4), (CONTEXT,))
    shape = SHAPES["nano"]
    per_layer = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    per_layer += 3 * shape.hidden * shape.intermediate
    weight_bytes = 4 * (shape.layers * per_layer + shape.hidden * tokenizer.NUM_OUTPUT_IDS)
    assert (first.batch, last.batch) == (1, 4)
    assert first.step_bytes == weight_bytes + first.attention_bytes
    assert first.attention_bytes == 4 * CONTEXT * shape.layers * 2 * shape.kv_heads * shape.head_dim
    assert last.attention_bytes == 4 * first.attention_bytes
    assert last.step_s > 0
    assert last.attention_s > 0
