"""The highest rate that meets an objective, as an interval: which trial comes next, and what the trials say.

With common random numbers (one seed: the same gaps, scaled to the rate, the same lengths) latency grows with
the rate, so that each seed has a capacity of its own, found by bisection with no noise in the way. Seeds are
independent: the interval is a t interval over the logarithms of their capacities. Later seeds start where
earlier ones ended and need a few trials each, all of them near the answer.

Both functions read the trials made so far and nothing else: a search that was stopped, by a budget or by a
crash, goes on from its list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class Outcome(StrEnum):
    """What a trial showed; an invalid measurement decides nothing and is made again."""

    PASS = "pass"
    FAIL = "fail"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run at a rate with the plan of a seed (0, 1, ...), and how it came out; None before it is made."""

    rate_per_s: float
    seed: int
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How to search. tolerance: relative width of a seed's bracket; precision: of the interval, where to
    stop.

    max_invalid: invalid trials at one rate and seed before the search gives up.
    """

    first_rate_per_s: float
    min_rate_per_s: float
    max_rate_per_s: float
    tolerance: float = 0.02
    precision: float = 0.05
    min_seeds: int = 5
    max_seeds: int = 12
    confidence: float = 0.95
    max_invalid: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Where the capacity lies. low_per_s: None where no rate passes; high_per_s: None where none fails.

    confidence: None for a bracket of single trials, which has none.
    """

    low_per_s: float | None
    high_per_s: float | None
    confidence: float | None
    num_seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """Of one seed: the highest rate that passed below the lowest that failed."""

    low: float | None
    high: float | None

    def width(self) -> float:
        """high / low - 1; infinite while an end is missing."""
        return self.high / self.low - 1 if self.low and self.high else np.inf

    def is_done(self, search: Search) -> bool:
        """Narrow enough, or the range of the search has been left."""
        is_below = self.high is not None and self.low is None and self.high <= search.min_rate_per_s
        is_above = self.low is not None and self.high is None and self.low >= search.max_rate_per_s
        return is_below or is_above or self.width() <= search.tolerance


def bracket_of(trials: Sequence[Trial], seed: int) -> Bracket:
    """What the trials of a seed say of its capacity."""
    own = [trial for trial in trials if trial.seed == seed]
    high = min((trial.rate_per_s for trial in own if trial.outcome == Outcome.FAIL), default=None)
    passed = [trial.rate_per_s for trial in own if trial.outcome == Outcome.PASS]
    return Bracket(low=max((rate for rate in passed if high is None or rate < high), default=None), high=high)


def next_trial(trials: Sequence[Trial], search: Search) -> Trial | None:
    """The trial that tells most next; None where the search is over."""
    for seed in range(search.max_seeds):
        bracket = bracket_of(trials, seed)
        if bracket.is_done(search):
            if bracket.low is None or bracket.high is None:
                return None  # no rate of the range passes, or all do: further seeds would say the same
            if seed + 1 >= search.min_seeds and _is_precise(trials, search):
                return None
            continue
        rate = float(
            np.clip(_next_rate(trials, seed, bracket, search), search.min_rate_per_s, search.max_rate_per_s)
        )
        invalid = [
            trial
            for trial in trials
            if trial.seed == seed and trial.rate_per_s == rate and trial.outcome == Outcome.INVALID
        ]
        return None if len(invalid) >= search.max_invalid else Trial(rate_per_s=rate, seed=seed)
    return None


def _next_rate(trials: Sequence[Trial], seed: int, bracket: Bracket, search: Search) -> float:
    if bracket.low is not None and bracket.high is not None:
        return float(np.sqrt(bracket.low * bracket.high))
    found = _seed_capacities(trials, range(seed))
    known = bracket.low or bracket.high
    if known is None:
        return float(np.exp(np.mean(found))) if len(found) else search.first_rate_per_s
    # step away from the last rate: doubling for the first seed, then by what separates the seeds so far
    step = np.log(2.0) if len(found) == 0 else max(2 * search.tolerance, float(np.std(found)))
    num_steps = sum(trial.seed == seed and trial.outcome != Outcome.INVALID for trial in trials)
    distance = step * (1.0 if len(found) == 0 else 2.0 ** (num_steps - 1))
    return float(known * np.exp(distance if bracket.high is None else -distance))


def _seed_capacities(
    trials: Sequence[Trial], seeds: Sequence[int]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    brackets = [bracket_of(trials, seed) for seed in seeds]
    logs = [np.log(b.low * b.high) / 2 for b in brackets if b.low is not None and b.high is not None]
    return np.array(logs, np.float64)


def estimate(trials: Sequence[Trial], search: Search) -> Capacity:
    """What the trials say so far; with two finished seeds or more an interval with its confidence."""
    from scipy.special import stdtrit

    seeds = sorted({trial.seed for trial in trials})
    brackets = [bracket_of(trials, seed) for seed in seeds]
    done = [b for b in brackets if b.width() <= search.tolerance]
    if len(done) < 2:
        lows = [b.low for b in brackets if b.low is not None]
        highs = [b.high for b in brackets if b.high is not None]
        is_hopeless = any(b.low is None and b.is_done(search) for b in brackets)
        low = None if is_hopeless or not lows else min(lows)
        return Capacity(
            low_per_s=low, high_per_s=max(highs, default=None), confidence=None, num_seeds=len(done)
        )
    logs = np.array([np.log(b.low * b.high) / 2 for b in done if b.low and b.high])
    n = len(logs)
    spread = float(
        np.hypot(logs.std(ddof=1), search.tolerance / np.sqrt(12))
    )  # a root is anywhere in its bracket
    half = float(stdtrit(n - 1, (1 + search.confidence) / 2)) * spread / np.sqrt(n)
    centre = float(logs.mean())
    return Capacity(
        low_per_s=float(np.exp(centre - half)),
        high_per_s=float(np.exp(centre + half)),
        confidence=search.confidence,
        num_seeds=n,
    )


def _is_precise(trials: Sequence[Trial], search: Search) -> bool:
    found = estimate(trials, search)
    if found.confidence is None or not found.low_per_s or not found.high_per_s:
        return False
    return found.high_per_s / found.low_per_s - 1 <= 2 * search.precision
