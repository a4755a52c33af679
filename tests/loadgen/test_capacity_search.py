"""The search for a capacity: coverage on systems with closed forms, and its behaviour at every edge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.stats.capacity import (
    Answer,
    Bracket,
    Capacity,
    Evidence,
    Search,
    Trial,
    conclude,
    find_crossing,
    next_trial,
)
from loadgen.stats.quantile import quantile
from tests.loadgen.queues import (
    batching_mean_time,
    batching_times,
    fifo_waits,
    md1_wait_cdf,
    solve,
)

Measure = Callable[[Trial], Evidence]
NUM_SEARCHES = 100
SEARCH = Search(start_per_s=1.0, lowest_per_s=0.1, highest_per_s=1000.0)
STEP = {"c": 0.008, "a": 0.00025}
MEAN_TOKENS = 100.0


def search_with(measure: Measure, search: Search = SEARCH, most: int = 500) -> list[Evidence]:
    runs: list[Evidence] = []
    while len(runs) < most and (trial := next_trial(runs, search)) is not None:
        runs.append(measure(trial))
    return runs


def server(capacity_of: Callable[[int], float], slope: float = 8.0) -> Measure:
    """A server without noise: the margin is that of a power of the rate, of each replicate its own."""

    def measure(trial: Trial) -> Evidence:
        margin = slope * math.log(trial.rate_per_s / capacity_of(trial.replicate))
        return Evidence(trial=trial, margin=margin, excess=margin)

    return measure


def md1(key: int, limit: float, n: int) -> Measure:
    """p99 of the wait of M/D/1, service time 1."""

    def measure(trial: Trial) -> Evidence:
        rng = np.random.default_rng([key, trial.replicate])
        gaps = rng.exponential(size=n // 6 if trial.is_probe else n) / trial.rate_per_s
        waits = fifo_waits(gaps, np.ones(len(gaps)))[len(gaps) // 10 :]
        share = max(float(np.mean(waits > limit)), 1e-9)
        margin = math.log(max(quantile(waits, 0.99), 1e-9) / limit)
        return Evidence(trial=trial, margin=margin, excess=math.log(share / 0.01))

    return measure


def batching(key: int, limit: float, n: int, cap: int) -> Measure:
    """Mean time in system of continuous batching with exponential lengths."""

    def measure(trial: Trial) -> Evidence:
        rng = np.random.default_rng([key, trial.replicate])
        gaps, tokens = rng.exponential(size=n) / trial.rate_per_s, rng.exponential(MEAN_TOKENS, size=n)
        used = n // 6 if trial.is_probe else n
        times = batching_times(gaps[:used], tokens[:used], cap=cap, **STEP)
        margin = math.log(float(times[used // 10 :].mean()) / limit)
        return Evidence(trial=trial, margin=margin, excess=margin)

    return measure


def closed_form(limit: float, cap: int) -> float:
    longest = min(cap, 10_000)
    at_most = longest / ((STEP["c"] + STEP["a"] * longest) * MEAN_TOKENS)
    return solve(
        lambda rate: batching_mean_time(rate, cap=cap, tokens=MEAN_TOKENS, **STEP) - limit,
        0.1,
        at_most * 0.99,
    )


def spend(runs: list[Evidence], n: int) -> int:
    return sum(n // 6 if run.trial.is_probe else n for run in runs)


@pytest.mark.parametrize(
    ("name", "n", "truth", "system"),
    [
        (
            "M/D/1, wait.p99 <= 8",
            4000,
            solve(lambda rate: 0.99 - md1_wait_cdf(8.0, rate), 0.1, 0.95),
            lambda key: md1(key, 8.0, 4000),
        ),
        (
            "continuous batching, no cap, e2e.mean <= 1.65 s",
            2000,
            (1 - 0.825 / 1.65) / (STEP["a"] * MEAN_TOKENS),
            lambda key: batching(key, 1.65, 2000, 10**6),
        ),
        (
            "continuous batching, 32 at once, e2e.mean <= 1.65 s",
            4000,
            closed_form(1.65, 32),
            lambda key: batching(key, 1.65, 4000, 32),
        ),
    ],
    ids=["M/D/1", "batching", "batching with a cap"],
)
def test_the_true_capacity_lies_inside(
    name: str,
    n: int,
    truth: float,
    system: Callable[[int], Measure],
    record_property: Callable[[str, object], None],
) -> None:
    answers: list[Capacity] = []
    requests: list[int] = []
    for key in range(NUM_SEARCHES):
        runs = search_with(system(key), Search(start_per_s=truth / 5, lowest_per_s=truth / 100))
        answers.append(conclude(runs, SEARCH))
        requests.append(spend(runs, n))
    ends = [(found.low_per_s or 0.0, found.high_per_s or 0.0) for found in answers]
    covered = sum(low <= truth <= high for low, high in ends)
    half = float(np.mean([math.log(high / low) / 2 for low, high in ends]))
    said = f"{covered} of {NUM_SEARCHES} hold {truth:.4g}/s, +- {half:.1%}, {np.mean(requests):,.0f} requests"
    record_property(name, said)
    print(f"{name}: {said}")
    assert all(found.answer == Answer.INTERVAL and found.confidence == 0.95 for found in answers)
    assert covered >= 90
    assert half < 0.06
    assert np.mean(requests) < 130_000


def test_closed_forms_agree_with_each_other() -> None:
    uncapped = batching_mean_time(20.0, cap=10**6, tokens=MEAN_TOKENS, **STEP)
    assert uncapped == pytest.approx(
        (STEP["c"] + STEP["a"]) * MEAN_TOKENS / (1 - 20 * STEP["a"] * MEAN_TOKENS)
    )
    waits = fifo_waits(np.random.default_rng(1).exponential(size=200_000) / 0.7, np.ones(200_000))
    assert float(waits.mean()) == pytest.approx(0.7 / (2 * 0.3), rel=0.05)
    assert float(np.mean(waits <= 3.0)) == pytest.approx(md1_wait_cdf(3.0, 0.7), abs=0.01)


def test_a_search_without_noise_is_short_and_exact() -> None:
    runs = search_with(server(lambda _: 20.0))
    found = conclude(runs, SEARCH)
    assert found.answer == Answer.INTERVAL
    assert found.low_per_s == pytest.approx(20.0)
    assert found.high_per_s == pytest.approx(20.0)
    assert found.num_replicates == found.num_planned == SEARCH.num_pilot
    assert len(runs) < 25


def test_probes_come_first_and_later_replicates_stay_near_the_answer() -> None:
    runs = search_with(server(lambda replicate: 20.0 * (1 + 0.02 * (replicate % 3))))
    kinds = [run.trial.is_probe for run in runs]
    assert kinds == sorted(kinds, reverse=True)
    assert [run.rate_per_s for run in runs if run.trial.is_probe] == [1, 2, 4, 8, 16, 32]
    later = [run.rate_per_s for run in runs if run.trial.replicate > 0]
    assert min(later) > 18
    assert max(later) < 23


def test_noise_asks_for_more_replicates_up_to_the_most() -> None:
    spread = np.random.default_rng(1).normal(0, 0.2, SEARCH.max_replicates)
    found = conclude(search_with(server(lambda r: 20.0 * math.exp(spread[r]))), SEARCH)
    assert found.num_replicates == found.num_planned == SEARCH.max_replicates


def test_no_rate_that_passes_is_an_answer() -> None:
    runs = search_with(server(lambda _: 0.001))
    assert conclude(runs, SEARCH) == Capacity(answer=Answer.NONE, num_replicates=1)
    assert len(runs) <= 8
    assert runs[-1].rate_per_s == SEARCH.lowest_per_s
    assert not runs[-1].trial.is_probe


def test_no_rate_that_fails_is_an_answer() -> None:
    found = conclude(search_with(server(lambda _: 1e9)), SEARCH)
    assert (found.answer, found.low_per_s, found.high_per_s) == (Answer.ABOVE, 1000.0, None)


def test_a_cliff_is_bracketed_by_halving() -> None:
    """Above 20/s the backlog grows: there is no figure to interpolate with."""

    def cliff(trial: Trial) -> Evidence:
        margin = -1.0 if trial.rate_per_s < 20 else math.inf
        return Evidence(trial=trial, margin=margin)

    runs = search_with(cliff)
    found = conclude(runs, SEARCH)
    assert found.low_per_s is not None
    assert found.high_per_s is not None
    assert found.low_per_s < 20 < found.high_per_s
    assert found.high_per_s / found.low_per_s < 1.06


@pytest.mark.parametrize("num_runs", range(1, 9))
def test_a_budget_leaves_the_best_bracket_so_far(num_runs: int) -> None:
    found = conclude(search_with(server(lambda _: 20.0), most=num_runs), SEARCH)
    assert found.confidence is None
    if num_runs < 6:
        assert (found.answer, found.high_per_s) == (Answer.UNDECIDED, None)
        assert found.low_per_s == 2 ** (num_runs - 1)
    else:
        assert found.answer == Answer.BRACKET
        assert (found.low_per_s or 0) <= 20 <= (found.high_per_s or 0)


def test_the_bracket_of_one_replicate_has_no_end_of_another() -> None:
    own = [(0, 174, -1.0), (0, 179, math.inf), (1, 176, -1.0)]
    runs = [Evidence(trial=Trial(rate_per_s=rate, replicate=r), margin=margin) for r, rate, margin in own]
    found = conclude(runs, SEARCH)
    assert (found.answer, found.low_per_s, found.high_per_s) == (Answer.BRACKET, 174, 179)


def test_a_search_goes_on_from_its_runs() -> None:
    whole = search_with(server(lambda replicate: 20.0 + replicate))
    for cut in range(len(whole)):
        assert next_trial(whole[:cut], SEARCH) == whole[cut].trial
    assert next_trial(whole, SEARCH) is None


def undecided_first(measure: Measure, num: int) -> Measure:
    left = iter([True] * num)

    def flaky(trial: Trial) -> Evidence:
        if not trial.is_probe and next(left, False):
            return Evidence(trial=trial, margin=None)
        return measure(trial)

    return flaky


def test_an_invalid_run_is_made_again_and_a_replicate_given_up_after_two() -> None:
    once = search_with(undecided_first(server(lambda _: 20.0), 1))
    first = next(i for i, run in enumerate(once) if run.margin is None)
    assert once[first].trial == once[first + 1].trial
    assert conclude(once, SEARCH).answer == Answer.INTERVAL
    twice = search_with(undecided_first(server(lambda _: 20.0), 2))
    assert {run.trial.replicate for run in twice} == set(range(6))
    assert conclude(twice, SEARCH).num_replicates == 5


def test_a_measurement_that_is_never_valid_ends_the_search() -> None:
    runs = search_with(lambda trial: Evidence(trial=trial, margin=None))
    assert conclude(runs, SEARCH).answer == Answer.UNDECIDED
    assert len(runs) <= 10


@given(
    truth=st.floats(0.05, 3000),
    slope=st.floats(0.01, 500),
    spread=st.floats(0, 0.5),
    cliff=st.floats(0.8, 1.5),
    start=st.floats(0.1, 1000),
)
@settings(max_examples=150, deadline=None)
def test_every_search_ends_and_its_bracket_is_in_range(
    truth: float, slope: float, spread: float, cliff: float, start: float
) -> None:
    """Curves from flat to a wall, seeds that differ a lot, a backlog that grows before or after the limit."""
    noise = np.random.default_rng(1).normal(0, spread, SEARCH.max_replicates + 5)

    def measure(trial: Trial) -> Evidence:
        at = truth * math.exp(noise[trial.replicate])
        margin = slope * math.log(trial.rate_per_s / at) if trial.rate_per_s < cliff * at else math.inf
        return Evidence(trial=trial, margin=margin, excess=margin)

    search = replace(SEARCH, start_per_s=start)
    runs = search_with(measure, search, most=400)
    assert len(runs) < 300
    assert next_trial(runs, search) is None
    assert all(search.lowest_per_s <= run.rate_per_s <= search.highest_per_s for run in runs)
    found = conclude(runs, search)
    if found.answer == Answer.INTERVAL:
        assert 0 < (found.low_per_s or 0) <= (found.high_per_s or 0)
    else:
        assert found.answer in (Answer.NONE, Answer.ABOVE)


def points(*pairs: tuple[float, float | None]) -> list[Evidence]:
    return [Evidence(trial=Trial(rate_per_s=rate, replicate=0), margin=margin) for rate, margin in pairs]


def test_a_pass_above_a_failure_does_not_count() -> None:
    bracket = Bracket.of(points((10, -1), (12, 0.5), (14, -0.1), (16, 1)))
    assert bracket.low is not None
    assert bracket.high is not None
    assert (bracket.low.rate_per_s, bracket.high.rate_per_s) == (10, 12)


def test_a_crossing_is_interpolated_only_between_near_rates() -> None:
    assert find_crossing(points((10, -1), (20, 1)), SEARCH) is None
    crossing = find_crossing(points((10, -0.5), (11, 0.5)), SEARCH)
    assert crossing is not None
    assert crossing.low_per_s == crossing.high_per_s == pytest.approx(math.sqrt(110))


@pytest.mark.parametrize(("start", "truth"), [(2.0, 4.0), (8.0, 30.0), (0.2, 0.9)])
def test_any_start_finds_it(start: float, truth: float) -> None:
    search = Search(start_per_s=start, lowest_per_s=0.01)
    found = conclude(search_with(server(lambda _: truth), search), search)
    assert found.low_per_s == pytest.approx(truth)
