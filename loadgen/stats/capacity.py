"""The highest rate that meets an objective: a search that is a pure function of what was measured so far.

A replicate is one seed: the same requests, stretched in time to any rate (common random numbers). Within it
the figure grows with the rate and crosses its limit once; a bracket and a secant find where, and later
replicates start where earlier ones crossed. Crossings of different seeds are independent: the capacity is a t
interval over their logarithms. How many replicates: Stein's two stages (1945), which keep the confidence
although the number depends on the data.

No statistic repairs runs that end before the queue has filled. Each run says how many independent values it
rests on, and how long its server takes to fill; a replicate whose runs were too short starts all of it again
with longer ones, and what shorter runs said only tells where to look. Where the length is fixed there is no
interval, but the length that would do. What such runs may still be off together is a fifth of the precision:
the interval is that much wider.
The search sends nothing and knows no clock; a budget is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, exp, inf, isfinite, log, log1p, sqrt
from statistics import fmean, stdev

INTERPOLATED_RATIO = 1.12  # a bracket this narrow is interpolated where both ends have a figure
INTERPOLATED_MARGIN = 1.0  # and where these are not further apart
SERVED_RATIO = 1.04  # and what was served is that near to what passes
NARROW_RATIO = 1.03  # at the latest; where the failing end has no figure both ends are kept
FIRST_STEP = 1.25
LATER_STEP = 1.08
LARGEST_STEP = 1.6
PROBE_STEP = 2.0
SLOWER = 3.0  # times the shortest answers
PROBE_SHARE = 6  # of the length of a run
EDGE = 0.15  # how far inside its bracket a secant lands: one that stays at an end would never narrow it
MAX_UNDECIDED = 2
UNSEEN = 1.1  # a rate that far above what is served is always seen to be
ANSWERS = 10  # a run is as long as so many answers: it starts empty, and fills while the first are written
SURE = 3.0  # standard errors
ALONE = 0.1  # requests in flight on average
NUM_VALUES, MIN_VALUES = 80, 15  # independent ones that a figure must rest on; by coverage on queues
SHARE_OF_BIAS = 0.2  # of the precision: what runs of that length may be off together, whatever their number
STEEP = 4.0  # a figure that grows as this power of the rate wants as many; a steeper one fewer
USUAL_PRECISION = 0.05
HEADROOM = 1.5  # the length that a run says it would have to have varies from seed to seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run to be made. replicate: its seed, from 0; is_probe: a short one that says where to look."""

    rate_per_s: float
    length_s: float
    replicate: int = 0
    is_probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run said. margin: log(figure / limit), the worst of several objectives; 0 or below passes.

    inf: failed whatever the figure (backlog grew, requests failed); None: the measurement was not valid.
    served_per_s: answers per second where the backlog grew, which no rate that holds is above.
    num_values: how many independent values its figure rests on. shortfall: the length that the run would have
    to have for its server to have filled, over the length that it had; above 1 it says where to look, and
    decides nothing. answer_s: how long an answer took, 0 where none came.
    """

    trial: Trial
    margin: float | None
    served_per_s: float | None = None
    num_values: float = inf
    shortfall: float = 0.0
    answer_s: float = 0.0

    @property
    def rate_per_s(self) -> float:
        return self.trial.rate_per_s

    @property
    def passes(self) -> bool:
        return self.margin is not None and self.margin <= 0

    @property
    def fails(self) -> bool:
        return self.margin is not None and self.margin > 0

    @property
    def is_long_enough(self) -> bool:
        """Whether it may be spoken of: a backlog that grew is no matter of length."""
        return self.served_per_s is not None or (self.shortfall <= 1 and self.num_values >= MIN_VALUES)

    @property
    def is_alone(self) -> bool:
        """Whether requests hardly met, so that they would fare no better at a lower rate."""
        return 0 < self.answer_s * self.rate_per_s <= ALONE

    @property
    def has_figure(self) -> bool:
        return self.margin is not None and isfinite(self.margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched for. length_s: of the first runs, and of all of them where is_length_fixed.

    precision: wanted half width of the interval, relative; rates per second.
    """

    length_s: float = 30.0
    is_length_fixed: bool = False
    start_per_s: float = 1.0
    lowest_per_s: float = 0.1
    highest_per_s: float = 100_000.0
    precision: float = 0.05
    confidence: float = 0.95
    num_pilot: int = 5
    max_replicates: int = 100


class Answer(StrEnum):
    """interval: with the confidence stated; bracket: of one replicate, without; none: no rate passes.

    above: the highest rate passes; undecided: too little was measured, too short, or nothing that is valid.
    """

    INTERVAL = "interval"
    BRACKET = "bracket"
    NONE = "none"
    ABOVE = "above"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """high_per_s: None where no rate failed. num_planned: replicates wanted; None until the pilot is done.

    length_s: of the runs that say so. shortfall: how many times as long they would have to be, above 1 where
    they were too short.
    """

    answer: Answer
    low_per_s: float | None = None
    high_per_s: float | None = None
    confidence: float | None = None
    num_replicates: int = 0
    num_planned: int | None = None
    length_s: float | None = None
    shortfall: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """The lowest rate that fails, and the highest below it that passes; None where there is none.

    A backlog that grows slowly is not seen: of the rates just above what an overrun server has served, none
    passes.
    """

    low: Evidence | None
    high: Evidence | None

    @classmethod
    def of(cls, runs: Sequence[Evidence]) -> Bracket:
        """Bracket the limit by what was decided."""
        high = min((run for run in runs if run.fails), key=_rate, default=None)
        if high is not None and (served := high.served_per_s) is not None:
            missed = [run for run in runs if served < run.rate_per_s < min(UNSEEN * served, high.rate_per_s)]
            high = replace(min([*missed, high], key=_rate), margin=inf, served_per_s=served)
        passing = [run for run in runs if run.passes and (high is None or run.rate_per_s < high.rate_per_s)]
        return cls(low=max(passing, key=_rate, default=None), high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where one replicate crosses the limit: between two rates, which are equal where it is known well.

    shortfall: the worst of the runs at its ends. is_lowest, is_highest: it lies beyond the range of the
    search.
    """

    low_per_s: float
    high_per_s: float
    shortfall: float = 0.0
    is_lowest: bool = False
    is_highest: bool = False

    @property
    def middle(self) -> float:
        """The logarithm of the rate in the middle."""
        return (log(self.low_per_s) + log(self.high_per_s)) / 2


def next_trial(runs: Sequence[Evidence], search: Search) -> Trial | None:
    """Say which run comes next; None where the answer is as good as was asked, or cannot be had."""
    length_s = run_length_s(runs, search)
    probe_rate = _next_probe_rate(runs, search)
    if probe_rate is not None:
        return Trial(rate_per_s=probe_rate, length_s=length_s / PROBE_SHARE, is_probe=True)
    replicates = _replicates(runs, length_s)
    found: list[Crossing] = []
    for number, own in enumerate(replicates):
        if _is_lost(own):
            continue
        crossing = find_crossing(own, search)
        if crossing is None:
            is_near = bool(found) or any(run.trial.length_s < length_s for run in _full(runs))
            rate = _next_rate(own, search, LATER_STEP if is_near else FIRST_STEP)
            return Trial(rate_per_s=rate, length_s=length_s, replicate=number)
        found.append(crossing)
        shortfall = _shortfall(found, search)
        if shortfall > 1 and search.is_length_fixed and len(found) == search.num_pilot:
            return None
        if shortfall > 1 and not search.is_length_fixed and len(found) in (1, search.num_pilot):
            return Trial(rate_per_s=_middle_rate(found, search), length_s=length_s * shortfall * HEADROOM)
        if crossing.is_lowest or crossing.is_highest:
            return None
    if sum(map(_is_lost, replicates)) >= MAX_UNDECIDED:
        return None
    if len(found) >= search.num_pilot and len(found) >= plan_replicates(found, search):
        return None
    rate = _middle_rate(found, search) if found else _first_rate(runs, search)
    return Trial(rate_per_s=rate, length_s=length_s, replicate=len(replicates))


def conclude(runs: Sequence[Evidence], search: Search) -> Capacity:
    """Answer with what has been measured so far."""
    length_s = run_length_s(runs, search)
    replicates = _replicates(runs, length_s)
    crossings = (find_crossing(own, search) for own in replicates if not _is_lost(own))
    found = [crossing for crossing in crossings if crossing is not None]
    said = Capacity(answer=Answer.NONE, num_replicates=len(found), length_s=length_s)
    is_long = bool(found) and _shortfall(found, search) <= 1
    if is_long and any(crossing.is_lowest for crossing in found):
        return said
    if is_long and any(crossing.is_highest for crossing in found):
        return replace(said, answer=Answer.ABOVE, low_per_s=search.highest_per_s)
    if len(found) < 2 or not is_long:
        shortfall = _shortfall(found, search) if found else 0.0
        return _without_confidence(replicates, runs, replace(said, shortfall=shortfall))
    spread = _t_times_spread(found, search) / sqrt(len(found))
    slack = fmean(log(crossing.high_per_s / crossing.low_per_s) for crossing in found) / 2
    half = spread + slack + SHARE_OF_BIAS * log1p(search.precision)
    centre = fmean(crossing.middle for crossing in found)
    return replace(
        said,
        answer=Answer.INTERVAL,
        low_per_s=exp(centre - half),
        high_per_s=exp(centre + half),
        confidence=search.confidence,
        num_planned=plan_replicates(found, search) if len(found) >= search.num_pilot else None,
    )


def run_length_s(runs: Sequence[Evidence], search: Search) -> float:
    """How long the runs are that count: as long as the longest, and as ten of the first answers."""
    if search.is_length_fixed:
        return search.length_s
    longest_s = max((run.trial.length_s for run in _full(runs)), default=0.0)
    if longest_s:
        return longest_s
    answer_s = min((run.answer_s for run in runs if run.passes), default=0.0)
    return max(search.length_s, ANSWERS * answer_s)


def find_crossing(own: Sequence[Evidence], search: Search) -> Crossing | None:
    """Where the runs of one replicate cross the limit; None while that is not known well enough."""
    bracket = Bracket.of(own)
    low, high = bracket.low, bracket.high
    if high is not None and (high.is_alone or high.rate_per_s <= search.lowest_per_s):
        rate, shortfall = high.rate_per_s, _find_doubt(high)
        return Crossing(low_per_s=rate, high_per_s=rate, is_lowest=True, shortfall=shortfall)
    if low is not None and low.rate_per_s >= search.highest_per_s:
        rate = low.rate_per_s
        return Crossing(low_per_s=rate, high_per_s=rate, is_highest=True, shortfall=low.shortfall)
    if low is None or high is None:
        return None
    shortfall = _find_shortfall(low, high, search)
    if high.served_per_s is not None:
        # a figure that queues do not touch holds until saturation, others cross before it
        top = _top(low, high)
        if top / low.rate_per_s > SERVED_RATIO:
            return None
        return Crossing(low_per_s=_interpolate(low, high), high_per_s=top, shortfall=shortfall)
    ratio = high.rate_per_s / low.rate_per_s
    is_near = ratio <= INTERPOLATED_RATIO and _distance(low, high) <= INTERPOLATED_MARGIN
    if not (is_near or ratio <= NARROW_RATIO):
        return None
    ends = low.rate_per_s, high.rate_per_s
    if high.has_figure:
        ends = (_interpolate(low, high),) * 2
    return Crossing(low_per_s=ends[0], high_per_s=ends[1], shortfall=shortfall)


def _top(low: Evidence, high: Evidence) -> float:
    """The rate above which nothing passes: the failing one, or what was served there."""
    if high.served_per_s is None:
        return high.rate_per_s
    return min(max(high.served_per_s, low.rate_per_s), high.rate_per_s)


def _find_doubt(high: Evidence) -> float:
    """How many times as long a run would have to be to be sure that it fails, and not by chance."""
    assert high.margin is not None
    return (SURE / high.margin) ** 2 / high.num_values


def _distance(low: Evidence, high: Evidence) -> float:
    """By how much their margins differ."""
    assert low.margin is not None
    assert high.margin is not None
    return high.margin - low.margin


def _find_shortfall(low: Evidence, high: Evidence, search: Search) -> float:
    """How many times as long the runs would have to be.

    Where the figure grows fast with the rate, its error hardly moves the crossing, and fewer values will do.
    """
    num_values = low.num_values
    if high.served_per_s is not None:
        slope = 1 / max(log(_top(low, high) / low.rate_per_s), search.precision)
    elif high.has_figure:
        slope = _distance(low, high) / log(high.rate_per_s / low.rate_per_s)
        num_values = (num_values + high.num_values) / 2
    else:
        slope = 1 / search.precision
    wanted = NUM_VALUES * min(STEEP / slope, 1.0) * USUAL_PRECISION / search.precision
    return max(low.shortfall, max(wanted, MIN_VALUES) / num_values)


def plan_replicates(found: Sequence[Crossing], search: Search) -> int:
    """How many replicates the wanted precision takes, by the spread of the pilot's crossings."""
    half = (1 - SHARE_OF_BIAS) * log1p(search.precision)
    wanted = ceil((_t_times_spread(found, search) / half) ** 2)
    return min(max(wanted, search.num_pilot), search.max_replicates)


def _t_times_spread(found: Sequence[Crossing], search: Search) -> float:
    """t times the standard deviation of the pilot's crossings."""
    from scipy.special import stdtrit

    pilot = [crossing.middle for crossing in found[: search.num_pilot]]
    return float(stdtrit(len(pilot) - 1, (1 + search.confidence) / 2)) * stdev(pilot)


def _shortfall(found: Sequence[Crossing], search: Search) -> float:
    """The mean of the pilot: from one replicate to the next it varies."""
    return fmean(crossing.shortfall for crossing in found[: search.num_pilot])


def _next_probe_rate(runs: Sequence[Evidence], search: Search) -> float | None:
    """Double while probes pass, halve while they do not; None once they have bracketed the answer.

    A probe can be too short to show a backlog: answers that have become far slower stop it, whatever passes.
    """
    if _full(runs):
        return None
    answer_s = SLOWER * min((probe.answer_s for probe in runs if probe.passes), default=0.0)
    failing = min((p.rate_per_s for p in runs if not p.passes or p.answer_s > answer_s), default=None)
    below = (p.rate_per_s for p in runs if p.passes and (failing is None or p.rate_per_s < failing))
    passing = max(below, default=None)
    if failing is not None and (passing is not None or any(run.fails and run.is_alone for run in runs)):
        return None
    rate = search.start_per_s
    if passing is not None:
        rate = passing * PROBE_STEP
    elif failing is not None:
        rate = failing / PROBE_STEP
    rate = _within(rate, search)
    return None if rate in (passing, failing) else rate


def _first_rate(runs: Sequence[Evidence], search: Search) -> float:
    """Where the first replicate starts: at the low end of the bracket of what was looked at."""
    low = Bracket.of(runs).low or min(runs, key=_rate, default=None)
    return search.lowest_per_s if low is None else low.rate_per_s


def _middle_rate(found: Sequence[Crossing], search: Search) -> float:
    """Where a later one starts: just below the crossings so far, for at saturation no run is long enough."""
    centre = fmean(crossing.middle for crossing in found)
    return _within(exp(centre - log1p(search.precision) / 2), search)


def _next_rate(own: Sequence[Evidence], search: Search, step: float) -> float:
    """Where a replicate goes on: inside its bracket, or further and further out until there is one."""
    if own[-1].margin is None:
        return own[-1].rate_per_s
    bracket = Bracket.of(own)
    low, high = bracket.low, bracket.high
    if low is not None and high is not None:
        edge: float = (high.rate_per_s / low.rate_per_s) ** EDGE
        return min(max(_interpolate(low, high), low.rate_per_s * edge), high.rate_per_s / edge)
    num_steps = sum(run.margin is not None for run in own)
    factor = min(step ** (2 ** min(num_steps - 1, 8)), LARGEST_STEP)
    return _within(low.rate_per_s * factor if low else _rate(high or own[-1]) / factor, search)


def _interpolate(low: Evidence, high: Evidence) -> float:
    """Where the figure is at its limit between a rate that passes and one that fails.

    Linear in 1 / figure and 1 / rate, as the mean wait of a queue is: where the backlog grows, 1 / figure has
    come down to 0 at the rate that is served. The middle where the failing end has no figure.
    """
    if not high.has_figure and high.served_per_s is None:
        return sqrt(low.rate_per_s * high.rate_per_s)
    assert low.margin is not None
    assert high.margin is not None
    above, below = exp(-low.margin) - 1, 1 - (exp(-high.margin) if high.served_per_s is None else 0.0)
    share = above / (above + below)
    return 1 / ((1 - share) / low.rate_per_s + share / _top(low, high))


def _without_confidence(
    replicates: Sequence[Sequence[Evidence]], runs: Sequence[Evidence], said: Capacity
) -> Capacity:
    """The answer of too few replicates, or of runs too short: the narrowest bracket of one replicate, else of
    all runs, of those that were long enough.
    """
    shortfall = max((said.shortfall or 0.0, *(run.shortfall for own in replicates for run in own)))
    long_enough = [[run for run in own if run.is_long_enough] for own in (*replicates, runs)]
    brackets = [Bracket.of(own) for own in long_enough]
    for some in (brackets[:-1], brackets[-1:]):
        whole = [(b.low.rate_per_s, b.high.rate_per_s) for b in some if b.low and b.high]
        if whole and shortfall <= 1:
            low, high = min(whole, key=lambda ends: ends[1] / ends[0])
            return replace(said, answer=Answer.BRACKET, low_per_s=low, high_per_s=high, shortfall=None)
    passing = max((run.rate_per_s for run in long_enough[-1] if run.passes), default=None)
    return replace(said, answer=Answer.UNDECIDED, low_per_s=passing, shortfall=shortfall or None)


def _is_lost(own: Sequence[Evidence]) -> bool:
    return sum(run.margin is None for run in own) >= MAX_UNDECIDED


def _replicates(runs: Sequence[Evidence], length_s: float) -> list[list[Evidence]]:
    """The runs of each replicate in order, of those that are as long."""
    full = [run for run in _full(runs) if run.trial.length_s == length_s]
    num_replicates = max((run.trial.replicate + 1 for run in full), default=0)
    return [[run for run in full if run.trial.replicate == number] for number in range(num_replicates)]


def _full(runs: Sequence[Evidence]) -> list[Evidence]:
    return [run for run in runs if not run.trial.is_probe]


def _within(rate_per_s: float, search: Search) -> float:
    return min(max(rate_per_s, search.lowest_per_s), search.highest_per_s)


def _rate(run: Evidence) -> float:
    return run.rate_per_s
