"""Certificates: MLPerf's published numbers, scipy, and how often a false claim is certified."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.stats.certify import certify, holds, values_needed


@pytest.mark.parametrize(("misses", "needed"), [(0, 459), (1, 662), (2, 838), (10, 2010)])
def test_mlperf_numbers_at_99_percent(misses: int, needed: int) -> None:
    assert values_needed(misses, 0.99, 0.99) == needed
    assert holds(needed, misses, 0.99, 0.99)
    assert not holds(needed - 1, misses, 0.99, 0.99)


def test_agrees_with_the_incomplete_beta_of_the_rules() -> None:
    from scipy.special import betainc

    for n, t in [(500, 0), (900, 2), (3000, 20), (300, 1)]:
        assert holds(n, t, 0.99, 0.99) == (betainc(n - t, t + 1, 0.99) <= 0.01)


def test_a_false_claim_is_rarely_certified() -> None:
    rng = np.random.default_rng(1)
    n = 1000
    # the true share of misses is just above the 1 % that is claimed
    certified = [certify(n, int(t), 0.99, n_eff=n).is_certified for t in rng.binomial(n, 0.0101, 20_000)]
    assert np.mean(certified) <= 0.013


def test_dependence_costs_requests() -> None:
    independent = certify(2000, 5, 0.99, n_eff=2000)
    dependent = certify(2000, 5, 0.99, n_eff=200)
    assert independent.is_certified
    assert not dependent.is_certified
    assert (dependent.num_values, dependent.num_misses) == (200, 1)
    assert dependent.num_missing == 662 - 200
    assert independent.num_missing == 0


def test_nothing_certifies_nothing() -> None:
    empty = certify(0, 0, 0.99, n_eff=0)
    assert not empty.is_certified
    assert empty.num_missing == 459
    assert not certify(100, 100, 0.5, n_eff=100).is_certified
