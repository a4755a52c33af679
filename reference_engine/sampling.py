"""Draws the next token of each row of logits: greedy, temperature, top-k, top-p.

The uniform number behind a draw depends only on the request's seed and the position in its answer, so that a
preempted, re-batched or re-run request says the same again. All rows are drawn together on the device of the
logits, and nobody waits for it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reference_engine.sequence import Sequence


def draw(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    """Return one id per row; logits [rows, ids], the sequence of each row says how to draw."""
    greedy = logits.argmax(1)
    if all(sequence.sampling.temperature == 0 for sequence in sequences):
        return greedy
    rows = [_numbers(sequence) for sequence in sequences]
    numbers = torch.tensor(rows, dtype=torch.float64, pin_memory=logits.is_cuda)
    temperature, top_k, top_p, uniform = numbers.to(logits.device, non_blocking=True).t()[:, :, None]
    values, candidates = (logits.float() / temperature.where(temperature > 0, 1)).sort(descending=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    values = values.masked_fill((rank >= top_k) & (top_k > 0), -torch.inf)
    cumulative = values.double().softmax(1).cumsum(1)
    # The nucleus is the shortest prefix that reaches top_p: everything before the first sum >= top_p, and it.
    last = (cumulative < top_p).sum(1, keepdim=True).clamp_(max=len(rank) - 1)
    chosen = (cumulative <= cumulative.gather(1, last) * uniform).sum(1, keepdim=True).minimum(last)
    return torch.where(temperature > 0, candidates.gather(1, chosen), greedy[:, None])[:, 0]


def _numbers(sequence: Sequence) -> tuple[float, ...]:
    sampling = sequence.sampling
    uniform = np.random.default_rng((sampling.seed, sequence.num_emitted)).random()
    return sampling.temperature, sampling.top_k, sampling.top_p, uniform
