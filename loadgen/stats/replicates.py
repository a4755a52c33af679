"""A figure over independent runs: its mean on a log scale and the t interval of that mean.

Latencies are positive and skewed; their logarithms over runs are near enough to normal for a few runs to
give an interval that holds. Requests of one run are never samples of each other: they share a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class OverRuns:
    """value: geometric mean. spread: standard deviation of the logs; it and the interval need two runs.

    A figure that is 0 in some run has no logarithm: the plain mean, alone.
    """

    value: float
    interval: tuple[float, float] | None
    spread: float | None
    num_runs: int


def over_runs(values: Sequence[float], confidence: float = CONFIDENCE) -> OverRuns | None:
    """Sum up one figure of each run; None without runs."""
    from scipy.special import stdtrit

    n = len(values)
    if n == 0:
        return None
    if n < 2 or min(values) <= 0:
        return OverRuns(value=float(np.mean(values)), interval=None, spread=None, num_runs=n)
    logs = np.log(np.asarray(values, np.float64))
    centre = float(logs.mean())
    spread = float(logs.std(ddof=1))
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * spread / np.sqrt(n)
    low, high = float(np.exp(centre - half)), float(np.exp(centre + half))
    return OverRuns(value=float(np.exp(centre)), interval=(low, high), spread=spread, num_runs=n)
