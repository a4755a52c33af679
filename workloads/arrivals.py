"""Arrival processes: when each request is due, decided before the run starts.

Every process is a renewal process of unit rate (poisson, constant, gamma, weibull), seen through a rate
that is flat or moves (workloads.rates). The first gap is drawn from the stationary residual, so that a
bursty run is not biased at its start. The number of arrivals is random, as in production; `exact_count`
alone pins it (for Poisson that is the process given its count). Offsets are int64 nanoseconds from the
start, ascending.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError, unknown_name
from workloads.expression import Expression, parse
from workloads.rates import SHAPES, Floats, RateCurve, Shape, flat_curve
from workloads.streams import Streams

Rng = np.random.Generator
MAX_SPAN_S = 10 * 365.25 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Independent gaps of mean 1; `residual` draws the first one as seen from an arbitrary instant."""

    gaps: Callable[[Rng, int], Floats]
    residual: Callable[[Rng], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much to draw: to the end of duration_s, or num_requests where that is given.

    rate_per_s: the mean rate; None where the process has rates of its own. requests_per_arrival: all rates
        are of requests, of which each arrival brings so many (1, or the mean turns of a session).
    """

    rate_per_s: float | None
    duration_s: float
    num_requests: int | None = None
    exact_count: bool = False
    requests_per_arrival: float = 1.0

    @property
    def num_expected(self) -> float:
        return self.num_requests or (self.rate_per_s or 0) * self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalProcess:
    """A process ready to be drawn; made by `parse_arrival`. Without a renewal all is due at once."""

    renewal: Renewal | None
    shape: Shape | None = None

    @property
    def needs_rate(self) -> bool:
        """Whether it has no rates of its own: the mean must be given."""
        return self.renewal is not None and (self.shape is None or self.shape.is_relative)

    def sample(self, streams: Streams, extent: Extent) -> NDArray[np.int64]:
        """Draw the arrivals; only the streams below `arrivals` are used."""
        if self.renewal is None:
            if extent.num_requests is None:
                raise WorkloadError("at-once needs a number of requests, such as --requests 100")
            return np.zeros(extent.num_requests, np.int64)
        rng = streams.generator("arrivals")
        if extent.num_requests is not None:
            operational = _first(self.renewal, rng, extent.num_requests)
            curve = self._curve_reaching(streams, extent, float(operational[-1]))
            return _to_ns(curve.times_of(operational))
        curve = self._curve(streams, extent, extent.duration_s)
        mass = curve.mass_until(extent.duration_s)
        if extent.exact_count:
            count = round(mass)
            operational = _first(self.renewal, rng, count + 1)
            operational = operational[:-1] * (mass / operational[-1])
        else:
            operational = _until(self.renewal, rng, mass)
        return _to_ns(curve.times_of(operational))

    def _curve(self, streams: Streams, extent: Extent, end_s: float) -> RateCurve:
        if self.shape is not None:
            curve = self.shape.curve(streams, end_s, extent.rate_per_s)
        else:
            assert extent.rate_per_s is not None
            curve = flat_curve(extent.rate_per_s)
        return curve.scaled(1 / extent.requests_per_arrival)

    def _curve_reaching(self, streams: Streams, extent: Extent, mass: float) -> RateCurve:
        """Follow a drawn rate for as long as the last request needs; a curve in time spans the duration."""
        end_s = extent.duration_s
        curve = self._curve(streams, extent, end_s)
        while self.shape is not None and self.shape.mean is not None and curve.mass_until(end_s) < mass:
            end_s *= 2
            curve = self._curve(streams, extent, end_s)
        if not math.isfinite(curve.times_of(np.array([mass]))[0]):
            raise WorkloadError("the rate falls to 0 before the number of requests asked for has arrived")
        return curve


def _first(renewal: Renewal, rng: Rng, count: int) -> Floats:
    gaps = np.append(renewal.residual(rng), renewal.gaps(rng, max(count - 1, 0)))
    return np.asarray(np.cumsum(gaps))


def _until(renewal: Renewal, rng: Rng, end: float) -> Floats:
    parts, reached = [np.array([renewal.residual(rng)])], 0.0
    while (reached := float(parts[-1][-1])) < end:
        more = renewal.gaps(rng, 64 + int((end - reached) * 1.05))
        parts.append(reached + np.cumsum(more))
    times = np.concatenate(parts)
    return times[: np.searchsorted(times, end, "left")]


def _to_ns(times_s: Floats) -> NDArray[np.int64]:
    if len(times_s) and not times_s[-1] <= MAX_SPAN_S:
        raise WorkloadError("the last request would be due after more than 10 years; raise the rate")
    return np.rint(times_s * 1e9).astype(np.int64)


def _poisson(_: float) -> Renewal:
    return Renewal(
        gaps=lambda rng, n: rng.standard_exponential(n), residual=lambda rng: rng.standard_exponential()
    )


def _constant(_: float) -> Renewal:
    return Renewal(gaps=lambda _rng, n: np.ones(n), residual=lambda rng: rng.random())


def _gamma(cv: float) -> Renewal:
    """A gap X of shape k seen from an arbitrary instant is length-biased, Gamma(k + 1), and cut uniformly."""
    k = cv**-2
    return Renewal(
        gaps=lambda rng, n: rng.standard_gamma(k, n) / k,
        residual=lambda rng: rng.standard_gamma(k + 1) / k * rng.random(),
    )


def _weibull(cv: float) -> Renewal:
    """With E standard exponential, E**(1/k) is Weibull; length-biased, E is Gamma(1 + 1/k)."""
    k = weibull_shape(cv)
    mean = math.gamma(1 + 1 / k)
    return Renewal(
        gaps=lambda rng, n: rng.standard_exponential(n) ** (1 / k) / mean,
        residual=lambda rng: rng.standard_gamma(1 + 1 / k) ** (1 / k) / mean * rng.random(),
    )


def weibull_shape(cv: float) -> float:
    """Solve for the Weibull shape k whose coefficient of variation is cv (0.01 < cv < 100)."""
    from scipy.optimize import brentq

    square = math.log1p(cv**2)
    return float(brentq(lambda k: math.lgamma(1 + 2 / k) - 2 * math.lgamma(1 + 1 / k) - square, 0.05, 200.0))


_FIXED_CV = {"poisson": (_poisson, 1.0), "constant": (_constant, 0.0)}
_FREE_CV = {"gamma": _gamma, "weibull": _weibull}
ARRIVALS = (*_FIXED_CV, *_FREE_CV, *SHAPES, "at-once")


def parse_arrival(text: str) -> ArrivalProcess:
    """Read `poisson`, `gamma(cv=2)`, `steps(0s:5, 30s:20)`, ...; `cv` is that of the gaps.

    With a moving rate, `cv` makes the gaps gamma instead of exponential in operational time.
    """
    expression = parse(text)
    if expression.name in SHAPES:
        if expression.name in ("steps", "piecewise", "mmpp"):
            expression.numbers(("cv",))
        shape = SHAPES[expression.name](expression)
        cv = expression.numbers(expression.named).get("cv")
        return ArrivalProcess(renewal=_poisson(1) if cv is None else _gamma(_cv(expression)), shape=shape)
    if expression.pairs or expression.plain:
        raise WorkloadError(f"{text}: arguments are named here, such as gamma(cv=2)")
    if expression.name in _FIXED_CV:
        make, cv = _FIXED_CV[expression.name]
        expression.numbers(())
        return ArrivalProcess(renewal=make(cv))
    if expression.name in _FREE_CV:
        return ArrivalProcess(renewal=_FREE_CV[expression.name](_cv(expression)))
    if expression.name == "at-once":
        expression.numbers(())
        return ArrivalProcess(renewal=None)
    raise unknown_name("arrival process", expression.name, ARRIVALS)


def _cv(expression: Expression) -> float:
    given = expression.numbers(expression.named if expression.name in SHAPES else ("cv",))
    if "cv" not in given:
        raise WorkloadError(f"{expression.text}: how bursty? write {expression.name}(cv=2)")
    if not 0.02 <= given["cv"] <= 50:
        raise WorkloadError(f"{expression.text}: cv must lie between 0.02 and 50; constant has cv 0")
    return given["cv"]
