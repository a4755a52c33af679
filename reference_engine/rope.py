"""Rotary position embedding: how fast each pair of a head's dimensions turns with the position.

The scalings stretch a model's context beyond what it was trained on: linear (Chen et al. 2023), YaRN (Peng et
al. 2023) and the one of Llama 3.1. Names and formulas are as in `rope_parameters` in a Hugging Face config.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Rope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rope_theta: Annotated[float, msgspec.Meta(gt=1)] = 10_000.0
    rope_type: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: Positive = 1.0
    original_max_position_embeddings: Annotated[int, msgspec.Meta(gt=0)] = 0  # none stated
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    attention_factor: Positive | None = None

    def __post_init__(self) -> None:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError("low_freq_factor must be below high_freq_factor")

    @property
    def scale(self) -> float:
        """What rotated queries and keys are multiplied by; YaRN sharpens attention."""
        if self.rope_type != "yarn":
            return 1.0
        return self.attention_factor or (0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0)

    def frequencies(self, head_dim: int) -> Floats:
        """Return the radians that each pair turns by per position [head_dim / 2]."""
        plain: Floats = self.rope_theta ** (-np.arange(0, head_dim, 2) / head_dim)
        kept = self._share_kept(plain, head_dim)
        return kept * plain + (1 - kept) * plain / self.factor

    def _share_kept(self, plain: Floats, head_dim: int) -> Floats:
        """How much of each frequency is left as it is; the rest is slowed down by the factor."""
        if self.rope_type in ("default", "linear"):
            return np.full_like(plain, self.rope_type == "default")
        context = self.original_max_position_embeddings
        turns = context * plain / (2 * math.pi)  # over the context of the training
        if self.rope_type == "llama3":
            return np.clip(
                (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1
            )

        def dimension(num_turns: float) -> float:
            return head_dim * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(self.rope_theta))

        low = max(math.floor(dimension(self.beta_fast)), 0)
        high = min(math.ceil(dimension(self.beta_slow)), head_dim - 1)
        return 1 - np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0, 1)
