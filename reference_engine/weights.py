"""Where a model's weights come from: drawn from a seed, or read from a Hugging Face folder.

Read one tensor at a time and laid out as the decoder wants them: transposed, q, k and v side by side, norms
folded in, and the rows of q and k reordered, for Hugging Face turns dimension i with i + head_dim / 2 and the
decoder turns neighbours. Attention does not see in what order the dimensions of a head stand.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from reference_engine import tokenizer
from reference_engine.config import Device, ModelShape
from reference_engine.model import LayerWeights, Weights, fold_norm
from reference_engine.model_info import EMBEDDING, HEAD, NORM, ModelInfo

CPU = torch.device("cpu")
CPU_FLAGS_OF_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}


def choose_dtype(asked: str, info: ModelInfo, device: Device) -> torch.dtype:
    """Resolve `auto`: bfloat16 on a GPU, and for what was trained in it on a processor that has it."""
    if asked == "auto":
        is_native = device == "cuda" or (info.dtype == "bfloat16" and _has_bfloat16())
        asked = "bfloat16" if is_native else "float32"
    return torch.bfloat16 if asked == "bfloat16" else torch.float32


def _has_bfloat16() -> bool:
    """Say whether this processor has instructions for it; emulated, it is many times slower than float32."""
    about = Path("/proc/cpuinfo")
    return about.exists() and not CPU_FLAGS_OF_BFLOAT16.isdisjoint(about.read_text().split())


def load_weights(info: ModelInfo, seed: int, dtype: torch.dtype, device: torch.device = CPU) -> Weights:
    """Return the weights of a model in the decoder's layout; the seed is for those that are drawn."""
    if not info.tensors:
        ids = (tokenizer.NUM_IDS, tokenizer.NUM_OUTPUT_IDS)
        return random_weights(info.shape, *ids, seed, dtype, device)
    from safetensors import safe_open

    with ExitStack() as stack:
        opened = {f: stack.enter_context(safe_open(f, "pt")) for f in set(info.tensors.values())}

        def read(name: str) -> Tensor | None:
            file = info.tensors.get(name)
            return None if file is None else opened[file].get_tensor(name).to(device)

        return _Checkpoint(info.shape, dtype, read).weights()


class _Checkpoint:
    """The tensors of a folder, turned into the decoder's; `read` gives None for what is absent."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, read: Callable[[str], Tensor | None]) -> None:
        self._shape = shape
        self._dtype = dtype
        self._read = read

    def weights(self) -> Weights:
        embedding, head = self._need(EMBEDDING).to(self._dtype), self._read(HEAD)
        return Weights(
            embedding=embedding,
            layers=tuple(self._layer(f"model.layers.{i}.") for i in range(self._shape.layers)),
            norm=(self._need(NORM).float() * self._shape.hidden**0.5).to(self._dtype),
            head=(embedding if head is None else head.to(self._dtype)).t(),
        )

    def _layer(self, at: str) -> LayerWeights:
        attention, mlp = f"{at}self_attn.", f"{at}mlp."
        has_bias = self._read(f"{attention}q_proj.bias") is not None
        out_bias = self._read(f"{attention}o_proj.bias")
        gate_up = [self._need(f"{mlp}{name}_proj.weight") for name in ("gate", "up")]
        return LayerWeights(
            qkv=self._side_by_side(self._qkv(attention, "weight"), f"{at}input_layernorm.weight"),
            attention_out=self._turned(f"{attention}o_proj.weight"),
            gate_up=self._side_by_side(gate_up, f"{at}post_attention_layernorm.weight"),
            down=self._turned(f"{mlp}down_proj.weight"),
            qkv_bias=torch.cat(self._qkv(attention, "bias")).to(self._dtype) if has_bias else None,
            attention_out_bias=None if out_bias is None else out_bias.to(self._dtype),
            qk_norm=self._qk_norm(attention),
        )

    def _qk_norm(self, attention: str) -> Tensor | None:
        if self._read(f"{attention}q_norm.weight") is None:
            return None
        q, k = (paired(self._need(f"{attention}{name}_norm.weight"), 1) for name in "qk")
        by_head = [q.expand(self._shape.heads, -1), k.expand(self._shape.kv_heads, -1)]
        return torch.cat(by_head).view(-1, self._shape.head_dim // 2, 2).to(self._dtype)

    def _turned(self, name: str) -> Tensor:
        return self._need(name).t().to(self._dtype).contiguous()

    def _qkv(self, attention: str, kind: str) -> list[Tensor]:
        q, k, v = (self._need(f"{attention}{name}_proj.{kind}") for name in "qkv")
        return [paired(q, self._shape.heads), paired(k, self._shape.kv_heads), v]

    def _side_by_side(self, matrices: list[Tensor], norm: str) -> Tensor:
        """Return [in, out] of matrices [out, in] that share an input, with the norm before them folded in."""
        weight = self._need(norm).float()
        return torch.cat([fold_norm(weight, m.t().float()).to(self._dtype) for m in matrices], dim=1)

    def _need(self, name: str) -> Tensor:
        tensor = self._read(name)
        assert tensor is not None, f"{name} is missing"  # `describe_model` has looked
        return tensor


def paired(rows: Tensor, num_heads: int) -> Tensor:
    """Reorder [heads * head_dim, ...] so that dimensions which turn together are neighbours in each head."""
    by_pair = rows.view(num_heads, 2, -1, *rows.shape[1:]).transpose(1, 2)
    return by_pair.reshape(rows.shape)


def random_weights(
    shape: ModelShape,
    num_input_ids: int,
    num_output_ids: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> Weights:
    """Draw weights so that activations keep unit scale: answers then depend on the whole prompt."""
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator, device=device).mul_(scale).to(dtype)

    hidden, query_dim = shape.hidden, shape.heads * shape.head_dim
    kv_dim = shape.kv_heads * shape.head_dim
    return Weights(
        embedding=matrix(num_input_ids, hidden, 1),
        layers=tuple(
            LayerWeights(
                # After unit_rows, a matrix of this scale is one of 1 / sqrt(rows) after RMSNorm.
                qkv=matrix(hidden, query_dim + 2 * kv_dim, 1),
                attention_out=matrix(query_dim, hidden, query_dim**-0.5),
                gate_up=matrix(hidden, 2 * shape.intermediate, 1),
                down=matrix(shape.intermediate, hidden, shape.intermediate**-0.5),
            )
            for _ in range(shape.layers)
        ),
        norm=torch.full((hidden,), hidden**0.5, dtype=dtype, device=device),
        head=matrix(hidden, num_output_ids, hidden**-0.5),
    )
