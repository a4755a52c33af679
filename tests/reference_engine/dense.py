"""A second implementation of the model, written for reading: no pages, no batch, no fusing, float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reference_engine.config import ModelShape
from reference_engine.model import Weights

Array = NDArray[np.float64]


def rms_norm(x: Array, eps: float) -> Array:
    normed: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return normed


def rotate(x: Array, position: int, theta: float) -> Array:
    """Turn each neighbouring pair of one head's vector by its angle at `position`."""
    out = np.empty_like(x)
    for i in range(0, len(x), 2):
        angle = position * theta ** (-i / len(x))
        out[i] = x[i] * np.cos(angle) - x[i + 1] * np.sin(angle)
        out[i + 1] = x[i] * np.sin(angle) + x[i + 1] * np.cos(angle)
    return out


def dense_logits(shape: ModelShape, weights: Weights, token_ids: list[int]) -> Array:
    """Return the logits after every token [tokens, output ids]; the weights carry norms of one."""
    theta = shape.rope.rope_theta

    def unfolded(matrix: object) -> Array:
        array: Array = np.asarray(matrix, np.float64) / shape.hidden**0.5
        return array

    heads, dim, group = shape.heads, shape.head_dim, shape.heads // shape.kv_heads
    n = len(token_ids)
    x = np.asarray(weights.embedding, np.float64)[token_ids]
    for i, layer in enumerate(weights.layers):
        window = shape.window_tokens if i in shape.windowed_layers else n
        qkv = rms_norm(x, shape.norm_eps) @ unfolded(layer.qkv)
        q, k, v = np.split(qkv, [heads * dim, (heads + shape.kv_heads) * dim], axis=1)
        mixed = np.zeros((n, heads * dim))
        for h in range(heads):
            kv = slice(h // group * dim, (h // group + 1) * dim)
            keys = np.array([rotate(k[t, kv], t, theta) for t in range(n)])
            for t in range(n):
                query = rotate(q[t, h * dim : (h + 1) * dim], t, theta)
                seen = slice(max(0, t + 1 - window), t + 1)
                scores = keys[seen] @ query / dim**0.5
                share = np.exp(scores - scores.max())
                mixed[t, h * dim : (h + 1) * dim] = share @ v[seen, kv] / share.sum()
        x = x + mixed @ np.asarray(layer.attention_out, np.float64)
        gate, up = np.split(rms_norm(x, shape.norm_eps) @ unfolded(layer.gate_up), 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ np.asarray(layer.down, np.float64)
    return rms_norm(x, shape.norm_eps) @ np.asarray(weights.head, np.float64)
