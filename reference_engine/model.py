"""A Llama-family decoder over a flat batch of tokens: RMSNorm, RoPE, grouped queries, gated MLP.

At this size a step costs what its operators cost to dispatch, so there are few of them: q, k and v are one
projection, gate and up another, residuals are added by the matmul that makes them, RoPE is one complex
product over q and k together (neighbouring pairs, as in Meta's own checkpoints), and what RMSNorm multiplies
by is part of the matrix after it. Where keys and values live, and how queries find them, is the attention's
business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_engine.config import ModelShape
from reference_engine.rope import Rope


class Attention(Protocol):
    """Stores the keys and values of this step's tokens, then lets their queries read all that came before."""

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """query [tokens, heads * head_dim], key_value [tokens, 2 * kv_heads * head_dim] -> like query."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Matrices stored [in, out], so that a row of activations multiplies from the left.

    qkv and gate_up hold RMSNorm's weights and its sqrt(hidden), see `fold_norm`. qk_norm [heads + kv_heads,
    head_dim / 2, 2]: the weights of an RMSNorm over each head of q and k, where the family has one.
    """

    qkv: Tensor
    attention_out: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None = None
    attention_out_bias: Tensor | None = None
    qk_norm: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """norm: of the last RMSNorm with its sqrt(hidden); apart from the head, which may be the embedding."""

    embedding: Tensor  # [input ids, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Tensor  # [hidden, output ids]

    @property
    def num_params(self) -> int:
        """Count the weights; an embedding that is the head too counts once."""
        layers = (getattr(layer, f.name) for layer in self.layers for f in fields(layer))
        is_tied = self.head.untyped_storage().data_ptr() == self.embedding.untyped_storage().data_ptr()
        tensors = [self.embedding, self.norm, *layers] + ([] if is_tied else [self.head])
        return sum(tensor.numel() for tensor in tensors if tensor is not None)


def fold_norm(norm_weight: Tensor, matrix: Tensor) -> Tensor:
    """Return the matrix to use after `unit_rows` in place of RMSNorm with `norm_weight` before `matrix`."""
    scale: Tensor = norm_weight * norm_weight.numel() ** 0.5
    return scale[:, None] * matrix


def unit_rows(x: Tensor, floor: Tensor) -> Tensor:
    """Scale rows to unit length; floor = sqrt(hidden * eps) is RMSNorm's epsilon, kept exactly.

    x / sqrt(|x|^2 + hidden * eps) is RMSNorm without its weight, over sqrt(hidden): three cheap operators.
    """
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=1, keepdim=True), floor)


def make_unit_rows(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return `unit_rows` for one model.

    In 16 bits the length itself must have more of them, or the whole row is wrong by up to 0.4 %: that is
    what torch's own RMSNorm gives, in one kernel on a GPU.
    """
    if dtype is torch.float32:
        return partial(unit_rows, floor=torch.tensor((shape.hidden * shape.norm_eps) ** 0.5, device=device))
    scale = torch.full((shape.hidden,), shape.hidden**-0.5, dtype=dtype, device=device)
    return lambda x: F.rms_norm(x, (shape.hidden,), scale, shape.norm_eps)


def rope_table(rope: Rope, head_dim: int, num_positions: int) -> Tensor:
    """Return the complex rotations [positions, 1, head_dim / 2]."""
    frequencies = torch.from_numpy(rope.frequencies(head_dim))
    angle = torch.outer(torch.arange(num_positions, dtype=torch.float64), frequencies)
    return torch.polar(torch.full_like(angle, rope.scale), angle).to(torch.complex64).unsqueeze(1)


def rotate(pairs: Tensor, rotation: Tensor) -> None:
    """Turn pairs [tokens, heads, head_dim / 2, 2] in place; there are no complex numbers of 16 bits."""
    exact = pairs if pairs.dtype is torch.float32 else pairs.float()
    torch.view_as_complex(exact).mul_(rotation)
    if exact is not pairs:
        pairs.copy_(exact)


class Decoder:
    """The weights of one model and the arithmetic over them; holds no state between steps."""

    def __init__(self, shape: ModelShape, weights: Weights, max_positions: int) -> None:
        self.shape = shape
        self.weights = weights
        self.max_positions = max_positions
        device = weights.embedding.device
        self._unit_rows = make_unit_rows(shape, weights.embedding.dtype, device)
        self._rope = rope_table(shape.rope, shape.head_dim, max_positions).to(device)

    def forward(
        self, token_ids: Tensor, positions: Tensor, emit_rows: Tensor, attention: Attention
    ) -> Tensor:
        """Return logits [len(emit_rows), output ids] of a flat batch.

        token_ids, positions: int64 [tokens]. emit_rows: the rows whose next token is wanted.
        """
        shape, unit_rows = self.shape, self._unit_rows
        query_dim = shape.heads * shape.head_dim
        num_rotated, num_pairs = shape.heads + shape.kv_heads, shape.head_dim // 2
        rotated_dim = num_rotated * shape.head_dim
        rotation = self._rope.index_select(0, positions)
        x = F.embedding(token_ids, self.weights.embedding)
        for i, layer in enumerate(self.weights.layers):
            qkv = torch.mm(unit_rows(x), layer.qkv)
            if layer.qkv_bias is not None:
                qkv.add_(layer.qkv_bias)
            pairs = qkv[:, :rotated_dim].view(-1, num_rotated, num_pairs, 2)
            if layer.qk_norm is not None:
                pairs.copy_(F.rms_norm(pairs, (num_pairs, 2), eps=shape.norm_eps).mul_(layer.qk_norm))
            rotate(pairs, rotation)
            mixed = attention.attend(i, qkv[:, :query_dim], qkv[:, query_dim:])
            x.addmm_(mixed, layer.attention_out)
            if layer.attention_out_bias is not None:
                x.add_(layer.attention_out_bias)
            gate_up = torch.mm(unit_rows(x), layer.gate_up)
            gate, up = gate_up.chunk(2, 1)
            x.addmm_(F.silu(gate).mul_(up), layer.down)
        last = x.index_select(0, emit_rows)
        return torch.mm(unit_rows(last).mul_(self.weights.norm), self.weights.head)
