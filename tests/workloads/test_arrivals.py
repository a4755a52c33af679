"""Arrival processes against theory, over many seeds: rate, burstiness, gap law, stationarity, time change."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from workloads import WorkloadError
from workloads.arrivals import ARRIVALS, Extent, parse_arrival, weibull_shape
from workloads.rates import RateCurve
from workloads.streams import Streams

RATE = 40.0


def sample_s(
    process: str, seed: int, *, rate: float | None = RATE, duration_s: float = 50, exact: bool = False
) -> NDArray[np.float64]:
    extent = Extent(rate_per_s=rate, duration_s=duration_s, exact_count=exact)
    return parse_arrival(process).sample(Streams(seed), extent) / 1e9


def counts(process: str, seeds: range, **more: float | None) -> NDArray[np.int64]:
    return np.array([len(sample_s(process, seed, **more)) for seed in seeds])  # type: ignore[arg-type]


def gaps_of(process: str, seeds: range) -> NDArray[np.float64]:
    return np.concatenate([np.diff(sample_s(process, seed)) for seed in seeds])


@pytest.mark.parametrize(
    ("process", "cv"),
    [("poisson", 1), ("constant", 0), ("gamma(cv=0.5)", 0.5), ("gamma(cv=3)", 3), ("weibull(cv=2)", 2)],
)
def test_renewal_processes_have_the_rate_and_the_cv(process: str, cv: float) -> None:
    n = counts(process, range(150))
    # A stationary renewal process has count variance near mean * cv^2.
    error = 4.5 * math.sqrt(max(cv, 0.05) ** 2 * RATE * 50 / 150)
    assert n.mean() == pytest.approx(RATE * 50, abs=error)
    gaps = gaps_of(process, range(30))
    # Within a window the longest gaps are seen a little too seldom: a few percent at cv 3.
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.005 + 0.07 * cv)


@pytest.mark.parametrize(
    ("process", "law"),
    [
        ("poisson", stats.expon(scale=1 / RATE)),
        ("gamma(cv=2)", stats.gamma(0.25, scale=4 / RATE)),
        (
            "weibull(cv=2)",
            stats.weibull_min(weibull_shape(2), scale=1 / RATE / math.gamma(1 + 1 / weibull_shape(2))),
        ),
    ],
)
def test_gaps_follow_the_law(process: str, law: stats.distributions.rv_frozen) -> None:
    extent = Extent(rate_per_s=RATE, duration_s=1, num_requests=20_000)
    gaps = np.diff(parse_arrival(process).sample(Streams(7), extent)) / 1e9
    assert stats.kstest(law.cdf(gaps), "uniform").statistic < 1.95 / math.sqrt(len(gaps))


@pytest.mark.parametrize("process", ["gamma(cv=4)", "weibull(cv=3)", "constant", "onoff(on=1s, off=2s)"])
def test_the_start_is_no_different_from_any_later_time(process: str) -> None:
    """The first gap is the stationary residual: a short window sees the mean rate, on average."""
    n = counts(process, range(2500), duration_s=0.25)
    assert n.mean() == pytest.approx(RATE * 0.25, abs=4.5 * max(n.std(), 0.5) / math.sqrt(2500))


def test_poisson_counts_are_poisson() -> None:
    n = counts("poisson", range(600), duration_s=5)
    # Dispersion is chi-square over its degrees of freedom; two-sided at 0.1 %.
    dispersion = n.var(ddof=1) / n.mean()
    low, high = stats.chi2(599).ppf([0.0005, 0.9995]) / 599
    assert low < dispersion < high


def test_onoff_reaches_the_burstiness_of_production_code_traffic() -> None:
    """Azure's code trace has on-periods of about 24 s and pauses of 54 s: a CV of 10 and more."""
    gaps = np.concatenate(
        [np.diff(sample_s("onoff(on=24s, off=54s)", seed, rate=2.57, duration_s=3400)) for seed in range(20)]
    )
    assert 9 < gaps.std() / gaps.mean() < 18


def test_mmpp_keeps_its_long_run_rates() -> None:
    n = counts("mmpp(5:3s, 50:1s)", range(400), rate=None, duration_s=20)
    assert n.mean() / 20 == pytest.approx((5 * 3 + 50) / 4, rel=0.06)
    assert n.var() / n.mean() > 5


@pytest.mark.parametrize(
    ("process", "rate_at"),
    [
        ("ramp(from=10, to=70)", lambda t: 10 + t * 60 / 50),
        ("steps(0s:10, 20s:60)", lambda t: 10 if t < 20 else 60),
        ("piecewise(0s:10, 25s:70, 50s:10)", lambda t: 10 + 60 * (1 - abs(t - 25) / 25)),
    ],
)
def test_moving_rates_are_followed(process: str, rate_at: object) -> None:
    assert callable(rate_at)
    times = np.concatenate([sample_s(process, seed, rate=None) for seed in range(100)])
    observed, edges = np.histogram(times, bins=10, range=(0, 50))
    middles = (np.arange(50) + 0.5) / 10
    expected = np.array([500 * float(np.mean([rate_at(a + t) for t in middles])) for a in edges[:-1]])
    assert np.abs((observed - expected) / np.sqrt(expected)).max() < 4.5


def test_a_rate_asked_for_scales_the_curve_to_that_mean() -> None:
    assert counts("ramp(from=1, to=3)", range(100)).mean() == pytest.approx(RATE * 50, rel=0.01)
    assert counts("diurnal(peak_to_trough=3, period=50s)", range(100)).mean() == pytest.approx(2000, rel=0.01)


def test_time_change_inverts_its_integral() -> None:
    curve = RateCurve(np.array([0.0, 10, 20, 30]), np.array([5.0, 20, 0]), np.array([20.0, 20, 8]))
    times = np.array([0.5, 9.0, 10.0, 17.0, 23.0, 29.9, 35.0])
    mass = np.array([curve.mass_until(t) for t in times])
    np.testing.assert_allclose(curve.times_of(mass), times, rtol=1e-9)


@pytest.mark.parametrize("process", ["poisson", "gamma(cv=3)", "ramp(from=1, to=3)"])
def test_exact_count_pins_the_number_and_nothing_else_does(process: str) -> None:
    assert {len(sample_s(process, seed, exact=True)) for seed in range(20)} == {2000}
    assert len({len(sample_s(process, seed)) for seed in range(20)}) > 5


def test_a_longer_run_begins_as_the_shorter_one() -> None:
    for process in ("poisson", "gamma(cv=2)", "weibull(cv=2)", "onoff(on=2s,off=1s)", "mmpp(1:2s,9:1s)"):
        short, long = sample_s(process, 3, duration_s=20), sample_s(process, 3, duration_s=50)
        np.testing.assert_array_equal(short, long[: len(short)])


def test_a_number_of_requests_is_met_by_every_process() -> None:
    for process in ("poisson", "constant", "onoff(on=1s,off=3s)", "mmpp(1:2s,9:1s)", "ramp(from=1,to=2)"):
        extent = Extent(rate_per_s=RATE, duration_s=5, num_requests=777)
        assert len(parse_arrival(process).sample(Streams(1), extent)) == 777


def test_a_rate_that_ends_at_zero_cannot_meet_a_number() -> None:
    extent = Extent(rate_per_s=None, duration_s=10, num_requests=1000)
    with pytest.raises(WorkloadError, match="falls to 0"):
        parse_arrival("ramp(from=10, to=0)").sample(Streams(1), extent)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("posson", "known: at-once, constant, diurnal, gamma"),
        ("gamma", "gamma\\(cv=2\\)"),
        ("gamma(cv=-1)", "between 0.02 and 50"),
        ("gamma(k=2)", "unknown argument 'k'"),
        ("poisson(cv=2)", "unknown argument 'cv'"),
        ("poisson(2)", "arguments are named"),
        ("ramp(from=1)", "ramp\\(from=RATE"),
        ("ramp(from=1, to=2, over=0s)", "over must be above 0"),
        ("mmpp(5:1e999s, 6:1s)", "too large"),
        ("steps(5s:1)", "ascending from 0s"),
        ("steps(0s:-1)", "0 or more"),
        ("mmpp(5:30s)", "mmpp\\(5:30s"),
        ("mmpp(0:1s,0:2s)", "rate 0"),
        ("onoff(on=1s)", "onoff\\(on=20s"),
        ("diurnal(peak_to_trough=0.5)", "at least 1"),
    ],
)
def test_bad_processes_are_told(text: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        parse_arrival(text)


def test_every_process_has_a_name() -> None:
    assert len(set(ARRIVALS)) == len(ARRIVALS) == 11
