"""An interval for a quantile of one run, where the run deserves one.

Requests share a queue, so that the usual intervals (order statistics, bootstrap of single requests) hold the
truth far less often than they say: 9 to 39 % instead of 95 % for the p99 of a FIFO queue. Here values are
grouped by request, dependence between requests is estimated, and an interval is given only where enough
independent values lie beyond the quantile. It is then made by sectioning (Asmussen & Glynn 2007; Nakayama
2014): quantiles of ten consecutive sections, centred on the quantile of all, on a log scale since latencies
are skewed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.stats.dependence import autocorrelation_time
from loadgen.stats.quantile import quantiles, weighted_quantiles

NUM_SECTIONS = 10
BLOCK_REQUESTS = 16_384
MIN_TAIL_EVENTS = 10
LEVELS = (0.5, 0.75, 0.9)
CONFIDENCE = 0.95
NORMAL_95 = 1.959964
WIDENING = 5.0  # sections of few tail events agree by chance; chosen by coverage on queues
METHOD = "95 %, sectioning (10 sections, log scale)"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Values in order of request, then time; request i owns values[offsets[i]:offsets[i + 1]].

    weights: how many equal values each stands for; None for one. per_unit: what the values are divided by
    in an interval.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    weights: NDArray[np.int64] | None = None
    per_unit: float = 1.0

    @classmethod
    def of_requests(cls, values: Floats) -> Pool:
        """One value a request."""
        return cls(values=values, offsets=np.arange(len(values) + 1))

    def quantiles(self, qs: Sequence[float]) -> list[float]:
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

    def count_above(self, threshold: float) -> Floats:
        """How many values of each request lie above the threshold."""
        return self._sum_by_request(threshold)

    def sizes(self) -> Floats:
        """How many values each request has."""
        if self.weights is None:
            return np.diff(self.offsets).astype(np.float64)
        return self._sum_by_request(-np.inf)

    def _sum_by_request(self, threshold: float) -> Floats:
        sums = np.zeros(len(self.offsets) - 1)
        has_values = np.diff(self.offsets) > 0
        for first in range(0, len(sums), BLOCK_REQUESTS):  # all at once would take eight bytes a value
            block = slice(first, first + BLOCK_REQUESTS)
            own = has_values[block]
            starts = self.offsets[:-1][block][own]
            if len(starts):
                low, high = int(starts[0]), int(self.offsets[min(first + BLOCK_REQUESTS, len(sums))])
                hits = self.values[low:high] > threshold
                amounts = hits if self.weights is None else hits * self.weights[low:high]
                sums[block][own] = np.add.reduceat(amounts, starts - low, dtype=np.int64)
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileInterval:
    """bounds: None where the interval is withheld, because `num_tail_events` is below the limit.

    n_eff: how many independent values would tell as much about the quantile. num_tail_events: how many of
    those lie beyond it.
    """

    bounds: tuple[float, float] | None
    n_eff: float
    num_tail_events: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceedance:
    """How the share of values above a threshold varies.

    num_values: how many independent values would tell it as exactly, were the requests independent of each
    other.
    tau: the autocorrelation time of the requests in scheduled order.
    """

    num_values: float
    tau: float


def describe_exceedance(pool: Pool, threshold: float) -> Exceedance:
    """Judge the share of values above a threshold: a ratio of sums over requests, with their residuals."""
    hits, sizes = pool.count_above(threshold), pool.sizes()
    total = float(sizes.sum())
    share = float(hits.sum()) / total
    residuals = hits - share * sizes
    squares = float(residuals @ residuals)
    if not 0 < share < 1 or squares == 0:
        return Exceedance(num_values=total / max(1.0, float(np.mean(sizes))), tau=1.0)
    num_values = min(total, share * (1 - share) * total**2 / squares)
    return Exceedance(num_values=num_values, tau=autocorrelation_time(residuals))


def independent_values(pool: Pool, q: float) -> float:
    """How many independent values quantile q of at least one value rests on.

    The dependence between requests is the strongest of q itself and of lower levels: a run that happened to
    miss the slow excursions looks independent at its own p99; its median tells.
    """
    return _independent_values(pool, [q], _thresholds(pool, [q]))[q]


def _thresholds(pool: Pool, qs: Sequence[float]) -> dict[float, float]:
    levels = sorted({*LEVELS, *qs})
    return dict(zip(levels, pool.quantiles(levels), strict=True))


def _independent_values(
    pool: Pool, qs: Sequence[float], thresholds: Mapping[float, float]
) -> dict[float, float]:
    found = {level: describe_exceedance(pool, threshold) for level, threshold in thresholds.items()}
    n_eff = {}
    for q in qs:
        tau = max(found[level].tau for level in {*LEVELS, q} if level <= max(q, LEVELS[0]))
        n_eff[q] = found[q].num_values / tau
    return n_eff


def quantile_intervals(pool: Pool, qs: Sequence[float]) -> dict[float, QuantileInterval]:
    """Intervals for quantiles of at least one value; withheld where they would mislead."""
    thresholds = _thresholds(pool, qs)
    n_eff = _independent_values(pool, qs, thresholds)
    num_requests = len(pool.offsets) - 1
    sections: list[Pool] = []
    if num_requests >= 2 * NUM_SECTIONS:
        edges = np.linspace(0, num_requests, NUM_SECTIONS + 1).astype(np.int64)
        sections = [pool.section(int(a), int(b)) for a, b in pairwise(edges)]
    if not sections or any(len(section.values) == 0 for section in sections):
        return {q: _withheld(n_eff[q], q) for q in qs}
    found = np.array([section.quantiles(qs) for section in sections]) / pool.per_unit
    return {q: _interval(thresholds[q] / pool.per_unit, found[:, i], n_eff[q], q) for i, q in enumerate(qs)}


def quantile_interval(pool: Pool, q: float) -> QuantileInterval:
    """The interval for one quantile."""
    return quantile_intervals(pool, [q])[q]


def independent_values_of_mean(pool: Pool) -> float:
    """How many independent values the mean of at least one value rests on."""
    residuals = _residuals(pool)
    return len(residuals) / autocorrelation_time(residuals)


def mean_interval(pool: Pool) -> tuple[float, float] | None:
    """A 95 % interval for the mean of all values; None with too few independent ones.

    By sectioning as well. The autocorrelation time alone makes it too narrow where long waves of load lie
    under the noise of single requests (68 % for the mean E2E of a batching engine): it is a floor.
    """
    from scipy.special import stdtrit

    sizes = pool.sizes()
    total = float(sizes.sum())
    if total == 0 or len(sizes) < 2 * NUM_SECTIONS:
        return None
    mean = float(np.average(pool.values, weights=pool.weights))
    residuals = _residuals(pool)
    tau = autocorrelation_time(residuals)
    if len(sizes) / tau < MIN_TAIL_EVENTS:
        return None
    edges = np.linspace(0, len(sizes), NUM_SECTIONS, endpoint=False).astype(np.int64)
    sums = np.add.reduceat(residuals, edges)
    by_section = stdtrit(NUM_SECTIONS - 1, (1 + CONFIDENCE) / 2) * np.sqrt(
        (sums @ sums) * NUM_SECTIONS / (NUM_SECTIONS - 1)
    )
    by_correlation = NORMAL_95 * np.sqrt(residuals @ residuals * tau)
    half = float(max(by_section, by_correlation)) / total
    return (mean - half) / pool.per_unit, (mean + half) / pool.per_unit


def _residuals(pool: Pool) -> Floats:
    """By request, the sum of what its values are above the mean of all."""
    mean = float(np.average(pool.values, weights=pool.weights))
    weighted = (pool.values - mean) * (1 if pool.weights is None else pool.weights)
    has_values = np.diff(pool.offsets) > 0
    residuals = np.zeros(len(has_values))
    residuals[has_values] = np.add.reduceat(weighted, pool.offsets[:-1][has_values])
    return residuals


def _withheld(n_eff: float, q: float) -> QuantileInterval:
    return QuantileInterval(bounds=None, n_eff=n_eff, num_tail_events=n_eff * min(q, 1 - q))


def _interval(centre: float, sections: Floats, n_eff: float, q: float) -> QuantileInterval:
    from scipy.special import stdtrit

    withheld = _withheld(n_eff, q)
    if withheld.num_tail_events < MIN_TAIL_EVENTS or sections.min() <= 0:
        return withheld
    spread = np.sqrt(np.square(np.log(sections / centre)).sum() / (NUM_SECTIONS * (NUM_SECTIONS - 1)))
    widening = np.sqrt(1 + WIDENING / withheld.num_tail_events)
    half = float(stdtrit(NUM_SECTIONS - 1, (1 + CONFIDENCE) / 2) * spread * widening)
    bounds = (centre * float(np.exp(-half)), centre * float(np.exp(half)))
    return replace(withheld, bounds=bounds)
