"""Length laws: the parameters asked for are the ones that come out, by formula and in draws."""

import numpy as np
import pytest
from scipy import stats

from workloads import WorkloadError
from workloads.laws import Law
from workloads.lengths import parse_law, sample_pairs
from workloads.streams import Streams

LEVELS = (np.arange(200_000) + 0.5) / 200_000


def quantile(law: Law, level: float) -> float:
    return float(law.ppf(np.array([level]))[0])


LAWS = [
    "fixed(64)",
    "uniform(min=16, max=64)",
    "normal(mean=512, sd=400)",
    "lognormal(median=32, p99=128)",
    "lognormal(mean=512, p99=4096, max=8192)",
    "gamma(mean=300, cv=1.5)",
    "zipf(exponent=1.2, max=2048)",
    "mixture(0.6:lognormal(median=97, cv=0.5), 0.4:fixed(411))",
    "empirical(min=1, p50=129, p90=424, p99=601, max=1000)",
    "empirical(97:0.6, 411:0.4)",
]


@pytest.mark.parametrize("text", LAWS)
def test_the_mean_is_that_of_the_quantile_function(text: str) -> None:
    law = parse_law(text, "lognormal")
    assert law.ppf(LEVELS).mean() == pytest.approx(law.mean, rel=0.003)


@pytest.mark.parametrize("text", LAWS)
def test_quantile_and_distribution_function_belong_together(text: str) -> None:
    law = parse_law(text, "lognormal")
    u = LEVELS[::1000]
    x = law.ppf(u)
    assert (law.cdf(x + 0.51) >= u - 1e-9).all()
    assert (law.cdf(x - 0.51) <= u + 1e-9).all()
    assert (np.diff(x) >= 0).all()


@pytest.mark.parametrize("text", LAWS)
def test_draws_over_seeds_have_the_mean(text: str) -> None:
    law = parse_law(text, "lognormal")
    means = []
    for seed in range(40):
        streams = Streams(seed)
        rngs = streams.generator("a"), streams.generator("b")
        means.append(sample_pairs((law, law), 0.0, rngs, 500)[0].mean())
    error = float(np.std(means)) / np.sqrt(40) + 0.02
    assert np.mean(means) == pytest.approx(law.mean, abs=4 * error)


def test_lognormal_takes_any_two_of_its_figures() -> None:
    by_p99 = parse_law("lognormal(median=32,p99=128)", "fixed")
    assert (quantile(by_p99, 0.5), quantile(by_p99, 0.99)) == pytest.approx((32, 128))
    by_mean = parse_law("lognormal(mean=512,p99=4096)", "fixed")
    assert (by_mean.mean, quantile(by_mean, 0.99)) == pytest.approx((512, 4096))
    assert parse_law("lognormal(median=100,sigma=0.5)", "fixed").mean == pytest.approx(113.315, rel=1e-5)
    assert parse_law("lognormal(mean=512,cv=2)", "fixed").mean == pytest.approx(512)
    assert parse_law("lognormal(mean=120,median=100)", "fixed").mean == pytest.approx(120)
    assert quantile(parse_law("lognormal(p90=90,sigma=1)", "fixed"), 0.9) == pytest.approx(90)


@pytest.mark.parametrize("family", ["fixed", "uniform", "normal", "lognormal", "gamma", "zipf"])
def test_a_bare_number_is_the_mean(family: str) -> None:
    law = parse_law("200", family)
    # The mean of a truncated normal is the one that results, a little above the number.
    assert law.mean == pytest.approx(200, rel=0.1 if family == "normal" else 1e-9)


def test_defaults_are_the_documented_ones() -> None:
    law = parse_law(None, "lognormal")
    assert (quantile(law, 0.5), quantile(law, 0.99)) == pytest.approx((32, 128))


def test_the_gamma_percentile_is_met() -> None:
    law = parse_law("gamma(mean=100,p99=400)", "fixed")
    assert (law.mean, quantile(law, 0.99)) == pytest.approx((100, 400))


def test_limits_of_a_law_truncate_it() -> None:
    law = parse_law("lognormal(median=100, p99=900, min=20, max=200)", "fixed")
    drawn = law.ppf(LEVELS)
    assert (drawn.min(), drawn.max()) == pytest.approx((20, 200), rel=0.01)
    # No heap at the wall: truncated, not clipped.
    assert np.mean(drawn >= 199.5) < 0.01


def test_rank_correlation_is_spearmans() -> None:
    laws = parse_law("lognormal(median=500,p99=4000)", "fixed"), parse_law("gamma(mean=200,cv=1)", "fixed")
    rngs = Streams(5).generator("a"), Streams(5).generator("b")
    for asked in (-0.5, 0.0, 0.8):
        a, b = sample_pairs(laws, asked, rngs, 40_000)
        assert stats.spearmanr(a, b).statistic == pytest.approx(asked, abs=0.02)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lognorm(3)", "known: empirical, fixed, gamma"),
        ("lognormal(median=32)x", "left over"),
        ("lognormal(median=-3)", "above 0"),
        ("lognormal(median=128,p99=32)", "above the median"),
        ("lognormal(mean=10,p99=4000)", "over 149.7"),
        ("lognormal(median=32,p99=128,cv=2)", "p99 is not needed"),
        ("lognormal(median=32,sigma=1,cv=2)", "cv is not needed"),
        ("gamma(mean=100,cv=1,p99=300)", "cv is not needed"),
        ("normal(mean=100,cv=1,sd=3)", "cv is not needed"),
        ("normal(mean=100,p50=100)", "wrong side"),
        ("normal(mean=100,p99=50)", "wrong side"),
        ("fixed(1e999)", "too large a number"),
        ("lognormal(sigma=1)", "too little is given"),
        ("gamma(cv=1)", "too little is given"),
        ("gamma(mean=100,p99=20000)", "no gamma law"),
        ("uniform(min=5,max=2)", "min lies above max"),
        ("uniform(min=5)", "uniform\\(min=16"),
        ("geometric(0.5)", "1 or more"),
        ("zipf(exponent=1)", "zipf\\(exponent"),
        ("zipf(mean=5000,max=100)", "half of max"),
        ("mixture(0.5:3)", "mixture\\(0.7"),
        ("empirical(p50=3)", "from min to max|empirical\\(min"),
        ("empirical(q50=3)", "no percentile|not min"),
        ("lognormal(median=32,p99=128,min=9,max=4)", "min lies above max"),
        ("fixed(64,min=90,max=100)", "almost nothing"),
    ],
)
def test_bad_laws_are_told(text: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        parse_law(text, "lognormal")


def test_families_that_need_more_than_a_mean_say_so() -> None:
    with pytest.raises(WorkloadError, match="in full"):
        parse_law("64", "mixture")
    with pytest.raises(WorkloadError, match="in full"):
        parse_law(None, "empirical")
    with pytest.raises(WorkloadError, match="unknown distribution 'pareto'"):
        parse_law("64", "pareto")
