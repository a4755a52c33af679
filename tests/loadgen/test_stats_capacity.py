"""Capacity searches against closed forms, and their behaviour at the edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.stats.capacity import Outcome, Search, Trial, estimate, next_trial
from loadgen.stats.quantile import quantile

Floats = NDArray[np.float64]
SEARCH = Search(first_rate_per_s=0.2, min_rate_per_s=0.01, max_rate_per_s=4.0)


def run_search(
    passes: Callable[[float, int], bool], search: Search = SEARCH, budget: int = 500
) -> list[Trial]:
    trials: list[Trial] = []
    while len(trials) < budget and (trial := next_trial(trials, search)) is not None:
        outcome = Outcome.PASS if passes(trial.rate_per_s, trial.seed) else Outcome.FAIL
        trials.append(replace(trial, outcome=outcome))
    return trials


def sojourn(rate: float, gaps: Floats, sizes: Floats) -> Floats:
    """FIFO queue on gaps of mean 1 scaled to a rate."""
    walk = np.cumsum(np.concatenate([[0.0], sizes[:-1]]) - gaps / rate)
    return np.asarray(walk - np.minimum.accumulate(np.minimum(walk, 0)) + sizes)


def covers(
    first_seed: int, n: int, exponential: bool, objective: Callable[[Floats], bool], truth: float
) -> tuple[bool, int]:
    plans = {}
    for seed in range(SEARCH.max_seeds):
        rng = np.random.default_rng([first_seed, seed])
        plans[seed] = rng.exponential(size=n), rng.exponential(size=n) if exponential else np.ones(n)
    trials = run_search(lambda rate, seed: objective(sojourn(rate, *plans[seed])))
    found = estimate(trials, SEARCH)
    assert found.low_per_s is not None
    assert found.high_per_s is not None
    return found.low_per_s <= truth <= found.high_per_s, len(trials)


def test_covers_the_capacity_of_mm1_by_its_p99() -> None:
    # sojourn times are exponential at rate 1 - lambda: p99 <= 15 holds up to lambda = 1 - ln(100) / 15
    truth = 1 - np.log(100) / 15
    found = [covers(i, 20_000, True, lambda t: quantile(t, 0.99) <= 15, truth) for i in range(60)]
    assert sum(is_covered for is_covered, _ in found) >= 54
    assert np.mean([num_trials for _, num_trials in found]) <= 50


def test_covers_the_capacity_of_md1_by_its_mean() -> None:
    # Pollaczek-Khinchine: mean = 1 + rho / (2 (1 - rho)) <= 2 holds up to rho = 2/3
    found = [covers(i, 10_000, False, lambda t: float(t.mean()) <= 2, 2 / 3) for i in range(60)]
    assert sum(is_covered for is_covered, _ in found) >= 54


def test_later_seeds_search_near_the_answer() -> None:
    rng = np.random.default_rng(1)
    capacity = 1.3 * np.exp(rng.normal(0, 0.03, SEARCH.max_seeds))
    trials = run_search(lambda rate, seed: rate <= capacity[seed])
    later = [trial for trial in trials if trial.seed > 1]
    assert max(trial.rate_per_s for trial in later) < 1.3 * 1.5
    assert min(trial.rate_per_s for trial in later) > 1.3 / 1.5


def test_no_passing_rate_is_an_answer() -> None:
    trials = run_search(lambda _rate, _seed: False)
    found = estimate(trials, SEARCH)
    assert found.low_per_s is None
    assert found.high_per_s == SEARCH.min_rate_per_s
    assert len(trials) <= 8


def test_no_failing_rate_is_an_answer() -> None:
    found = estimate(run_search(lambda _rate, _seed: True), SEARCH)
    assert (found.low_per_s, found.high_per_s) == (SEARCH.max_rate_per_s, None)


def test_a_budget_leaves_the_best_bracket_so_far() -> None:
    trials = run_search(lambda rate, _seed: rate <= 1.0, budget=4)
    found = estimate(trials, SEARCH)
    assert found.low_per_s is not None
    assert found.high_per_s is not None
    assert found.low_per_s <= 1.0 <= found.high_per_s
    assert found.confidence is None


def test_a_search_goes_on_from_its_list() -> None:
    def passes(rate: float, seed: int) -> bool:
        return rate <= 1.0 + 0.01 * seed

    whole = run_search(passes)
    assert next_trial(whole[:7], SEARCH) == replace(whole[7], outcome=None)
    assert next_trial(whole, SEARCH) is None


def test_invalid_trials_are_made_again_but_not_for_ever() -> None:
    first = next_trial([], SEARCH)
    assert first is not None
    invalid = replace(first, outcome=Outcome.INVALID)
    assert next_trial([invalid], SEARCH) == first
    assert next_trial([invalid] * SEARCH.max_invalid, SEARCH) is None


@pytest.mark.parametrize("tolerance", [0.01, 0.1])
def test_brackets_are_as_narrow_as_asked(tolerance: float) -> None:
    search = replace(SEARCH, tolerance=tolerance)
    found = estimate(run_search(lambda rate, _seed: rate <= 0.777, search), search)
    assert found.low_per_s is not None
    assert found.high_per_s is not None
    assert found.low_per_s <= 0.777 <= found.high_per_s
    assert found.high_per_s / found.low_per_s <= 1 + 2 * tolerance


def test_nothing_tried_says_nothing() -> None:
    found = estimate([], SEARCH)
    assert (found.low_per_s, found.high_per_s, found.confidence, found.num_seeds) == (None, None, None, 0)
