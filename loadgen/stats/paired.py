"""Two arms on the same plans: is B slower than A, by how much, and is it the same within a margin?

One number per replicate: D = log(figure of B) - log(figure of A), both on one plan (common random numbers),
arms interleaved. Requests of one run are never samples of each other; replicates are. The effect is exp(mean
D), its interval a t interval on D, its exact check a sign flip; decisions are by the interval against a
margin (equivalence: Schuirmann 1987). Metrics declared primary share the error by Holm's rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

import numpy as np
from numpy.typing import NDArray

MAX_EXACT_REPLICATES = 16
NUM_RANDOM_FLIPS = 100_000
MAX_REPLICATES = 10_000

Floats = NDArray[np.float64]


class Change(StrEnum):
    """What a comparison says of B against A, for a figure that is better when small."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """ratio: B / A; interval: where it lies with `confidence`. p: two-sided sign flip."""

    change: Change
    ratio: float
    interval: tuple[float, float]
    confidence: float
    p: float
    num_replicates: int
    margin: float


def compare_paired(
    a: Floats, b: Floats, *, margin: float, floor: float = 0.0, confidence: float = 0.95
) -> Comparison:
    """Compare positive figures of two arms, one of each per replicate (two or more).

    margin: relative change that does not matter (0.05); floor: absolute change that does not. A difference is
    called only where the interval clears 1 and its margin: worse above 1 + margin, better below 1 / (1 +
    margin), equivalent inside both.
    """
    from scipy.special import stdtrit

    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"{len(a)} and {len(b)} replicates: two or more pairs are needed")
    if not (np.isfinite(a).all() and np.isfinite(b).all() and min(a.min(), b.min()) > 0):
        raise ValueError("figures of replicates must be positive and finite")
    d = np.log(b / a)
    n = len(d)
    half = float(stdtrit(n - 1, (1 + confidence) / 2) * d.std(ddof=1) / np.sqrt(n))
    low, high = float(np.exp(d.mean() - half)), float(np.exp(d.mean() + half))
    is_small = abs(float(b.mean() - a.mean())) <= floor
    if is_small or (1 / (1 + margin) <= low and high <= 1 + margin):
        change = Change.EQUIVALENT
    elif low > 1 + margin:
        change = Change.WORSE
    elif high < 1 / (1 + margin):
        change = Change.BETTER
    else:
        change = Change.UNDECIDED
    return Comparison(
        change=change,
        ratio=float(np.exp(d.mean())),
        interval=(low, high),
        confidence=confidence,
        p=sign_flip_p(d),
        num_replicates=n,
        margin=margin,
    )


def sign_flip_p(d: Floats) -> float:
    """Two-sided p of mean d = 0 by flipping signs: exact up to 16 replicates, else by 100,000 fixed random
    flips.
    """
    n = len(d)
    if n <= MAX_EXACT_REPLICATES:
        signs = np.array(list(product((1.0, -1.0), repeat=n)))
        return float(np.mean(np.abs(signs @ d) >= abs(d.sum()) * (1 - 1e-12)))
    flips = np.random.default_rng(0).choice([-1.0, 1.0], (NUM_RANDOM_FLIPS, n))
    hits = int((np.abs(flips @ d) >= abs(d.sum()) * (1 - 1e-12)).sum())
    return (hits + 1) / (NUM_RANDOM_FLIPS + 1)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values of several primary metrics so that any false alarm among them keeps its level (Holm
    1979).
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, largest = [0.0] * len(ps), 0.0
    for position, i in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - position) * ps[i]))
        adjusted[i] = largest
    return adjusted


def plan_replicates(spread: float, change: float, *, power: float = 0.9, alpha: float = 0.05) -> int:
    """How many pairs find a relative change with the given power; spread: standard deviation of D, from a
    pilot.

    By the noncentral t distribution; 2 at least, 10,000 at most.
    """
    from scipy.stats import nct, t

    effect = abs(float(np.log1p(change)))
    if spread <= 0:
        return 2

    def finds(n: int) -> bool:
        limit = t.ppf(1 - alpha / 2, n - 1)
        return float(nct.sf(limit, n - 1, effect * np.sqrt(n) / spread)) >= power

    low, high = 1, 2
    while not finds(high):
        low, high = high, 2 * high
        if high > MAX_REPLICATES:
            return MAX_REPLICATES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if finds(middle) else (middle, high)
    return high
