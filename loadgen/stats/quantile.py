"""Quantiles by one rule everywhere: the smallest observed value that a share q of all does not exceed.

This is numpy's `inverted_cdf` (Hyndman & Fan 1996, type 1; "nearest rank"): always a value that was seen, the
same for a pool of values and for values with whole weights, and defined where the largest are infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-9


def rank(n: int, q: float) -> int:
    """The 1-based rank of quantile q among n sorted values: ceil(q n), but at least 1."""
    return max(1, int(np.ceil(q * n - ROUNDING * max(1.0, q * n))))


def quantiles(values: NDArray[Any], qs: Sequence[float]) -> list[float]:
    """Quantiles of one or more values, which may be infinite. Reorders `values` in place: pass a copy to keep
    it.
    """
    ranks = [rank(len(values), q) - 1 for q in qs]
    values.partition(sorted(set(ranks)))
    return [float(values[r]) for r in ranks]


def quantile(values: NDArray[Any], q: float) -> float:
    """One quantile of one or more values; `values` stays as it is."""
    return quantiles(values.copy(), [q])[0]


def interpolated_quantiles(values: NDArray[Any], qs: Sequence[float]) -> list[float]:
    """Quantiles as numpy.percentile makes them by default (type 7), for figures of tools that use it.

    Reorders `values` in place: pass a copy to keep it.
    """
    positions = [q * (len(values) - 1) for q in qs]
    below = [int(position) for position in positions]
    above = [min(index + 1, len(values) - 1) for index in below]
    values.partition(sorted({*below, *above}))
    return [
        float(values[i]) + (position - i) * (float(values[j]) - float(values[i]))
        for position, i, j in zip(positions, below, above, strict=True)
    ]


def weighted_quantiles(
    values: NDArray[Any], weights: NDArray[np.int64] | NDArray[np.float64], qs: Sequence[float]
) -> list[float]:
    """Quantiles of values that each stand for `weights` equal ones (non-negative, not all 0)."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order], dtype=np.float64)
    total = cumulative[-1]
    targets = [q * total - ROUNDING * max(1.0, q * total) for q in qs]
    positions = np.minimum(np.searchsorted(cumulative, targets), len(values) - 1)
    return [float(v) for v in values[order[positions]]]
