"""A Llama-family decoder over a flat batch of tokens: RMSNorm, RoPE, grouped queries, gated MLP.

At this size a step costs what its operators cost to dispatch, so there are few of them: q, k and v are one
projection, gate and up another, residuals are added by the matmul that makes them, RoPE is one complex
product over q and k together (neighbouring pairs, as in Meta's own checkpoints), and what RMSNorm multiplies
by is part of the matrix after it. Where keys and values live, and how queries find them, is the attention's
business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_engine.config import ModelShape


class Attention(Protocol):
    """Stores the keys and values of this step's tokens, then lets their queries read all that came before."""

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """query [tokens, heads * head_dim], key_value [tokens, 2 * kv_heads * head_dim] -> like query."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Matrices stored [in, out], so that a row of activations multiplies from the left.

    qkv, gate_up (and the head of Weights) hold RMSNorm's weights and its sqrt(hidden), see `fold_norm`.
    """

    qkv: Tensor
    attention_out: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    embedding: Tensor  # [input ids, hidden]
    layers: tuple[LayerWeights, ...]
    head: Tensor  # [hidden, output ids]


def fold_norm(norm_weight: Tensor, matrix: Tensor) -> Tensor:
    """Return the matrix to use after `unit_rows` in place of RMSNorm with `norm_weight` before `matrix`."""
    scale: Tensor = norm_weight * norm_weight.numel() ** 0.5
    return scale[:, None] * matrix


def unit_rows(x: Tensor, floor: Tensor) -> Tensor:
    """Scale rows to unit length; floor = sqrt(hidden * eps) is RMSNorm's epsilon, kept exactly.

    x / sqrt(|x|^2 + hidden * eps) is RMSNorm without its weight, over sqrt(hidden): three cheap operators.
    """
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=1, keepdim=True), floor)


def random_weights(shape: ModelShape, num_input_ids: int, num_output_ids: int, seed: int) -> Weights:
    """Draw weights so that activations keep unit scale: answers then depend on the whole prompt."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator).mul_(rows**-0.5)

    hidden, query_dim = shape.hidden, shape.heads * shape.head_dim
    ones = torch.ones(hidden)
    kv_dim = shape.kv_heads * shape.head_dim
    return Weights(
        embedding=torch.randn(num_input_ids, hidden, generator=generator),
        layers=tuple(
            LayerWeights(
                qkv=fold_norm(ones, matrix(hidden, query_dim + 2 * kv_dim)),
                attention_out=matrix(query_dim, hidden),
                gate_up=fold_norm(ones, matrix(hidden, 2 * shape.intermediate)),
                down=matrix(shape.intermediate, hidden),
            )
            for _ in range(shape.layers)
        ),
        head=fold_norm(ones, matrix(hidden, num_output_ids)),
    )


def rope_table(head_dim: int, theta: float, num_positions: int) -> Tensor:
    """Return the unit complex rotations [positions, 1, head_dim / 2]."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(num_positions, dtype=torch.float64), frequency)
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64).unsqueeze(1)


class Decoder:
    """The weights of one model and the arithmetic over them; holds no state between steps."""

    def __init__(self, shape: ModelShape, weights: Weights, max_positions: int) -> None:
        self.shape = shape
        self.weights = weights
        self._norm_floor = torch.tensor((shape.hidden * shape.norm_eps) ** 0.5)
        self._rope = rope_table(shape.head_dim, shape.rope_theta, max_positions)

    def forward(
        self, token_ids: Tensor, positions: Tensor, emit_rows: Tensor, attention: Attention
    ) -> Tensor:
        """Return logits [len(emit_rows), output ids] of a flat batch.

        token_ids, positions: int64 [tokens]. emit_rows: the rows whose next token is wanted.
        """
        shape, floor = self.shape, self._norm_floor
        query_dim = shape.heads * shape.head_dim
        num_rotated = shape.heads + shape.kv_heads
        rotated_dim = num_rotated * shape.head_dim
        rotation = self._rope.index_select(0, positions)
        x = F.embedding(token_ids, self.weights.embedding)
        for i, layer in enumerate(self.weights.layers):
            qkv = torch.mm(unit_rows(x, floor), layer.qkv)
            pairs = qkv[:, :rotated_dim].view(-1, num_rotated, shape.head_dim // 2, 2)
            torch.view_as_complex(pairs).mul_(rotation)
            mixed = attention.attend(i, qkv[:, :query_dim], qkv[:, query_dim:])
            x.addmm_(mixed, layer.attention_out)
            gate_up = torch.mm(unit_rows(x, floor), layer.gate_up)
            gate, up = gate_up.chunk(2, 1)
            x.addmm_(F.silu(gate).mul_(up), layer.down)
        last = x.index_select(0, emit_rows)
        return torch.mm(unit_rows(last, floor), self.weights.head)
