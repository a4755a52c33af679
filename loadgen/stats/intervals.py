"""An interval for a quantile of one run, where the run deserves one.

Requests share a queue, so that the usual intervals (order statistics, bootstrap of single requests) hold the
truth far less often than they say: 9 to 39 % instead of 95 % for the p99 of a FIFO queue. Here values are
grouped by request, dependence between requests is estimated, and an interval is given only where enough
independent values lie beyond the quantile. It is then made by sectioning (Asmussen & Glynn 2007; Nakayama
2014): quantiles of ten consecutive sections, centred on the quantile of all, on a log scale since latencies
are skewed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from loadgen.stats.dependence import autocorrelation_time
from loadgen.stats.quantile import quantiles, weighted_quantiles

NUM_SECTIONS = 10
MIN_TAIL_EVENTS = 10
LEVELS = (0.5, 0.75, 0.9)
CONFIDENCE = 0.95
WIDENING = 5.0  # sections of few tail events agree by chance; chosen by coverage on queues
METHOD = "95 %, sectioning (10 sections, log scale)"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Values in order of request, then time; request i owns values[offsets[i]:offsets[i + 1]].

    weights: how many equal values each stands for; None for one.
    """

    values: Floats
    offsets: NDArray[np.int64]
    weights: NDArray[np.int64] | None = None

    @classmethod
    def of_requests(cls, values: Floats) -> Pool:
        """One value a request."""
        return cls(values=values, offsets=np.arange(len(values) + 1))

    def quantiles(self, qs: list[float]) -> list[float]:
        """Quantiles of at least one value."""
        if self.weights is None:
            return quantiles(self.values.copy(), qs)
        return weighted_quantiles(self.values, self.weights, qs)

    def section(self, start: int, stop: int) -> Pool:
        """The values of requests start to stop."""
        low, high = int(self.offsets[start]), int(self.offsets[stop])
        weights = None if self.weights is None else self.weights[low:high]
        return Pool(
            values=self.values[low:high], offsets=self.offsets[start : stop + 1] - low, weights=weights
        )

    def sum_by_request(self, of_values: Callable[[Floats], NDArray[np.bool_]]) -> tuple[Floats, Floats]:
        """Per request, how many of its values satisfy a condition, and how many it has."""
        hits = of_values(self.values).astype(np.float64)
        if self.weights is not None:
            hits *= self.weights
        sums = np.concatenate([[0.0], np.cumsum(hits)])
        if self.weights is None:
            sizes = np.diff(self.offsets).astype(np.float64)
        else:
            sizes = np.diff(np.concatenate([[0], np.cumsum(self.weights)])[self.offsets]).astype(np.float64)
        return np.diff(sums[self.offsets]), sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileInterval:
    """bounds: None where the interval is withheld, because `num_tail_events` is below the limit.

    n_eff: how many independent values would tell as much about the quantile. num_tail_events: how many of
    those lie beyond it.
    """

    bounds: tuple[float, float] | None
    n_eff: float
    num_tail_events: float


def effective_values(pool: Pool, threshold: float) -> float:
    """How many independent values would tell the share of values above `threshold` as exactly as these do.

    The share is a ratio of sums over requests; its variance is that of the residuals, times their
    autocorrelation time in scheduled order.
    """
    hits, sizes = pool.sum_by_request(lambda values: values > threshold)
    total = float(sizes.sum())
    share = float(hits.sum()) / total
    if not 0 < share < 1:
        return total / max(1.0, float(np.mean(sizes)))
    residuals = hits - share * sizes
    variance = float(residuals @ residuals) * autocorrelation_time(residuals) / total**2
    return min(total, share * (1 - share) / variance) if variance > 0 else total


def independent_values(pool: Pool, q: float) -> float:
    """How many independent values quantile q rests on: the fewest over q itself and lower levels.

    A run that happened to miss the slow excursions looks independent at its own p99; its median tells.
    """
    levels = sorted({*LEVELS, q})
    thresholds = pool.quantiles([level for level in levels if level <= max(q, LEVELS[0])])
    return min(effective_values(pool, threshold) for threshold in thresholds)


def quantile_interval(pool: Pool, q: float) -> QuantileInterval:
    """Interval for quantile q of at least one value; withheld where it would mislead."""
    from scipy.stats import t

    n_eff = independent_values(pool, q)
    num_tail = n_eff * min(q, 1 - q)
    withheld = QuantileInterval(bounds=None, n_eff=n_eff, num_tail_events=num_tail)
    num_requests = len(pool.offsets) - 1
    if num_tail < MIN_TAIL_EVENTS or num_requests < 2 * NUM_SECTIONS:
        return withheld
    edges = np.linspace(0, num_requests, NUM_SECTIONS + 1).astype(np.int64)
    sections = [pool.section(int(a), int(b)) for a, b in pairwise(edges)]
    if any(len(section.values) == 0 for section in sections):
        return withheld
    centre, *found = (part.quantiles([q])[0] for part in (pool, *sections))
    if min(found) <= 0:
        return withheld
    spread = np.sqrt(np.square(np.log(np.array(found) / centre)).sum() / (NUM_SECTIONS * (NUM_SECTIONS - 1)))
    widening = np.sqrt(1 + WIDENING / num_tail)
    half = float(t.ppf((1 + CONFIDENCE) / 2, NUM_SECTIONS - 1) * spread * widening)
    bounds = (centre * float(np.exp(-half)), centre * float(np.exp(half)))
    return QuantileInterval(bounds=bounds, n_eff=n_eff, num_tail_events=num_tail)
