"""Quantiles, dependence, steady state and intervals: against numpy, scipy, brute force and by coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadgen.stats.dependence import autocorrelation, autocorrelation_time
from loadgen.stats.intervals import Pool, independent_values, quantile_interval
from loadgen.stats.moments import moments
from loadgen.stats.quantile import (
    interpolated_quantiles,
    quantile,
    quantiles,
    rank,
    weighted_quantiles,
)
from loadgen.stats.steady import mser5_truncation

Floats = NDArray[np.float64]


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200),
    st.sampled_from([0.0, 0.01, 0.07, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0]),
)
def test_quantile_is_numpys_inverted_cdf(values: list[float], q: float) -> None:
    array = np.array(values)
    assert quantile(array, q) == np.quantile(
        array, round(q * len(values), 9) / len(values), method="inverted_cdf"
    )


def test_ranks_do_not_suffer_from_binary_fractions() -> None:
    assert [rank(100, q) for q in (0.07, 0.29, 0.57, 0.99, 0.999)] == [7, 29, 57, 99, 100]
    assert rank(1_000_000_000, 0.999) == 999_000_000


def test_quantiles_may_be_infinite() -> None:
    assert quantiles(np.array([1.0, math.inf, 2.0]), [0.5, 0.99]) == [2.0, math.inf]


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 4)), min_size=1, max_size=50), st.floats(0.01, 1))
def test_weighted_quantiles_are_those_of_repeated_values(pairs: list[tuple[float, int]], q: float) -> None:
    values, weights = np.array([v for v, _ in pairs]), np.array([w for _, w in pairs])
    if weights.sum() == 0:
        return
    assert weighted_quantiles(values, weights, [q]) == [quantile(np.repeat(values, weights), q)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=100), st.floats(0, 1))
def test_interpolated_quantiles_are_numpys_default(values: list[float], q: float) -> None:
    array = np.array(values)
    assert interpolated_quantiles(array.copy(), [q])[0] == pytest.approx(np.quantile(array, q), abs=1e-6)


def test_moments_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.stats.moments.BLOCK", 7)
    rng = np.random.default_rng(1)
    values, weights = rng.normal(5, 1, 100), rng.integers(0, 5, 100)
    assert moments(values) == pytest.approx((100, values.mean(), 100 * values.var()))
    repeated = np.repeat(values, weights)
    expected = len(repeated), repeated.mean(), len(repeated) * repeated.var()
    assert moments(values, weights) == pytest.approx(expected)


def autoregressive(rng: np.random.Generator, n: int, rho: float) -> Floats:
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -rho], rng.normal(size=n + 1000))[1000:])


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_autocorrelation_time_of_an_autoregression(rho: float) -> None:
    rng = np.random.default_rng(5)
    taus = [autocorrelation_time(autoregressive(rng, 20_000, rho)) for _ in range(10)]
    assert np.mean(taus) == pytest.approx((1 + rho) / (1 - rho), rel=0.1)


def test_autocorrelation_against_the_definition() -> None:
    series = np.random.default_rng(6).normal(size=50)
    centred = series - series.mean()
    direct = [float(centred[: 50 - k] @ centred[k:]) / float(centred @ centred) for k in range(50)]
    assert autocorrelation(series) == pytest.approx(np.array(direct))


def test_a_constant_series_has_no_autocorrelation() -> None:
    assert autocorrelation_time(np.full(100, 0.3)) == 1
    assert autocorrelation_time(np.zeros(1)) == 1


def brute_force_mser(series: Floats) -> int:
    k = len(series) // 5
    batches = series[: 5 * k].reshape(k, 5).mean(axis=1)
    rests = [batches[cut:] for cut in range(k // 2 + 1)]
    return int(5 * np.argmin([np.square(rest - rest.mean()).sum() / len(rest) ** 2 for rest in rests]))


@pytest.mark.parametrize("n", [20, 101, 500])
def test_mser_against_brute_force(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(20):
        series = rng.exponential(size=n) + 5 * np.exp(-np.arange(n) / 20)
        assert mser5_truncation(series).num_dropped == brute_force_mser(series)


def test_mser_cuts_a_planted_warm_up() -> None:
    rng = np.random.default_rng(7)
    series = rng.normal(1, 0.2, 600)
    series[:80] += 3
    found = mser5_truncation(series)
    assert found.num_dropped == 80
    assert found.reached_steady_state


def test_mser_says_so_where_nothing_is_steady() -> None:
    assert not mser5_truncation(np.arange(200.0)).reached_steady_state
    assert not mser5_truncation(np.arange(19.0)).reached_steady_state


def test_independent_requests_are_worth_their_number() -> None:
    values = np.random.default_rng(8).exponential(size=5000)
    assert independent_values(Pool.of_requests(values), 0.9) == pytest.approx(5000, rel=0.1)


def test_values_that_a_request_repeats_tell_no_more_than_one() -> None:
    values = np.random.default_rng(9).exponential(size=2000)
    pool = Pool(values=np.repeat(values, 20), offsets=np.arange(2001) * 20)
    assert independent_values(pool, 0.9) == pytest.approx(2000, rel=0.15)


def test_values_that_are_independent_inside_a_request_all_count() -> None:
    values = np.random.default_rng(9).exponential(size=40_000)
    pool = Pool(values=values, offsets=np.arange(2001) * 20)
    assert independent_values(pool, 0.9) == pytest.approx(40_000, rel=0.15)


def test_weights_are_repetitions_for_intervals_too() -> None:
    rng = np.random.default_rng(10)
    values, weights = rng.exponential(size=20_000), rng.integers(1, 4, 20_000)
    ends = np.concatenate([[0], np.cumsum(weights)])
    weighted = Pool(values=values, offsets=np.arange(0, 20_001, 10), weights=weights)
    repeated = Pool(values=np.repeat(values, weights), offsets=ends[::10])
    one, other = quantile_interval(weighted, 0.9), quantile_interval(repeated, 0.9)
    assert one.bounds == pytest.approx(other.bounds)
    assert one.n_eff == pytest.approx(other.n_eff)


def fifo(rng: np.random.Generator, n: int, load: float) -> Floats:
    """Time in system at a FIFO server: Poisson arrivals, lognormal sizes (Lindley, vectorised)."""
    sizes = rng.lognormal(-0.32, 0.8, n)
    steps = np.concatenate([[0.0], sizes[:-1]]) - rng.exponential(1 / load, n)
    walk = np.cumsum(steps)
    return np.asarray(walk - np.minimum.accumulate(np.minimum(walk, 0)) + sizes)


@pytest.mark.parametrize(("load", "n", "q"), [(0.3, 5_000, 0.99), (0.5, 20_000, 0.99), (0.7, 2_000, 0.5)])
def test_intervals_that_are_given_cover_the_truth(load: float, n: int, q: float) -> None:
    rng = np.random.default_rng(11)
    series = fifo(rng, 1_000_000, load)
    truth = quantile(series, q)
    found = [
        quantile_interval(Pool.of_requests(part), q) for part in np.array_split(series, 1_000_000 // n)[:120]
    ]
    given = [interval.bounds for interval in found if interval.bounds is not None]
    covered = np.mean([low <= truth <= high for low, high in given])
    assert len(given) >= 20
    assert 0.88 <= covered <= 1.0  # 95 % wanted; a mean of 120 trials strays by 4 %


def gaps_of_streams(rng: np.random.Generator, num_requests: int) -> Pool:
    """Token gaps under continuous batching: requests that run together share every step, slow ones too."""
    num_steps = num_requests * 4
    pace = np.exp(0.2 * autoregressive(rng, num_steps, 0.99) / np.sqrt(1 / (1 - 0.99**2)))
    steps = 0.01 * pace * rng.gamma(20, 1 / 20, num_steps) * np.where(rng.random(num_steps) < 0.02, 4.0, 1.0)
    starts = np.sort(rng.integers(0, num_steps - 130, num_requests))
    lengths = np.minimum(1 + rng.geometric(1 / 32, num_requests), 128)
    values = np.concatenate([steps[a : a + n] for a, n in zip(starts, lengths, strict=True)])
    return Pool(values=values, offsets=np.concatenate([[0], np.cumsum(lengths)]))


def test_intervals_of_pooled_gaps_cover_the_truth() -> None:
    rng = np.random.default_rng(13)
    truth = gaps_of_streams(rng, 200_000).quantiles([0.99])[0]
    found = [quantile_interval(gaps_of_streams(rng, 1500), 0.99) for _ in range(100)]
    given = [interval.bounds for interval in found if interval.bounds is not None]
    assert len(given) >= 60
    assert 0.88 <= np.mean([low <= truth <= high for low, high in given]) <= 1.0


def test_an_interval_is_withheld_where_the_tail_is_too_thin() -> None:
    short = fifo(np.random.default_rng(12), 600, 0.7)
    interval = quantile_interval(Pool.of_requests(short), 0.99)
    assert interval.bounds is None
    assert interval.num_tail_events < 10
    assert quantile_interval(Pool.of_requests(np.array([1.0])), 0.5).bounds is None
