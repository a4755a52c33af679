"""Where the warm-up ends: MSER-5 (White 1997; White, Cobb & Spratt 2000).

A floor under `--warmup auto`, not a proof: Wang & Glynn (2016) show series on which MSER misjudges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BATCH = 5
SECTIONS = 10
DRIFT_ALPHA = 0.01
MIN_VALUES = 20


def drifts(series: NDArray[np.float64]) -> bool:
    """Whether a series of 20 or more values climbs or falls from section to section (t test of the slope)."""
    from scipy.special import stdtr

    levels = np.array([section.mean() for section in np.array_split(series, SECTIONS)])
    x = np.arange(SECTIONS) - (SECTIONS - 1) / 2
    slope = float(x @ levels / (x @ x))
    residuals = levels - levels.mean() - slope * x
    error = float(np.sqrt(residuals @ residuals / (SECTIONS - 2) / (x @ x)))
    if error == 0:
        return slope != 0
    return 2 * float(stdtr(SECTIONS - 2, -abs(slope) / error)) < DRIFT_ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """num_dropped: leading values to leave out; reached_steady_state: False where the run is too short to
    say.
    """

    num_dropped: int
    reached_steady_state: bool


def mser5_truncation(series: NDArray[np.float64]) -> Truncation:
    """Find where the warm-up ends.

    series: one value per request in scheduled order, any unit. Of all cuts up to half of the batches, the one
    that minimises the squared standard error of the mean of the rest is taken. `reached_steady_state` is
    False where that is the half-way mark, or with fewer than 20 values: callers must not report steady-state
    numbers.
    """
    k = len(series) // BATCH
    if len(series) < MIN_VALUES:
        return Truncation(num_dropped=0, reached_steady_state=False)
    batches = series[: k * BATCH].reshape(k, BATCH).mean(axis=1)
    centred = batches - batches.mean()
    rest = k - np.arange(k // 2 + 1)
    sums = np.cumsum(centred[::-1])[::-1][: len(rest)]
    squares = np.cumsum(centred[::-1] ** 2)[::-1][: len(rest)]
    error = np.maximum(squares - sums**2 / rest, 0.0) / rest.astype(np.float64) ** 2
    cut = int(np.argmin(error))
    return Truncation(num_dropped=BATCH * cut, reached_steady_state=cut < k // 2)
