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


DEFAULT_SIGMA = math.log(DEFAULT_P99 / DEFAULT_MEDIAN) / 2.3263478740408408
DEFAULT_CV = math.sqrt(math.expm1(DEFAULT_SIGMA**2))
USAGE = {
    "fixed": "fixed(64)",
    "uniform": "uniform(min=16, max=64) or uniform(40)",
    "normal": "normal(mean=512, sd=128), or cv= or p99= in place of sd=",
    "lognormal": "lognormal(median=32, p99=128), (mean=, p99=), (median=, sigma=), (mean=, cv=) or a mean",
    "gamma": "gamma(mean=512, cv=0.8), or p99= or shape= in place of cv=",
    "zipf": "zipf(exponent=1.2, max=2048) or zipf(mean=64, max=2048)",
    "geometric": "geometric(4)",
    "mixture": "mixture(0.7:lognormal(median=97, cv=0.5), 0.3:fixed(411))",
    "empirical": "empirical(min=1, p50=129, p90=424, p99=601, max=1000) or empirical(97:0.6, 411:0.4)",
}
Given = dict[str, float]
"""The arguments of a law: a family pops those that it uses; one left over, or a KeyError, is an error."""


def _given(expression: Expression, default_mean: float | None) -> Given:
    given = dict(expression.numbers(expression.named))
    if len(expression.plain) == 1 and not isinstance(expression.plain[0], Expression):
        given["mean"] = expression.plain[0]
    elif expression.plain:
        raise WorkloadError(f"{expression.text}: one bare number, the mean, can stand here")
    if default_mean is not None:
        given.setdefault("mean", default_mean)
    for name, value in given.items():
        if not (math.isfinite(value) and value > 0):
            raise WorkloadError(f"{expression.text}: {name} must be above 0, not {value:g}")
    return given


def _pop_percentile(given: Given) -> tuple[float, float] | None:
    """Take `p99=128` as (0.99, 128); the first where there are several."""
    for name in given:
        level = parse_number(name[1:]) if name.startswith("p") else None
        if level is not None and 0 < level < 100:
            return level / 100, given.pop(name)
    return None


def _fixed(given: Given) -> Law:
    return Discrete.of_one(given.pop("mean"))


def _uniform(given: Given) -> Law:
    if "mean" in given:
        return Uniform(1.0, 2 * given.pop("mean") - 1)
    low, high = given.pop("min"), given.pop("max")
    if high < low:
        raise WorkloadError("min lies above max")
    return Uniform(low, high)


def _normal(given: Given) -> Law:
    """Cut off below 1 token (or `min`); the mean that results is a little above the one written."""
    mean = given.pop("mean")
    if percentile := _pop_percentile(given):
        sd = (percentile[1] - mean) / (_z(percentile[0]) or -math.inf)
    else:
        sd = given.pop("sd") if "sd" in given else mean * given.pop("cv", DEFAULT_CV)
    if sd <= 0:
        raise WorkloadError("the percentile lies on the wrong side of the mean")
    return Normal(mean, sd)


def _lognormal(given: Given) -> Law:
    """ln p = ln median + z sigma and ln mean = ln median + sigma^2 / 2, solved for what is missing."""
    sigma = given.pop("sigma", None)
    if sigma is None and "cv" in given:
        sigma = math.sqrt(math.log1p(given.pop("cv") ** 2))
    has_centre = "mean" in given or "median" in given
    percentile = _pop_percentile(given) if sigma is None or not has_centre else None
    if percentile is not None:
        z, value = _z(percentile[0]), percentile[1]
        if sigma is not None:
            return Lognormal(value / math.exp(z * sigma), sigma)
        if "median" in given:
            sigma = math.log(value / given["median"]) / z if z else 0.0
        else:
            square = z * z - 2 * math.log(value / given["mean"])
            if square < 0:
                most = given["mean"] * math.exp(z * z / 2)
                raise WorkloadError(f"no lognormal of this mean has this percentile over {most:.4g}")
            sigma = z - math.sqrt(square)
    elif sigma is None and {"mean", "median"} <= given.keys():
        ratio = given.pop("mean") / given["median"]
        sigma = math.sqrt(2 * math.log(ratio)) if ratio > 1 else 0.0
    sigma = DEFAULT_SIGMA if sigma is None else sigma
    if sigma <= 0:
        raise WorkloadError("the percentile or mean must lie above the median")
    if "median" in given:
        return Lognormal(given.pop("median"), sigma)
    return Lognormal(given.pop("mean") * math.exp(-(sigma**2) / 2), sigma)


def _gamma(given: Given) -> Law:
    mean = given.pop("mean")
    if percentile := _pop_percentile(given):
        return Gamma(mean, _gamma_shape(mean, *percentile))
    return Gamma(mean, given.pop("shape") if "shape" in given else given.pop("cv", DEFAULT_CV) ** -2)


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


def _zipf(given: Given) -> Law:
    """P(k) in proportion to k^-exponent for k = 1 ... max; a bare mean is solved for the exponent."""
    mean = given.pop("mean", None)
    top = given.pop("max") if mean is None else given.pop("max", 32 * mean)
    values = np.arange(1, int(top) + 1, dtype=np.float64)

    def law(a: float) -> Discrete:
        weights = values**-a
        return Discrete(values, np.cumsum(weights) / weights.sum())

    if mean is None:
        return law(given.pop("exponent"))
    from scipy.optimize import brentq

    if not 1 < mean < (top + 1) / 2:
        raise WorkloadError(f"the mean must lie between 1 and half of max ({top:g})")
    return law(float(brentq(lambda a: law(a).mean - mean, 0.0, 40.0)))


def _geometric(given: Given) -> Law:
    mean = given.pop("mean")
    if mean < 1:
        raise WorkloadError(f"the mean must be 1 or more, not {mean:g}")
    return Geometric(mean)


_FAMILIES: dict[str, Callable[[Given], Law]] = {
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
            raise WorkloadError(f"--dist {family} needs the lengths in full, such as {USAGE[family]}")
        mean = DEFAULT_MEDIAN * math.exp(DEFAULT_SIGMA**2 / 2) if family == "lognormal" else DEFAULT_MEDIAN
        return _law_of(Expression(text=family, name=family), float(mean))
    number = parse_number(text)
    if number is None:
        return _law_of(parse(text), None)
    if family in ("mixture", "empirical"):
        raise WorkloadError(f"a mean does not fix {family}: write it in full, such as {USAGE[family]}")
    return _law_of(Expression(text=f"{family}({text})", name=family), number)


def law_of_value(value: Value, text: str) -> Law:
    """Make a law of an argument: a law in full, or a number, which is then fixed."""
    if isinstance(value, Expression):
        return _law_of(value, None)
    if not (math.isfinite(value) and value >= 0):
        raise WorkloadError(f"{text}: {value:g} is not a length")
    return Discrete.of_one(value)


def _law_of(expression: Expression, default_mean: float | None) -> Law:
    if expression.name == "mixture":
        return _mixture(expression)
    if expression.name == "empirical":
        return _empirical(expression)
    if expression.name not in _FAMILIES:
        raise unknown_name("distribution", expression.name, FAMILIES)
    if expression.pairs:
        raise WorkloadError(f"{expression.text}: pairs a:b belong to mixture and empirical")
    given = _given(expression, default_mean)
    has_own_limits = expression.name in ("uniform", "zipf")
    low, high = (None, None) if has_own_limits else (given.pop("min", None), given.pop("max", None))
    usage = USAGE[expression.name]
    try:
        law = _FAMILIES[expression.name](given)
    except KeyError:
        raise WorkloadError(f"{expression.text}: too little is given; write {usage}") from None
    except WorkloadError as exc:
        raise WorkloadError(f"{expression.text}: {exc}") from exc
    if given:
        raise WorkloadError(
            f"{expression.text}: {', '.join(given)} is not needed or not known; write {usage}"
        )
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
        raise WorkloadError(f"{expression.text}: write {USAGE['mixture']}")
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
                f"{expression.text}: {name} is not min, max or a percentile; write {USAGE['empirical']}"
            )
        points[level / 100] = value
    levels = np.array(sorted(points))
    values = np.array([points[level] for level in levels])
    spans = len(levels) >= 2 and levels[0] == 0 and levels[-1] == 1
    if not spans or values[0] < 1 or bool(np.any(np.diff(values) < 0)):
        raise WorkloadError(f"{expression.text}: write {USAGE['empirical']}, ascending from min to max")
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
