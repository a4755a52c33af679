"""Mean and squared deviations of long arrays, block by block: a hundred million at once would cost 800 MB a
step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1_000_000


def moments(values: NDArray[Any], weights: NDArray[Any] | None = None) -> tuple[float, float, float]:
    """Total weight, mean, and weighted sum of squared deviations of at least one value."""
    parts = [slice(start, start + BLOCK) for start in range(0, len(values), BLOCK)]
    if weights is None:
        total = float(len(values))
        mean = sum(float(values[part].sum()) for part in parts) / total
        return total, mean, sum(float(np.square(values[part] - mean).sum()) for part in parts)
    total = float(weights.sum())
    mean = sum(float(values[part] @ weights[part]) for part in parts) / total
    return total, mean, sum(float(np.square(values[part] - mean) @ weights[part]) for part in parts)
