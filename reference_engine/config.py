"""What the engine is made of: the model's shape, the size of its memory and the limits of a step.

Values only; nothing here allocates. The limits are counted in tokens wherever a token is what runs out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from reference_engine.rope import Rope

NEAR, FAR = Rope(), Rope(rope_theta=500_000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Dimensions of a Llama-family decoder.

    window_tokens: what queries of the `windowed_layers` see, their own token included; 0 where all see all.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope: Rope = NEAR
    norm_eps: float = 1e-5
    window_tokens: int = 0
    windowed_layers: frozenset[int] = frozenset()


SHAPES: dict[str, ModelShape] = {
    "nano": ModelShape(hidden=64, layers=2, heads=2, kv_heads=1, head_dim=32, intermediate=176),
    "tiny": ModelShape(hidden=128, layers=4, heads=4, kv_heads=1, head_dim=32, intermediate=344),
    "small": ModelShape(hidden=256, layers=4, heads=8, kv_heads=1, head_dim=32, intermediate=688),
    "base": ModelShape(hidden=512, layers=8, heads=8, kv_heads=2, head_dim=64, intermediate=1376),
    "1b": ModelShape(hidden=2048, layers=16, heads=32, kv_heads=8, head_dim=64, intermediate=8192, rope=FAR),
    "8b": ModelShape(
        hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, intermediate=14336, rope=FAR
    ),
}

Dtype = Literal["auto", "float32", "bfloat16"]
Device = Literal["cpu", "cuda"]
AS_MANY_AS_FIT = 0  # KV tokens, on a GPU


class ConfigError(ValueError):
    """A configuration that cannot work; the message is one line for the person who gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorConfig:
    """Admission control; 0 switches a rule off.

    max_waiting: requests in the queue. bucket_tokens, bucket_tokens_per_s: prompt tokens that may come at
    once, and that may follow. max_wait_s: turn away who would wait longer. drop_after_s: give up on a request
    that was not started by then.
    """

    max_waiting: int = 0
    bucket_tokens: int = 0
    bucket_tokens_per_s: float = 0.0
    max_wait_s: float = 0.0
    drop_after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that decides what the engine computes and when.

    model: a shape's name, or a Hugging Face folder. dtype: of weights, activations and the KV cache.
    kv_tokens: tokens that the KV pool holds, rounded down to whole blocks; or AS_MANY_AS_FIT.
    max_batch: requests that may be resident at once. chunk_tokens: the token budget of one step.
    swap_tokens: tokens that fit into host memory when a policy evicts by swapping. knobs: of the policy.
    is_prefix_shared: lend full blocks to requests that begin with the same tokens. is_eos_enabled: the model
    may end an answer by itself; off, answers run to `max_tokens`. log_requests: how many the log remembers.
    """

    model: str = "tiny"
    policy: str = "vllm-v1"
    seed: int = 0
    block_tokens: int = 16
    kv_tokens: int = 65_536
    max_batch: int = 64
    chunk_tokens: int = 128
    max_model_len: int = 2048
    swap_tokens: int = 0
    knobs: dict[str, int | float | bool | str] = field(default_factory=dict)
    door: DoorConfig = field(default_factory=DoorConfig)
    is_prefix_shared: bool = False
    is_eos_enabled: bool = False
    device: Device = "cpu"
    dtype: Dtype = "auto"
    threads: int = 1
    check_invariants: bool = False
    log_requests: int = 1 << 17

    def __post_init__(self) -> None:
        for name in ("block_tokens", "max_batch", "chunk_tokens", "max_model_len", "threads", "log_requests"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        is_fitted = self.kv_tokens == AS_MANY_AS_FIT and self.device == "cuda"
        if self.kv_tokens < self.block_tokens and not is_fitted:
            raise ConfigError(f"kv_tokens {self.kv_tokens} holds no block of {self.block_tokens} tokens")

    @property
    def num_blocks(self) -> int:
        return self.kv_tokens // self.block_tokens

    @property
    def pool_tokens(self) -> int:
        return self.num_blocks * self.block_tokens

    @property
    def num_swap_blocks(self) -> int:
        return self.swap_tokens // self.block_tokens

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)
