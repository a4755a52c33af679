"""What was sent against what was asked: bad senders are caught, honest ones are not accused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadgen.measure.arrivals import Arrivals, judge_arrivals, parse_renewal
from loadgen.measure.window import schedule_end_ns
from tests.loadgen.rows import make_columns
from workloads import Workload

RATE = 50.0
SECONDS = 30.0
Floats = np.ndarray[Any, np.dtype[np.float64]]


def judge(scheduled_s: Floats, sent_s: Floats, arrival: str = "poisson", **workload: Any) -> Arrivals:
    columns = make_columns(len(scheduled_s), scheduled_ns=scheduled_s * 1e9, sent_ns=sent_s * 1e9)
    asked = {"arrival": arrival, "rate_per_s": RATE, "duration_s": SECONDS, **workload}
    return judge_arrivals(columns, asked, SECONDS * 1e9, is_open_loop=True)


def failed(arrivals: Arrivals) -> set[str]:
    return {test.name for test in arrivals.tests if test.has_failed}


def renewal(rng: np.random.Generator, name: str) -> Floats:
    n = int(RATE * SECONDS * 2)
    draws: dict[str, Floats] = {
        "poisson": rng.exponential(1, n),
        "constant": np.ones(n),
        "gamma(cv=2)": rng.gamma(0.25, 4, n),
        "weibull(cv=0.5)": rng.weibull(2.1013, n) / 0.88567,
    }
    times = np.cumsum(draws[name] / RATE)
    return np.asarray(times[times < SECONDS])


ARRIVALS = (
    "constant",
    "poisson",
    "gamma(cv=2)",
    "gamma(cv=5)",
    "weibull(cv=0.5)",
    "onoff(on=2s,off=2s)",
    "mmpp(10:2s,30:2s)",
)
SIZES: tuple[dict[str, float], ...] = (
    {"rate_per_s": 20.0, "duration_s": 30.0},
    {"rate_per_s": 20.0, "num_requests": 60},
    {"rate_per_s": 400.0, "num_requests": 600},
    {"rate_per_s": 2000.0, "num_requests": 1000},
)


@pytest.mark.parametrize("name", ARRIVALS)
def test_an_honest_sender_is_not_accused(name: str) -> None:
    """2,000 right plans over all processes and sizes, sent some 150 us late: at most 0.1 % may be accused."""
    rng = np.random.default_rng(1)
    for size in SIZES:
        for seed in range(72):
            due = Workload(arrival=name, **size).plan(seed).arrival_ns.astype(np.float64)  # type: ignore[arg-type]
            sent = due + rng.exponential(150_000, len(due))
            columns = make_columns(len(due), scheduled_ns=due, sent_ns=sent)
            asked = {"arrival": name, **size}
            is_open = np.ones(len(due), np.bool_)
            end_ns = schedule_end_ns(columns, asked, is_open, is_closed=False)
            assert failed(judge_arrivals(columns, asked, end_ns, is_open_loop=True)) == set(), (size, seed)


def test_a_plan_that_is_uneven_by_chance_is_nobodys_fault() -> None:
    """Seed 0 at 500/s for 3 s: counts that vary half as much again as a Poisson's, p = 0.0002."""
    due = Workload(rate_per_s=500.0, duration_s=3.0).plan(0).arrival_ns / 1e9
    columns = make_columns(len(due), scheduled_ns=due * 1e9, sent_ns=due * 1e9 + 20_000)
    asked = {"arrival": "poisson", "rate_per_s": 500.0, "duration_s": 3.0}
    found = judge_arrivals(columns, asked, 3e9, is_open_loop=True)
    (dispersion,) = (test for test in found.tests if test.name == "dispersion")
    assert dispersion.p is not None
    assert dispersion.p < 0.001
    assert abs(dispersion.effect) > dispersion.effect_limit
    assert failed(found) == set()


def test_a_sender_that_drifts_is_caught() -> None:
    due = renewal(np.random.default_rng(2), "poisson")
    assert "rate_vs_plan" in failed(judge(due, due * 1.05))


def test_a_timer_quantum_that_bunches_sends_is_caught() -> None:
    due = renewal(np.random.default_rng(3), "poisson")
    bunched = np.ceil(due / 0.1) * 0.1
    assert "gaps_vs_plan" in failed(judge(due, bunched))
    assert "gaps" in failed(judge(bunched, bunched))


def test_workers_that_share_a_seed_are_not_poisson() -> None:
    rng = np.random.default_rng(4)
    one = np.cumsum(rng.exponential(4 / RATE, 1000))
    four = np.sort(np.concatenate([one[one < SECONDS]] * 4))
    found = failed(judge(four, four))
    assert {"gaps", "dispersion"} <= found


def test_a_poisson_mode_that_sends_at_even_gaps_is_caught() -> None:
    even = renewal(np.random.default_rng(5), "constant")
    assert "gaps" in failed(judge(even, even))


def test_a_constant_mode_that_draws_gaps_is_caught() -> None:
    drawn = renewal(np.random.default_rng(6), "poisson")
    assert "gaps" in failed(judge(drawn, drawn, "constant"))


def test_gaps_that_depend_on_each_other_are_caught() -> None:
    rng = np.random.default_rng(7)
    gaps = np.sort(rng.exponential(1 / RATE, 1500)).reshape(-1, 50)
    rng.shuffle(gaps)  # neighbours alike, the distribution still exponential
    times = np.cumsum(gaps.ravel())
    assert "dependence" in failed(judge(times, times))


def test_a_thinned_schedule_is_caught() -> None:
    due = renewal(np.random.default_rng(8), "poisson")
    sent = due.copy()
    sent[::10] = np.nan
    assert {"rate_vs_plan"} <= failed(judge(due, sent))


def test_a_trace_is_compared_with_itself() -> None:
    due = renewal(np.random.default_rng(9), "gamma(cv=2)")
    found = judge(due, due, trace="/data/trace.csv.gz", rate_per_s=None)
    assert found.asked == "trace trace.csv.gz"
    assert failed(found) == set()
    assert {test.p for test in found.tests} == {None}
    assert "rate_vs_plan" in failed(judge(due, due * 1.1, trace="x", rate_per_s=None))


def test_sessions_and_clients_are_compared_with_their_plan_only() -> None:
    due = renewal(np.random.default_rng(10), "gamma(cv=2)")
    found = judge(due, due, sessions="chat")
    assert found.asked == "poisson (sessions) at 50 /s"
    assert {test.p for test in found.tests} == {None}


def test_a_closed_loop_has_no_process_to_be_tested_against() -> None:
    columns = make_columns(100)
    assert judge_arrivals(columns, {}, 1e11, is_open_loop=False).tests == ()


def test_nothing_sent_is_no_rate() -> None:
    arrivals = judge_arrivals(make_columns(100, sent_ns=np.nan), {}, 1e11, is_open_loop=True)
    assert (arrivals.rate_per_s, arrivals.gap_cv, arrivals.tests) == (None, None, ())


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("poisson", ("poisson", 1.0)),
        ("constant", ("constant", 0.0)),
        ("gamma(cv=2)", ("gamma", 2.0)),
        (" weibull( cv = 0.5 ) ", ("weibull", 0.5)),
        ("onoff(on=5s, off=5s)", (None, 0.0)),
        ("ramp(from=1, to=9)", (None, 0.0)),
        ("gamma", (None, 0.0)),
        ("", (None, 0.0)),
    ],
)
def test_parse_renewal(expression: str, expected: tuple[str | None, float]) -> None:
    assert parse_renewal(expression) == expected
