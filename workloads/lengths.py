"""Token lengths: laws with the parameters that people know, drawn through their quantile functions.

Lengths are `ppf` of uniform draws, rounded to whole tokens, at least 1: a changed parameter moves every
length a little and shuffles none, and two lengths can be tied by the rank (a Gaussian copula). Two of mean,
median, a percentile, sigma, sd or cv fix a law by formula, without fitting.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError, unknown_name
from workloads.expression import Expression, Value, parse, parse_number
from workloads.laws import (
    Discrete,
    Fixed,
    Gamma,
    Geometric,
    Law,
    Lognormal,
    Mixture,
    Normal,
    Quantiles,
    Truncated,
    Uniform,
    to_tokens,
)

DEFAULT_MEDIAN = 32
DEFAULT_P99 = 128


def _z(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(level))


class _Given:
    """The arguments of a law, taken one by one; what is left over or missing is an error."""

    def __init__(self, expression: Expression, default_mean: float | None) -> None:
        self.text = expression.text
        self.values = dict(expression.numbers(expression.named))
        if len(expression.plain) == 1 and not isinstance(expression.plain[0], Expression):
            self.values["mean"] = expression.plain[0]
        elif expression.plain:
            raise WorkloadError(f"{self.text}: one bare number, the mean, can stand here")
        if default_mean is not None:
            self.values.setdefault("mean", default_mean)
        for name, value in self.values.items():
            if not (math.isfinite(value) and value > 0):
                raise WorkloadError(f"{self.text}: {name} must be above 0, not {value:g}")

    def take(self, name: str) -> float | None:
        return self.values.pop(name, None)

    def take_percentile(self) -> tuple[float, float] | None:
        """Take `p99=128` as (0.99, 128); the first where there are several."""
        for name in list(self.values):
            level = parse_number(name[1:]) if name.startswith("p") else None
            if level is not None and 0 < level < 100:
                return level / 100, self.values.pop(name)
        return None

    def done(self, law: Law, usage: str) -> Law:
        if self.values:
            extra = ", ".join(self.values)
            raise WorkloadError(f"{self.text}: {extra} is not needed or not known here; write {usage}")
        return law

    def fail(self, usage: str) -> WorkloadError:
        return WorkloadError(f"{self.text}: too little or too much is given; write {usage}")

    def at_most_one(self, usage: str, *values: object) -> None:
        if sum(value is not None for value in values) > 1:
            raise self.fail(usage)


DEFAULT_SIGMA = math.log(DEFAULT_P99 / DEFAULT_MEDIAN) / 2.3263478740408408
DEFAULT_CV = math.sqrt(math.expm1(DEFAULT_SIGMA**2))


def _fixed(given: _Given) -> Law:
    value = given.take("mean")
    if value is None:
        raise given.fail("fixed(64)")
    return given.done(Fixed(value), "fixed(64)")


def _uniform(given: _Given) -> Law:
    usage = "uniform(min=16, max=64) or uniform(40)"
    low, high, mean = given.take("min"), given.take("max"), given.take("mean")
    if mean is not None and low is None and high is None:
        low, high = 1.0, 2 * mean - 1
    if low is None or high is None or high < low or mean not in (None, (low + high) / 2):
        raise given.fail(usage)
    return given.done(Uniform(low, high), usage)


def _normal(given: _Given) -> Law:
    """Cut off below 1 token (or `min`); the mean that results is a little above the one written."""
    usage = "normal(mean=512, sd=128), or cv= or p99= in place of sd="
    mean, sd, cv, percentile = given.take("mean"), given.take("sd"), given.take("cv"), given.take_percentile()
    given.at_most_one(usage, sd, cv, percentile)
    if mean is None:
        raise given.fail(usage)
    if percentile is not None:
        sd = (percentile[1] - mean) / (_z(percentile[0]) or -math.inf)
    elif sd is None:
        sd = mean * (cv if cv is not None else DEFAULT_CV)
    if sd <= 0:
        raise WorkloadError(f"{given.text}: the percentile lies on the wrong side of the mean")
    return given.done(Normal(mean, sd), usage)


def _lognormal(given: _Given) -> Law:
    """ln p = ln median + z sigma and ln mean = ln median + sigma^2 / 2, solved for what is missing."""
    usage = "lognormal(median=32, p99=128), (mean=, p99=), (median=, sigma=), (mean=, cv=) or a bare mean"
    mean, median, sigma, cv = (given.take(name) for name in ("mean", "median", "sigma", "cv"))
    given.at_most_one(usage, sigma, cv)
    if cv is not None:
        sigma = math.sqrt(math.log1p(cv**2))
    is_fixed = sigma is not None and (mean or median) is not None
    percentile = None if is_fixed else given.take_percentile()
    if percentile is not None and sigma is None:
        z, value = _z(percentile[0]), percentile[1]
        if median is not None:
            sigma = math.log(value / median) / z if z else 0.0
        elif mean is not None:
            square = z * z - 2 * math.log(value / mean)
            if square < 0:
                most = mean * math.exp(z * z / 2)
                raise WorkloadError(
                    f"{given.text}: no lognormal of this mean has this percentile over {most:.4g}"
                )
            sigma = z - math.sqrt(square)
    elif percentile is not None and sigma is not None and mean is None and median is None:
        median = percentile[1] / math.exp(_z(percentile[0]) * sigma)
    elif sigma is None and mean is not None and median is not None:
        sigma = math.sqrt(2 * math.log(mean / median)) if mean > median else 0.0
        mean = None
    sigma = DEFAULT_SIGMA if sigma is None else sigma
    if sigma <= 0:
        raise WorkloadError(f"{given.text}: the percentile or mean must lie above the median")
    if median is None and mean is not None:
        median, mean = mean * math.exp(-(sigma**2) / 2), None
    if median is None or mean is not None:
        raise given.fail(usage)
    return given.done(Lognormal(median, sigma), usage)


def _gamma(given: _Given) -> Law:
    usage = "gamma(mean=512, cv=0.8), or p99= or shape= in place of cv="
    mean, cv, shape = (given.take(name) for name in ("mean", "cv", "shape"))
    percentile = given.take_percentile()
    given.at_most_one(usage, cv, shape, percentile)
    if mean is None:
        raise given.fail(usage)
    if percentile is not None:
        shape = _gamma_shape(mean, *percentile)
    elif shape is None:
        shape = (cv if cv is not None else DEFAULT_CV) ** -2
    return given.done(Gamma(mean, shape), usage)


def _gamma_shape(mean: float, level: float, value: float) -> float:
    """Find the shape whose percentile is `value`: above its peak over shapes, the wider tail is meant."""
    from scipy.optimize import brentq

    def excess(log_shape: float) -> float:
        return float(Gamma(mean, math.exp(log_shape)).ppf(np.array([level]))[0]) - value

    grid = np.linspace(-4, 12, 161)
    excesses = [excess(x) for x in grid]
    peak = int(np.argmax(excesses))
    if excesses[peak] < 0 or excesses[-1] > 0:
        raise WorkloadError(f"no gamma law of mean {mean:g} has its {level:.4g} quantile at {value:g}")
    return math.exp(brentq(excess, grid[peak], grid[-1]))


def _zipf(given: _Given) -> Law:
    """P(k) in proportion to k^-exponent for k = 1 ... max; a bare mean is solved for the exponent."""
    usage = "zipf(exponent=1.2, max=2048) or zipf(mean=64, max=2048)"
    exponent, mean, top = given.take("exponent"), given.take("mean"), given.take("max")
    if top is None and mean is not None:
        top = 32 * mean
    if top is None or top < 2 or (exponent is None) == (mean is None):
        raise given.fail(usage)
    values = np.arange(1, int(top) + 1, dtype=np.float64)

    def law(a: float) -> Discrete:
        weights = values**-a
        return Discrete(values, np.cumsum(weights) / weights.sum())

    if exponent is None:
        from scipy.optimize import brentq

        assert mean is not None
        if not 1 < mean < (top + 1) / 2:
            raise WorkloadError(f"{given.text}: the mean must lie between 1 and half of max ({top:g})")
        exponent = float(brentq(lambda a: law(a).mean - mean, 0.0, 40.0))
    return given.done(law(exponent), usage)


def _geometric(given: _Given) -> Law:
    mean = given.take("mean")
    if mean is None or mean < 1:
        raise given.fail("geometric(4), with a mean of 1 or more")
    return given.done(Geometric(mean), "geometric(4)")


_FAMILIES: dict[str, Callable[[_Given], Law]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "gamma": _gamma,
    "zipf": _zipf,
    "geometric": _geometric,
}
FAMILIES = (*_FAMILIES, "mixture", "empirical")


def parse_law(text: str | None, family: str) -> Law:
    """Read a law; a bare number is the mean of `family`, nothing at all its default."""
    if family not in FAMILIES:
        raise unknown_name("distribution", family, FAMILIES)
    if text is None:
        if family in ("mixture", "empirical"):
            raise WorkloadError(f"--dist {family} needs the lengths in full, such as {_USAGE[family]}")
        mean = DEFAULT_MEDIAN * math.exp(DEFAULT_SIGMA**2 / 2) if family == "lognormal" else DEFAULT_MEDIAN
        return _law_of(Expression(text=family, name=family), float(mean))
    number = parse_number(text)
    if number is None:
        return _law_of(parse(text), None)
    if family in ("mixture", "empirical"):
        raise WorkloadError(f"a mean does not fix {family}: write it in full, such as {_USAGE[family]}")
    return _law_of(Expression(text=f"{family}({text})", name=family), number)


_USAGE = {
    "mixture": "mixture(0.7:lognormal(median=97, cv=0.5), 0.3:fixed(411))",
    "empirical": "empirical(min=1, p50=129, p90=424, p99=601, max=1000) or empirical(97:0.6, 411:0.4)",
}


def law_of_value(value: Value, text: str) -> Law:
    """Make a law of an argument: a law in full, or a number, which is then fixed."""
    if isinstance(value, Expression):
        return _law_of(value, None)
    if not (math.isfinite(value) and value >= 0):
        raise WorkloadError(f"{text}: {value:g} is not a length")
    return Fixed(value)


def _law_of(expression: Expression, default_mean: float | None) -> Law:
    if expression.name == "mixture":
        return _mixture(expression)
    if expression.name == "empirical":
        return _empirical(expression)
    if expression.name not in _FAMILIES:
        raise unknown_name("distribution", expression.name, FAMILIES)
    if expression.pairs:
        raise WorkloadError(f"{expression.text}: pairs a:b belong to mixture and empirical")
    given = _Given(expression, default_mean)
    if expression.name in ("uniform", "zipf"):
        return _FAMILIES[expression.name](given)
    low, high = given.take("min"), given.take("max")
    law = _FAMILIES[expression.name](given)
    if low is None and high is None and expression.name != "normal":
        return law
    if low is not None and high is not None and low > high:
        raise WorkloadError(f"{expression.text}: min lies above max")
    truncated = Truncated(law, low or 1.0, high or math.inf)
    below, above = truncated.levels
    if above - below < 1e-9:
        raise WorkloadError(f"{expression.text}: almost nothing of this law lies between min and max")
    return truncated


def _mixture(expression: Expression) -> Law:
    laws = [_law_of(law, None) for _, law in expression.pairs if isinstance(law, Expression)]
    weights = np.array([weight for weight, _ in expression.pairs])
    if not laws or len(laws) < len(weights) or expression.named or expression.plain or weights.min() <= 0:
        raise WorkloadError(f"{expression.text}: write {_USAGE['mixture']}")
    return Mixture(tuple((weights / weights.sum()).tolist()), tuple(laws))


def _empirical(expression: Expression) -> Law:
    if expression.pairs and not expression.named and not expression.plain:
        pairs = sorted(
            (value, weight) for value, weight in expression.pairs if not isinstance(weight, Expression)
        )
        values, weights = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        if len(values) == len(expression.pairs) and values.min() >= 1 and weights.min() > 0:
            return Discrete(values, np.cumsum(weights) / weights.sum())
    named = {"min": 0.0, "p0": 0.0, "max": 100.0, "p100": 100.0}
    points: dict[float, float] = {}
    for name, value in expression.numbers(expression.named).items():
        level = named.get(name, parse_number(name[1:]) if name.startswith("p") else None)
        if level is None or not 0 <= level <= 100:
            raise WorkloadError(
                f"{expression.text}: {name} is not min, max or a percentile; write {_USAGE['empirical']}"
            )
        points[level / 100] = value
    levels = np.array(sorted(points))
    values = np.array([points[level] for level in levels])
    spans = len(levels) >= 2 and levels[0] == 0 and levels[-1] == 1
    if not spans or values[0] < 1 or bool(np.any(np.diff(values) < 0)):
        raise WorkloadError(f"{expression.text}: write {_USAGE['empirical']}, ascending from min to max")
    return Quantiles(levels, values)


def sample_pairs(
    laws: tuple[Law, Law],
    rank_correlation: float,
    rngs: tuple[np.random.Generator, np.random.Generator],
    n: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw n prompt and output lengths, tied by Spearman's rank correlation through a Gaussian copula."""
    u, v = rngs[0].random(n), rngs[1].random(n)
    if rank_correlation:
        from scipy.special import ndtr, ndtri

        # Spearman's rho of a Gaussian copula with correlation r is 6/pi asin(r/2) (Kruskal 1958).
        r = 2 * math.sin(math.pi * rank_correlation / 6)
        v = np.asarray(ndtr(r * ndtri(u) + math.sqrt(1 - r * r) * ndtri(v)))
    return to_tokens(laws[0].ppf(u)), to_tokens(laws[1].ppf(v))
