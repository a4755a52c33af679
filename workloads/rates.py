"""How a rate moves over time: piecewise linear curves, and the time change that arrivals go through.

A process is drawn in operational time, in which its rate is 1. A curve turns operational time s into clock
time t by solving the integral of the rate up to t = s (Çinlar's time change), so that no gap spans a change
of rate wrongly. Deterministic curves are ramp, steps, piecewise and diurnal; on-off and MMPP draw theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError
from workloads.expression import Expression
from workloads.streams import Streams

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Segments i from edges_s[i] to edges_s[i + 1], over which the rate goes from left[i] to right[i].

    edges_s starts at 0 and ascends; after its end the last rate holds.
    """

    edges_s: Floats
    left: Floats
    right: Floats

    @property
    def mass(self) -> Floats:
        """Expected number of arrivals up to each edge."""
        areas = np.diff(self.edges_s) * (self.left + self.right) / 2
        return np.concatenate([[0.0], np.cumsum(areas)])

    def mass_until(self, end_s: float) -> float:
        """Integrate the rate from 0 to end_s."""
        i = min(int(np.searchsorted(self.edges_s, end_s, "right")) - 1, len(self.left) - 1)
        beyond = max(0.0, end_s - self.edges_s[-1])
        inside = min(end_s, self.edges_s[-1]) - self.edges_s[i]
        width = self.edges_s[i + 1] - self.edges_s[i]
        slope = (self.right[i] - self.left[i]) / width
        return float(self.mass[i] + self.left[i] * inside + slope * inside**2 / 2 + self.right[-1] * beyond)

    def times_of(self, operational: Floats) -> Floats:
        """Map ascending operational times to seconds; inf where the curve never gets there."""
        mass = self.mass
        i = np.clip(np.searchsorted(mass, operational, "right") - 1, 0, len(self.left) - 1)
        rest = np.minimum(operational, mass[-1]) - mass[i]
        slope = (self.right[i] - self.left[i]) / np.diff(self.edges_s)[i]
        root = np.sqrt(np.maximum(self.left[i] ** 2 + 2 * slope * rest, 0.0)) + self.left[i]
        # The form 2c / (b + sqrt(b^2 + 2ac)) stays exact where the slope is zero.
        inside = np.divide(2 * rest, root, out=np.zeros_like(rest), where=root > 0)
        over = np.maximum(operational - mass[-1], 0.0)
        with np.errstate(divide="ignore"):
            beyond = np.divide(over, self.right[-1], out=np.zeros_like(over), where=over > 0)
        return np.asarray(self.edges_s[i] + inside + beyond)

    def scaled(self, factor: float) -> RateCurve:
        return RateCurve(self.edges_s, self.left * factor, self.right * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A rate that moves; `mean` is its long-run mean for a drawn one, None for a curve given in time.

    is_relative: the curve says only how the rate moves, so that the mean must be given.
    """

    draw: Callable[[Streams, float], RateCurve]
    mean: float | None = None
    is_relative: bool = False

    def curve(self, streams: Streams, end_s: float, rate_per_s: float | None) -> RateCurve:
        """Give the curve up to end_s, scaled to the mean rate asked for; its own rates where none is."""
        curve = self.draw(streams, end_s)
        if rate_per_s is None:
            return curve
        mean = self.mean if self.mean is not None else curve.mass_until(end_s) / end_s
        if mean <= 0:
            raise WorkloadError("the rate is 0 from start to end; make it rise above 0 somewhere")
        return curve.scaled(rate_per_s / mean)


def flat_curve(rate_per_s: float) -> RateCurve:
    rate = np.array([rate_per_s])
    return RateCurve(np.array([0.0, 1.0]), rate, rate)


def _ramp(e: Expression) -> Shape:
    given = e.numbers(("from", "to", "over", "cv"))
    if not {"from", "to"} <= given.keys():
        raise WorkloadError(f"{e.text}: write ramp(from=RATE, to=RATE), with over=60s for a shorter climb")
    if given.get("over", 1.0) <= 0:
        raise WorkloadError(f"{e.text}: over must be above 0")
    ends = np.array([_rate(e, given["from"])]), np.array([_rate(e, given["to"])])
    return Shape(draw=lambda _, end_s: RateCurve(np.array([0.0, given.get("over", end_s)]), *ends))


def _points(e: Expression) -> tuple[Floats, Floats]:
    pairs = [(at, value) for at, value in e.pairs if not isinstance(value, Expression)]
    times = np.array([at for at, _ in pairs])
    if not pairs or len(pairs) < len(e.pairs) or times[0] != 0 or bool(np.any(np.diff(times) <= 0)):
        raise WorkloadError(f"{e.text}: write {e.name}(0s:RATE, 30s:RATE, ...), times ascending from 0s")
    return times, np.array([_rate(e, rate) for _, rate in pairs])


def _steps(e: Expression) -> Shape:
    times, rates = _points(e)
    return Shape(draw=lambda _, end_s: RateCurve(np.append(times, max(end_s, times[-1] + 1)), rates, rates))


def _piecewise(e: Expression) -> Shape:
    times, rates = _points(e)
    times, rates = np.append(times, times[-1] + 1), np.append(rates, rates[-1])
    return Shape(draw=lambda _, _end_s: RateCurve(times, rates[:-1], rates[1:]))


def _diurnal(e: Expression) -> Shape:
    """Draw one hump a period, from trough to peak and back, as a cosine in 288 straight pieces."""
    given = {"peak_to_trough": 3.0, "period": 86400.0, "start": 0.0} | e.numbers(
        ("peak_to_trough", "period", "start", "cv")
    )
    if given["peak_to_trough"] < 1 or given["period"] <= 0:
        raise WorkloadError(f"{e.text}: peak_to_trough must be at least 1, and period above 0")
    swing = (given["peak_to_trough"] - 1) / (given["peak_to_trough"] + 1)

    def draw(_: Streams, end_s: float) -> RateCurve:
        pieces = max(2, math.ceil(end_s / given["period"] * 288))
        edges = np.arange(pieces + 1.0) * (given["period"] / 288)
        angle: Floats = 2 * math.pi * (edges + given["start"]) / given["period"]
        rate: Floats = 1 - swing * np.cos(angle)
        return RateCurve(edges, rate[:-1], rate[1:])

    return Shape(draw=draw, is_relative=True)


def _mmpp(e: Expression) -> Shape:
    pairs = [(_rate(e, rate), dwell) for rate, dwell in e.pairs if not isinstance(dwell, Expression)]
    if len(pairs) < max(2, len(e.pairs)) or min(dwell for _, dwell in pairs) <= 0:
        raise WorkloadError(f"{e.text}: write mmpp(RATE:MEAN_STAY, ...), such as mmpp(5:30s, 50:10s)")
    return _modulated(np.array([rate for rate, _ in pairs]), np.array([dwell for _, dwell in pairs]))


def _onoff(e: Expression) -> Shape:
    given = e.numbers(("on", "off", "cv"))
    if min(given.get("on", 0), given.get("off", 0)) <= 0:
        raise WorkloadError(f"{e.text}: write onoff(on=MEAN, off=MEAN), such as onoff(on=20s, off=40s)")
    return replace(_modulated(np.array([1.0, 0.0]), np.array([given["on"], given["off"]])), is_relative=True)


def _modulated(rates: Floats, stays_s: Floats) -> Shape:
    """Stay in each state an exponential time, then go to any other; start as in the long run."""
    if not rates.any():
        raise WorkloadError("every state of this process has rate 0")

    def draw(streams: Streams, end_s: float) -> RateCurve:
        jumps, stays = streams.generator("arrivals/states"), streams.generator("arrivals/stays")
        first = int(jumps.choice(len(rates), p=stays_s / stays_s.sum()))
        edges, states = np.zeros(1), np.zeros(0, np.int64)
        while edges[-1] < end_s:
            n = 16 + int((end_s - edges[-1]) / stays_s.mean())
            last = first if not len(states) else int(states[-1] + jumps.integers(1, len(rates)))
            steps = np.concatenate([[0], jumps.integers(1, len(rates), n - 1)])
            more = (last + np.cumsum(steps)) % len(rates)
            edges = np.append(edges, edges[-1] + np.cumsum(stays.standard_exponential(n) * stays_s[more]))
            states = np.append(states, more)
        return RateCurve(edges, rates[states], rates[states])

    return Shape(draw=draw, mean=float(rates @ stays_s / stays_s.sum()))


def _rate(e: Expression, rate: float) -> float:
    if not (math.isfinite(rate) and rate >= 0):
        raise WorkloadError(f"{e.text}: a rate must be 0 or more, not {rate:g}")
    return rate


SHAPES: dict[str, Callable[[Expression], Shape]] = {
    "ramp": _ramp,
    "steps": _steps,
    "piecewise": _piecewise,
    "diurnal": _diurnal,
    "mmpp": _mmpp,
    "onoff": _onoff,
}
