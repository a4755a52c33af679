"""Was the process that was asked for the one that was sent? The arrivals that really left, tested.

What left is compared with the plan (exactly: rate, gap distribution, dependence), where a shift by a
millisecond is none: no queue tells. The plan, where it was drawn from a named renewal process, is held
against that process by statistical tests: one counts only where chance explains it in less than one run of a
million, and its effect can matter to a queue.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadgen.measure.columns import Columns, Floats

FAMILY_ALPHA = 1e-6  # a draw may be uneven by chance, and a seed is drawn the same every time
MIN_SHIFT_S = 0.001  # as late as any request may be
MIN_ARRIVALS = 50
MIN_BINS = 20
ARRIVALS_PER_BIN = 10
OTHER_SOURCES = ("trace", "clients", "sessions")  # arrivals that a process alone does not explain
Cdf = Callable[[Floats], Floats]

RENEWALS = ("poisson", "constant", "gamma", "weibull")


@dataclass(frozen=True, slots=True)
class ArrivalTest:
    """One test: `value` beside what was `expected`; p is None where the comparison with the plan is exact."""

    name: str
    value: float
    expected: float
    effect: float
    effect_limit: float
    p: float | None

    @property
    def has_failed(self) -> bool:
        """An effect beyond its limit that chance does not explain."""
        return abs(self.effect) > self.effect_limit and (self.p is None or self.p < FAMILY_ALPHA / 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What was asked for and what was sent: rate and coefficient of variation of the gaps, and the tests."""

    asked: str
    rate_per_s: float | None
    gap_cv: float | None
    tests: tuple[ArrivalTest, ...]

    def to_json(self) -> dict[str, Any]:
        tests = [{**asdict(test), "failed": test.has_failed} for test in self.tests]
        return {"asked": self.asked, "rate_per_s": self.rate_per_s, "gap_cv": self.gap_cv, "tests": tests}


def judge_arrivals(
    columns: Columns, workload: dict[str, Any], end_ns: float, *, is_open_loop: bool
) -> Arrivals:
    """Compare the sends with plan and process. workload: as in the plan's source; end_ns: where the plan
    ends.
    """
    sent = np.sort(columns.sent_ns[~np.isnan(columns.sent_ns)])
    asked = describe_asked(workload)
    if len(sent) < 2 or sent[-1] == sent[0]:
        return Arrivals(asked=asked, rate_per_s=None, gap_cv=None, tests=())
    gaps = np.diff(sent) / 1e9
    span_s = float(sent[-1] - sent[0]) / 1e9
    tests: list[ArrivalTest] = []
    if is_open_loop and len(columns) >= MIN_ARRIVALS:
        tests += compare_with_plan(sent, np.sort(columns.scheduled_ns))
        name, cv = parse_renewal(str(workload.get("arrival") or ""))
        is_renewal = name is not None and not any(workload.get(key) for key in OTHER_SOURCES)
        if name and is_renewal and workload.get("rate_per_s"):
            tests += compare_with_renewal(
                np.sort(columns.scheduled_ns), name, cv, float(workload["rate_per_s"]), end_ns
            )
    return Arrivals(
        asked=asked,
        rate_per_s=(len(sent) - 1) / span_s,
        gap_cv=float(gaps.std() / gaps.mean()),
        tests=tuple(tests),
    )


def describe_asked(workload: dict[str, Any]) -> str:
    """The process in words: `poisson at 20 /s`, or the trace's name."""
    if workload.get("trace"):
        return f"trace {str(workload['trace']).rsplit('/', 1)[-1]}"
    kind = next((key for key in ("clients", "sessions") if workload.get(key)), "")
    name = str(workload.get("arrival") or "a plan") + (f" ({kind})" if kind else "")
    rate = workload.get("rate_per_s")
    return f"{name} at {rate:g} /s" if rate else name


def parse_renewal(expression: str) -> tuple[str | None, float]:
    """Name and gap CV of a renewal process; None for one whose rate moves, or that is not known here."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*(?:cv\s*=\s*)?([0-9.]+)\s*\))?\s*", expression)
    if match is None or match[1] not in RENEWALS or (match[1] in ("gamma", "weibull")) != bool(match[2]):
        return None, 0.0
    return match[1], {"poisson": 1.0, "constant": 0.0}.get(match[1], float(match[2] or 0))


def compare_with_plan(sent_ns: Floats, scheduled_ns: Floats) -> list[ArrivalTest]:
    """What left beside what was due. Exact, so that only the size of the difference counts."""
    planned = np.diff(scheduled_ns) / 1e9
    gaps = np.diff(sent_ns) / 1e9
    if planned.sum() == 0:  # all due at once: nothing to compare with
        return []
    rate = (len(sent_ns) - 1) / gaps.sum()
    planned_rate = (len(scheduled_ns) - 1) / planned.sum()
    scale = max(float(planned.var()), float(planned.mean()) ** 2, MIN_SHIFT_S**2)
    lag1, planned_lag1 = _lag1_covariance(gaps) / scale, _lag1_covariance(planned) / scale
    return [
        ArrivalTest(
            "rate_vs_plan", float(rate), float(planned_rate), float(rate / planned_rate - 1), 0.02, None
        ),
        ArrivalTest(
            "gaps_vs_plan",
            float(gaps.std() / gaps.mean()),
            float(planned.std() / planned.mean()),
            _tolerant_distance(gaps, _empirical_cdf(planned), max(0.05 * float(planned.mean()), MIN_SHIFT_S)),
            0.1,
            None,
        ),
        ArrivalTest("dependence_vs_plan", lag1, planned_lag1, lag1 - planned_lag1, 0.15, None),
    ]


def compare_with_renewal(
    due_ns: Floats, name: str, cv: float, rate_per_s: float, end_ns: float
) -> list[ArrivalTest]:
    """Rate, gap distribution, dependence (of ranks: gaps of a bursty process have no normal covariance) and
    (Poisson) dispersion of counts against the process asked for.
    """
    from scipy import special, stats

    n, gaps = len(due_ns), np.diff(due_ns) / 1e9
    expected_n = rate_per_s * end_ns / 1e9
    spread = max(cv * np.sqrt(expected_n), 1.0)
    tests = [
        ArrivalTest(
            "rate",
            n / (end_ns / 1e9),
            rate_per_s,
            n / expected_n - 1,
            0.02,
            float(2 * special.ndtr(-abs(n - expected_n) / spread)),
        )
    ]
    if name == "constant":
        off = float(np.median(np.abs(gaps * rate_per_s - 1)))
        return [*tests, ArrivalTest("gaps", off, 0.0, off, 0.1, None)]
    distance = _tolerant_distance(gaps * rate_per_s, _gap_cdf(name, cv), 0.05)
    ranks = stats.rankdata(gaps)
    lag1 = _lag1_covariance(ranks) / float(ranks.var())
    tests += [
        ArrivalTest(
            "gaps",
            float(gaps.std() / gaps.mean()),
            cv,
            distance,
            0.1,
            float(special.kolmogorov(distance * np.sqrt(len(gaps)))),
        ),
        ArrivalTest(
            "dependence", lag1, 0.0, lag1, 0.15, float(2 * special.ndtr(-abs(lag1) * np.sqrt(len(gaps))))
        ),
    ]
    num_bins = n // ARRIVALS_PER_BIN
    if name == "poisson" and num_bins >= MIN_BINS:
        counts, _ = np.histogram(due_ns, bins=num_bins, range=(0, end_ns))
        index = float(counts.var(ddof=1) / counts.mean())
        below = float(special.chdtr(num_bins - 1, index * (num_bins - 1)))
        p = 2 * min(below, 1 - below)
        tests.append(ArrivalTest("dispersion", index, 1.0, index - 1, 0.3, p))
    return tests


def _gap_cdf(name: str, cv: float) -> Cdf:
    """The distribution function of gaps of mean 1."""
    from math import gamma

    from scipy import optimize, special

    def positive(x: Floats) -> Floats:
        return np.maximum(x, 0.0)

    if name == "poisson":
        return lambda x: -np.expm1(-positive(x))
    if name == "gamma":
        return lambda x: np.asarray(special.gammainc(cv**-2, positive(x) * cv**-2))
    shape = optimize.brentq(lambda k: gamma(1 + 2 / k) / gamma(1 + 1 / k) ** 2 - 1 - cv**2, 0.1, 50)
    return lambda x: -np.expm1(-((positive(x) * gamma(1 + 1 / shape)) ** shape))


def _lag1_covariance(gaps: Floats) -> float:
    """How much each gap goes with the next, in squared seconds."""
    centred = gaps - gaps.mean()
    return float(centred[1:] @ centred[:-1]) / len(gaps)


def _empirical_cdf(values: Floats) -> Cdf:
    ordered = np.sort(values)
    return lambda x: np.searchsorted(ordered, x, side="right") / len(ordered)


def _tolerant_distance(gaps: Floats, cdf: Cdf, tolerance: float) -> float:
    """Kolmogorov-Smirnov distance of gaps to a distribution, where a shift by less than `tolerance` is none.

    A few microseconds of jitter turn a constant schedule, or the many short gaps of a bursty one, into
    another distribution by the letter; to a queue they are the same.
    """
    ordered = np.sort(gaps)
    n = len(ordered)
    above = np.arange(1, n + 1) / n - cdf(ordered + tolerance)
    below = cdf(ordered - tolerance) - np.arange(n) / n
    return float(max(above.max(), below.max(), 0.0))
