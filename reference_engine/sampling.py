"""Draws the next token of each row of logits: greedy, temperature, top-k, top-p.

The uniform number behind a draw depends only on the request's seed and the position in its answer, so that a
preempted, re-batched or re-run request says the same again.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reference_engine.sequence import Sequence


def draw(logits: Tensor, sequences: list[Sequence]) -> list[int]:
    """Return one id per row; logits [rows, ids], the sequence of each row says how to draw."""
    ids: list[int] = []
    for row, sequence in zip(logits, sequences, strict=True):
        sampling = sequence.sampling
        if sampling.temperature == 0:
            ids.append(int(row.argmax()))
            continue
        uniform = np.random.default_rng((sampling.seed, sequence.num_emitted)).random()
        ids.append(_draw_row(row / sampling.temperature, sampling.top_k, sampling.top_p, uniform))
    return ids


def _draw_row(row: Tensor, top_k: int, top_p: float, uniform: float) -> int:
    values, candidates = row.sort(descending=True)
    if top_k:
        values = values[:top_k]
    cumulative = values.double().softmax(0).cumsum(0)
    # The nucleus is the shortest prefix that reaches top_p: everything before the first sum >= top_p, and it.
    num_kept = int(torch.searchsorted(cumulative, torch.tensor(top_p, dtype=torch.float64))) + 1
    num_kept = min(num_kept, len(cumulative))
    chosen = int(torch.searchsorted(cumulative[:num_kept], cumulative[num_kept - 1] * uniform, right=True))
    return int(candidates[min(chosen, num_kept - 1)])
