"""Distributions of token lengths, as values: quantile function, distribution function and exact mean.

Lengths are drawn by `ppf` of uniform draws and then rounded; parameters as people know them are solved for in
workloads.lengths. scipy is imported where a law needs it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError
from workloads.plan import INT32_MAX

Floats = NDArray[np.float64]


class Law(Protocol):
    """A distribution of lengths, in tokens, not yet rounded."""

    @property
    def mean(self) -> float: ...
    def ppf(self, u: Floats) -> Floats: ...
    def cdf(self, x: Floats) -> Floats: ...


def to_tokens(values: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Round to whole tokens, at least 1."""
    longest = float(values.max(initial=1.0))
    if not longest <= INT32_MAX:
        raise WorkloadError(
            f"a length of {longest:.3g} tokens came out; give the law a max=, or correct the trace"
        )
    return np.asarray(np.maximum(np.rint(values), 1), dtype=np.int64)


@dataclass(frozen=True)
class Uniform:
    """Whole numbers from low to high, both included."""

    low: float
    high: float

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def ppf(self, u: Floats) -> Floats:
        return np.minimum(self.low + np.floor(u * (self.high - self.low + 1)), self.high)

    def cdf(self, x: Floats) -> Floats:
        return np.clip((np.floor(x) - self.low + 1) / (self.high - self.low + 1), 0, 1)


@dataclass(frozen=True)
class Normal:
    mean: float
    sd: float

    def ppf(self, u: Floats) -> Floats:
        from scipy.special import ndtri

        return np.asarray(self.mean + self.sd * ndtri(u))

    def cdf(self, x: Floats) -> Floats:
        from scipy.special import ndtr

        return np.asarray(ndtr((x - self.mean) / self.sd))


@dataclass(frozen=True)
class Lognormal:
    """exp of a normal variable of mean ln(median) and standard deviation sigma."""

    median: float
    sigma: float

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def ppf(self, u: Floats) -> Floats:
        from scipy.special import ndtri

        return np.asarray(self.median * np.exp(self.sigma * ndtri(u)))

    def cdf(self, x: Floats) -> Floats:
        from scipy.special import ndtr

        with np.errstate(divide="ignore"):
            return np.asarray(ndtr(np.log(np.maximum(x, 0) / self.median) / self.sigma))

    @classmethod
    def of_mean(cls, mean: float, *, cv: float) -> Lognormal:
        sigma = math.sqrt(math.log1p(cv**2))
        return cls(mean * math.exp(-(sigma**2) / 2), sigma)


@dataclass(frozen=True)
class Geometric:
    """1, 2, 3, ...: the number of trials until the first success, of this mean (1 or more)."""

    mean: float

    def ppf(self, u: Floats) -> Floats:
        if self.mean <= 1:
            return np.ones(len(u))
        return np.maximum(np.ceil(np.log1p(-u) / math.log1p(-1 / self.mean)), 1)

    def cdf(self, x: Floats) -> Floats:
        return np.asarray(1 - (1 - 1 / self.mean) ** np.maximum(np.floor(x), 0))


@dataclass(frozen=True)
class Gamma:
    mean: float
    shape: float

    def ppf(self, u: Floats) -> Floats:
        from scipy.special import gammaincinv

        return np.asarray(gammaincinv(self.shape, u) * (self.mean / self.shape))

    def cdf(self, x: Floats) -> Floats:
        from scipy.special import gammainc

        return np.asarray(gammainc(self.shape, np.maximum(x, 0) * self.shape / self.mean))


@dataclass(frozen=True)
class Discrete:
    """Values with their probabilities: one alone, Zipf's law, weighted values."""

    values: Floats
    cumulative: Floats

    @classmethod
    def of_one(cls, value: float) -> Discrete:
        return cls(np.array([value]), np.ones(1))

    @property
    def mean(self) -> float:
        return float(self.values @ np.diff(self.cumulative, prepend=0.0))

    def ppf(self, u: Floats) -> Floats:
        return self.values[np.minimum(np.searchsorted(self.cumulative, u), len(self.values) - 1)]

    def cdf(self, x: Floats) -> Floats:
        return np.append(0.0, self.cumulative)[np.searchsorted(self.values, x, "right")]


@dataclass(frozen=True)
class Quantiles:
    """Empirical: known quantiles, the logarithm of the length going straight between them."""

    levels: Floats
    values: Floats

    @property
    def mean(self) -> float:
        low, high = self.values[:-1], self.values[1:]
        ratio = np.log(high / low)
        within = np.where(ratio > 1e-12, (high - low) / np.where(ratio > 1e-12, ratio, 1), low)
        return float(np.diff(self.levels) @ within)

    def ppf(self, u: Floats) -> Floats:
        return np.exp(np.interp(u, self.levels, np.log(self.values)))

    def cdf(self, x: Floats) -> Floats:
        inside = np.interp(np.log(np.maximum(x, 1e-9)), np.log(self.values), self.levels)
        return np.where(x < self.values[0], 0.0, np.where(x >= self.values[-1], 1.0, inside))


@dataclass(frozen=True)
class Truncated:
    """A law given that it lies between low and high."""

    law: Law
    low: float
    high: float

    @cached_property
    def levels(self) -> tuple[float, float]:
        # Half a token wider, so that the rounded length keeps its share at the ends.
        below, above = self.law.cdf(np.array([self.low - 0.5, self.high + 0.499999]))
        return float(below), float(above)

    @property
    def mean(self) -> float:
        """Mean that results, by the midpoint rule over 100,000 levels."""
        return float(self.ppf((np.arange(100_000) + 0.5) / 100_000).mean())

    def ppf(self, u: Floats) -> Floats:
        below, above = self.levels
        return np.clip(self.law.ppf(below + u * (above - below)), self.low, self.high)

    def cdf(self, x: Floats) -> Floats:
        below, above = self.levels
        return np.clip((self.law.cdf(x) - below) / (above - below), 0, 1)


@dataclass(frozen=True)
class Mixture:
    """One of several laws, each with its weight; inverted on a table of whole lengths."""

    weights: tuple[float, ...]
    laws: tuple[Law, ...]

    @property
    def mean(self) -> float:
        return sum(weight * law.mean for weight, law in zip(self.weights, self.laws, strict=True))

    def cdf(self, x: Floats) -> Floats:
        parts = [weight * law.cdf(x) for weight, law in zip(self.weights, self.laws, strict=True)]
        return np.asarray(np.sum(parts, axis=0))

    @cached_property
    def _table(self) -> tuple[Floats, Floats]:
        """Whole lengths (each up to 131,072, then by steps of 0.01 %) and the cdf half above each."""
        top = max(float(law.ppf(np.array([1 - 1e-9]))[0]) for law in self.laws)
        lengths = np.arange(1.0, min(top, 131_072) + 2)
        if top > 131_072:
            steps = math.ceil(math.log(top / 131_072) / 1e-4)
            lengths = np.append(lengths, np.rint(131_073 * np.exp(1e-4 * np.arange(1, steps + 1))))
        return lengths, self.cdf(lengths + 0.5)

    def ppf(self, u: Floats) -> Floats:
        lengths, levels = self._table
        return lengths[np.minimum(np.searchsorted(levels, u), len(lengths) - 1)]
