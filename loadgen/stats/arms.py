"""How arms are run and how many times, and what can be said of them where they are not paired.

The order is ABBA: every other replicate is run in the reverse of a random order, so that neither a drift of
the machine nor a habit of the first place is taken for a difference (randomised multiple interleaved trials:
Abedi & Brecht, ICPE 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, sqrt

import numpy as np
from numpy.typing import NDArray

from loadgen.stats.paired import plan_replicates

Floats = NDArray[np.float64]


def interleave(num_arms: int, replicates: Sequence[int], rng: np.random.Generator) -> list[tuple[int, int]]:
    """Order (replicate, arm) pairs: each two replicates in a random order and its reverse."""
    order: list[tuple[int, int]] = []
    arms: list[int] = []
    for place, replicate in enumerate(replicates):
        arms = arms[::-1] if place % 2 else [int(arm) for arm in rng.permutation(num_arms)]
        order += [(replicate, arm) for arm in arms]
    return order


def fewest_replicates(num_primary: int, alpha: float = 0.05) -> int:
    """Below this no sign flip can be significant among so many primary metrics: its smallest p is 2 / 2^R."""
    return max(2, ceil(log2(2 * num_primary / alpha)))


def plan_for_margin(spread: float, *, detect: float, margin: float, num_primary: int) -> int:
    """How many pairs find a relative change `detect` beyond a margin 9 times in 10, among primary metrics."""
    beyond = (1 + detect) / (1 + margin) - 1
    if beyond <= 0:
        raise ValueError(f"a change of {detect:g} cannot be told from a margin of {margin:g}")
    wanted = plan_replicates(spread, beyond, alpha=0.05 / num_primary)
    return max(wanted, fewest_replicates(num_primary))


def single_pair_noise(d: Floats, confidence: float = 0.95) -> float:
    """The relative difference that one more pair of equal arms shows by chance, at most, with confidence.

    d: log-ratios of pairs of equal arms (two or more); a prediction interval around no difference.
    """
    from scipy.special import stdtrit

    n = len(d)
    spread = sqrt(float(d @ d) / n)  # around 0: equal arms differ by nothing
    return float(np.expm1(stdtrit(n, (1 + confidence) / 2) * spread))


def unpaired_interval(a: Floats, b: Floats, confidence: float = 0.95) -> tuple[float, float, float, float]:
    """Ratio b / a of geometric means, its interval, and p: Welch's t on logarithms of independent runs."""
    from scipy import stats

    x, y = np.log(a), np.log(b)
    found = stats.ttest_ind(y, x, equal_var=False)
    interval = found.confidence_interval(confidence)
    low, high = float(np.exp(interval.low)), float(np.exp(interval.high))
    return float(np.exp(y.mean() - x.mean())), low, high, float(found.pvalue)
