"""Paired comparison: against scipy, the published plans of replicates, and by false alarms and power on a
queue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.stats.paired import Change, compare_paired, holm, plan_replicates, sign_flip_p
from loadgen.stats.quantile import quantile

Floats = NDArray[np.float64]


def test_interval_and_p_agree_with_scipy() -> None:
    from scipy import stats

    rng = np.random.default_rng(1)
    a, b = rng.lognormal(0, 0.1, 9), rng.lognormal(0.05, 0.1, 9)
    found = compare_paired(a, b, margin=0.05)
    reference: Any = stats.ttest_rel(np.log(b), np.log(a)).confidence_interval()
    assert found.interval == pytest.approx((np.exp(reference.low), np.exp(reference.high)))
    differences = np.log(b) - np.log(a)
    exact = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=10_000)
    assert found.p == pytest.approx(exact.pvalue)


def test_many_replicates_are_flipped_at_random() -> None:
    d = np.random.default_rng(2).normal(0.3, 1, 40)
    from scipy import stats

    assert sign_flip_p(d) == pytest.approx(stats.ttest_1samp(d, 0).pvalue, rel=0.25)


def test_the_smallest_p_is_two_over_two_to_the_r() -> None:
    assert sign_flip_p(np.full(6, 0.1)) == pytest.approx(2 / 2**6)
    assert sign_flip_p(np.zeros(6)) == 1


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.20, 1.22, 1.18, 1.21, 1.19, 1.20], Change.WORSE),
        ([0.80, 0.82, 0.78, 0.81, 0.79, 0.80], Change.BETTER),
        ([1.00, 1.01, 0.99, 1.00, 1.01, 0.99], Change.EQUIVALENT),
        ([1.06, 1.01, 1.12, 0.98, 1.08, 1.03], Change.UNDECIDED),
    ],
)
def test_decisions_against_a_margin_of_5_percent(ratios: list[float], expected: Change) -> None:
    a = np.full(6, 0.1)
    assert compare_paired(a, a * np.array(ratios), margin=0.05).change == expected


def test_a_difference_below_the_floor_does_not_matter() -> None:
    a = np.full(6, 0.001)
    b = a * np.array([1.20, 1.22, 1.18, 1.21, 1.19, 1.20])
    assert compare_paired(a, b, margin=0.05, floor=0.0005).change == Change.EQUIVALENT


def test_what_cannot_be_compared_is_refused() -> None:
    one, two = np.ones(1), np.ones(2)
    with pytest.raises(ValueError, match="two or more pairs"):
        compare_paired(one, one, margin=0.05)
    with pytest.raises(ValueError, match="two or more pairs"):
        compare_paired(one, two, margin=0.05)
    with pytest.raises(ValueError, match="positive and finite"):
        compare_paired(two, np.array([1.0, np.inf]), margin=0.05)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("spread", "change", "expected"),
    [(0.02, 0.05, 5), (0.05, 0.05, 14), (0.05, 0.10, 6), (0.07, 0.05, 24), (0.07, 0.10, 8), (0.10, 0.10, 14)],
)
def test_planned_replicates(spread: float, change: float, expected: int) -> None:
    assert abs(plan_replicates(spread, change) - expected) <= 1
    assert plan_replicates(0.0, 0.05) == 2


def p99_of_queue(trace: tuple[Floats, Floats], noise: Floats) -> float:
    """p99 of the time in system of a FIFO server on a recorded trace, with service noise of its own."""
    gaps, sizes = trace
    service = sizes * noise
    walk = np.cumsum(np.concatenate([[0.0], service[:-1]]) - gaps)
    return quantile(walk - np.minimum.accumulate(np.minimum(walk, 0)) + service, 0.99)


def compare_arms(rng: np.random.Generator, slowdown: float) -> tuple[Floats, Floats]:
    a: list[float] = []
    b: list[float] = []
    for _ in range(8):
        trace = rng.exponential(1 / 0.7, 3000), rng.lognormal(-0.32, 0.8, 3000)
        for arm, factor in ((a, 1.0), (b, slowdown)):
            noise = factor * rng.lognormal(-0.005, 0.1, 3000)
            arm.append(p99_of_queue(trace, noise))
    return np.array(a), np.array(b)


def test_no_change_is_rarely_called_one() -> None:
    rng = np.random.default_rng(3)
    alarms = sum(compare_paired(*compare_arms(rng, 1.0), margin=0.0).p <= 0.05 for _ in range(200))
    assert alarms <= 18


def test_a_step_that_is_5_percent_slower_is_found() -> None:
    rng = np.random.default_rng(4)
    found = [compare_paired(*compare_arms(rng, 1.05), margin=0.0) for _ in range(50)]
    assert sum(result.change == Change.WORSE for result in found) >= 45
