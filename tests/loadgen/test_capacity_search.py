"""The search for a capacity: coverage on servers with closed forms, and its behaviour at every edge."""

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
from tests.loadgen.queues import batching_mean_time, fifo_waits, md1_wait_cdf
from tests.loadgen.served import SERVERS, STEP, Server

Measure = Callable[[Trial], Evidence]
NUM_SEARCHES = 8
SEARCH = Search(length_s=30.0, start_per_s=1.0, lowest_per_s=0.1, highest_per_s=1000.0)
LIVE = replace(SEARCH, lowest_per_s=0.01)
QUICK = [SERVERS[0], SERVERS[2], SERVERS[4]]
MEAN_TOKENS = 100.0


def search_with(measure: Measure, search: Search = SEARCH, most: int = 500) -> list[Evidence]:
    runs: list[Evidence] = []
    while len(runs) < most and (trial := next_trial(runs, search)) is not None:
        runs.append(measure(trial))
    return runs


def server(capacity_of: Callable[[int], float], slope: float = 8.0) -> Measure:
    """A server without noise: the margin is that of a power of the rate, of each replicate its own."""

    def measure(trial: Trial) -> Evidence:
        return Evidence(trial=trial, margin=slope * math.log(trial.rate_per_s / capacity_of(trial.replicate)))

    return measure


@pytest.mark.parametrize("known", QUICK, ids=lambda one: f"{one.name}, {one.slo}")
def test_the_true_capacity_lies_inside(known: Server) -> None:
    """A small sample; `python -m benchmarks.capacity` makes the table of docs/statistics.md."""
    found = [conclude(known.search(key, LIVE), LIVE) for key in range(NUM_SEARCHES)]
    ends = [(one.low_per_s or 0.0, one.high_per_s or 0.0) for one in found]
    assert all(one.answer == Answer.INTERVAL and one.confidence == 0.95 for one in found)
    assert sum(low <= known.true_per_s <= high for low, high in ends) >= NUM_SEARCHES - 1
    assert max(math.sqrt(high / low) for low, high in ends) <= 1 + LIVE.precision + 1e-9


def test_a_length_that_is_given_is_kept_and_gives_no_interval_where_it_is_too_short() -> None:
    """One at a time, 2 s each, p90 <= 60 s: in 30 s no queue shows what it comes to."""
    slow = next(one for one in SERVERS if one.slo == "ttft.p90=60s")
    fixed = replace(LIVE, is_length_fixed=True, lowest_per_s=0.34)
    runs = slow.search(1, fixed)
    assert {run.trial.length_s for run in runs if not run.trial.is_probe} == {30.0}
    found = conclude(runs, fixed)
    assert (found.answer, found.confidence, found.low_per_s) == (Answer.UNDECIDED, None, None)
    assert (found.shortfall or 0) > 3


def filling(needed_s: float, measure: Measure) -> Measure:
    """A server that looks better until runs are long enough."""

    def run(trial: Trial) -> Evidence:
        shortfall = needed_s / trial.length_s
        said = measure(replace(trial, rate_per_s=trial.rate_per_s / max(shortfall, 1.0) ** 0.2))
        return replace(said, trial=trial, shortfall=shortfall)

    return run


def test_runs_that_were_too_short_are_made_again_longer() -> None:
    runs = search_with(filling(1000.0, server(lambda replicate: 20.0 + 0.1 * replicate)))
    lengths = [run.trial.length_s for run in runs if not run.trial.is_probe]
    assert lengths == sorted(lengths)
    assert lengths[0] == 30.0
    assert 1000 < lengths[-1] < 2500
    found = conclude(runs, SEARCH)
    assert (found.answer, found.length_s) == (Answer.INTERVAL, lengths[-1])
    assert (found.low_per_s or 0) < 20.2 < (found.high_per_s or 0)


def test_runs_that_were_long_enough_are_not_made_again() -> None:
    runs = search_with(filling(29.0, server(lambda _: 20.0)))
    assert {run.trial.length_s for run in runs if not run.trial.is_probe} == {30.0}


def test_a_search_cut_short_among_runs_too_short_has_no_interval() -> None:
    runs = search_with(filling(1000.0, server(lambda _: 20.0)), most=10)
    found = conclude(runs, SEARCH)
    assert (found.answer, found.low_per_s, found.high_per_s) == (Answer.UNDECIDED, None, None)
    assert found.shortfall == pytest.approx(1000 / 30)


def test_the_first_runs_are_ten_of_the_first_answers_long() -> None:
    runs = search_with(lambda trial: replace(server(lambda _: 20.0)(trial), answer_s=18.0))
    assert runs[0].trial.length_s == 5.0
    assert {run.trial.length_s for run in runs if not run.trial.is_probe} == {180.0}


def test_a_figure_on_few_independent_values_asks_for_more_and_a_steep_one_for_fewer() -> None:
    def needed_s(slope: float, num_values_per_s: float) -> float:
        def measure(trial: Trial) -> Evidence:
            known = server(lambda _: 20.0, slope)(trial)
            return replace(known, num_values=trial.length_s * num_values_per_s)

        return max(run.trial.length_s for run in search_with(measure))

    assert needed_s(2.0, 10.0) == 30
    assert needed_s(2.0, 0.5) == pytest.approx(80 / 0.5 * 1.5)
    assert needed_s(8.0, 0.5) == pytest.approx(40 / 0.5 * 1.5)


def test_no_rate_above_what_an_overrun_server_served_passes() -> None:
    """A backlog that grows by less than a tenth of what comes is not seen."""

    def measure(trial: Trial) -> Evidence:
        is_seen = trial.rate_per_s > 1.08 * 20
        return Evidence(
            trial=trial, margin=math.inf if is_seen else -3.0, served_per_s=20.0 if is_seen else None
        )

    found = conclude(search_with(measure), SEARCH)
    assert (found.low_per_s or 0) < 20 < (found.high_per_s or 0)
    assert (found.high_per_s or 0) / (found.low_per_s or 1) < 1.03


def test_probes_stop_where_answers_have_become_far_slower() -> None:
    """An objective that overload does not touch: the backlog of a short probe cannot be judged."""
    runs = search_with(
        lambda trial: Evidence(trial=trial, margin=-1.0, answer_s=max(1.0, trial.rate_per_s / 4)), most=20
    )
    assert [run.rate_per_s for run in runs if run.trial.is_probe] == [1.0, 2.0, 4.0, 8.0, 16.0]
    alike = search_with(lambda trial: Evidence(trial=trial, margin=-1.0, answer_s=1.0), most=20)
    assert max(run.rate_per_s for run in alike if run.trial.is_probe) == SEARCH.highest_per_s


def test_a_rate_at_which_requests_hardly_meet_is_the_lowest_that_is_tried() -> None:
    def measure(trial: Trial, margin: float) -> Evidence:
        return Evidence(trial=trial, margin=margin, answer_s=0.05, num_values=trial.length_s)

    runs = search_with(lambda trial: measure(trial, 2.0))
    assert conclude(runs, SEARCH).answer == Answer.NONE
    assert [run.rate_per_s for run in runs] == [1.0, 1.0]
    by_chance = search_with(lambda trial: measure(trial, 0.1 if trial.length_s < 100 else -1.0), most=8)
    assert conclude(by_chance, SEARCH).answer != Answer.NONE


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
    assert found.low_per_s == pytest.approx(20.0, rel=0.02)
    assert found.high_per_s == pytest.approx(20.0, rel=0.02)
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
    assert conclude(runs, SEARCH) == Capacity(answer=Answer.NONE, num_replicates=1, length_s=30.0)
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
    assert found.high_per_s / found.low_per_s < 1.08


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
    runs = [
        Evidence(trial=Trial(rate_per_s=rate, length_s=30.0, replicate=r), margin=margin)
        for r, rate, margin in own
    ]
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
@settings(max_examples=100, deadline=None)
def test_every_search_ends_and_its_bracket_is_in_range(
    truth: float, slope: float, spread: float, cliff: float, start: float
) -> None:
    """Curves from flat to a wall, seeds that differ a lot, a backlog that grows before or after the limit."""
    noise = np.random.default_rng(1).normal(0, spread, SEARCH.max_replicates + 5)

    def measure(trial: Trial) -> Evidence:
        at = truth * math.exp(noise[trial.replicate])
        margin = slope * math.log(trial.rate_per_s / at) if trial.rate_per_s < cliff * at else math.inf
        return Evidence(trial=trial, margin=margin)

    search = replace(SEARCH, start_per_s=start, max_replicates=20)
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
    return [Evidence(trial=Trial(rate_per_s=rate, length_s=30.0), margin=margin) for rate, margin in pairs]


def test_a_pass_above_a_failure_does_not_count() -> None:
    bracket = Bracket.of(points((10, -1), (12, 0.5), (14, -0.1), (16, 1)))
    assert bracket.low is not None
    assert bracket.high is not None
    assert (bracket.low.rate_per_s, bracket.high.rate_per_s) == (10, 12)


def test_a_crossing_is_interpolated_only_between_near_rates() -> None:
    assert find_crossing(points((10, -1), (20, 1)), SEARCH) is None
    crossing = find_crossing(points((10, -0.5), (11, 0.5)), SEARCH)
    assert crossing is not None
    assert crossing.low_per_s == crossing.high_per_s == pytest.approx(10.6, abs=0.1)
    assert find_crossing(points((10, -0.5), (11, 0.6)), SEARCH) is None


@pytest.mark.parametrize(("start", "truth"), [(2.0, 4.0), (8.0, 30.0), (0.2, 0.9)])
def test_any_start_finds_it(start: float, truth: float) -> None:
    search = Search(start_per_s=start, lowest_per_s=0.01)
    found = conclude(search_with(server(lambda _: truth), search), search)
    assert (found.low_per_s or 0) < truth < (found.high_per_s or 0)
    assert found.low_per_s == pytest.approx(truth, rel=0.02)
