"""The highest rate that meets an objective: a search that is a pure function of what was measured so far.

A replicate is one seed: the same requests, stretched in time to any rate (common random numbers). Within it
the figure grows with the rate and crosses its limit once; a bracket and a secant find where. Short probes
find the region first, later replicates start where earlier ones crossed, so that requests are spent where the
answer is undecided. Crossings of different seeds are independent: the capacity is a t interval over their
logarithms, centred on the crossing of all replicates together (as sectioning is: Nakayama 2014). How many
replicates: Stein's two stages (1945), which keep the confidence although the number depends on the data.
The search sends nothing and knows no clock; a budget is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, exp, fsum, isfinite, log, log1p, sqrt
from statistics import fmean

INTERPOLATED_RATIO = 1.12  # a bracket this narrow is interpolated where both ends have a figure
NARROW_RATIO = 1.03  # where the failing end has none it is halved until here, and both ends are kept
FIRST_STEP = 1.25
LATER_STEP = 1.08
LARGEST_STEP = 1.6
PROBE_STEP = 2.0
EDGE = 0.15  # how far inside its bracket a secant lands: one that stays at an end would never narrow it
MAX_UNDECIDED = 2
MAX_EXCESS = 3.0
SHARE_OF_SLOPE = 0.5  # the share above a limit saturates, a power does not; chosen by coverage on queues


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run to be made. replicate: its seed, from 0; is_probe: a short one that says where to look."""

    rate_per_s: float
    replicate: int
    is_probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run said. margin: log(figure / limit), the worst of several objectives; 0 or below passes.

    inf: failed whatever the figure (backlog grew, requests failed); None: the measurement was not valid.
    excess: the same of what averages over runs without bias, log(share above the limit / share allowed) for a
    percentile, the margin for a mean; None where it is not known.
    """

    trial: Trial
    margin: float | None
    excess: float | None = None

    @property
    def rate_per_s(self) -> float:
        return self.trial.rate_per_s

    @property
    def passes(self) -> bool:
        return self.margin is not None and self.margin <= 0

    @property
    def fails(self) -> bool:
        return self.margin is not None and self.margin > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched for. precision: wanted half width of the interval, relative; rates per second."""

    start_per_s: float = 1.0
    lowest_per_s: float = 0.1
    highest_per_s: float = 100_000.0
    precision: float = 0.05
    confidence: float = 0.95
    num_pilot: int = 5
    max_replicates: int = 20


class Answer(StrEnum):
    """interval: with the confidence stated; bracket: of one replicate, without; none: no rate passes.

    above: the highest rate passes; undecided: too little was measured, or nothing that is valid.
    """

    INTERVAL = "interval"
    BRACKET = "bracket"
    NONE = "none"
    ABOVE = "above"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """high_per_s: None where no rate failed. num_planned: replicates wanted; None until the pilot is done."""

    answer: Answer
    low_per_s: float | None = None
    high_per_s: float | None = None
    confidence: float | None = None
    num_replicates: int = 0
    num_planned: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """The lowest rate that fails, and the highest below it that passes; None where there is none."""

    low: Evidence | None
    high: Evidence | None

    @classmethod
    def of(cls, runs: Sequence[Evidence]) -> Bracket:
        """Bracket the limit by what was decided."""
        high = min((run for run in runs if run.fails), key=_rate, default=None)
        passing = [run for run in runs if run.passes and (high is None or run.rate_per_s < high.rate_per_s)]
        return cls(low=max(passing, key=_rate, default=None), high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where one replicate crosses the limit: between two rates, which are equal where it is known well.

    above: of the failing end, log(rate / crossing) and excess. is_lowest, is_highest: it lies beyond the
    range of the search.
    """

    low_per_s: float
    high_per_s: float
    above: tuple[float, float] | None = None
    is_lowest: bool = False
    is_highest: bool = False

    @property
    def middle(self) -> float:
        """The logarithm of the rate in the middle."""
        return (log(self.low_per_s) + log(self.high_per_s)) / 2


def next_trial(runs: Sequence[Evidence], search: Search) -> Trial | None:
    """Say which run comes next; None where the answer is as good as was asked, or cannot be had."""
    probes, replicates = _sorted_runs(runs)
    if not replicates and (probe := _next_probe(probes, search)) is not None:
        return probe
    found: list[Crossing] = []
    for number, own in enumerate(replicates):
        if _is_lost(own):
            continue
        crossing = find_crossing(own, search)
        if crossing is None:
            return Trial(rate_per_s=_next_rate(own, found, search), replicate=number)
        if crossing.is_lowest or crossing.is_highest:
            return None
        found.append(crossing)
    if sum(map(_is_lost, replicates)) >= MAX_UNDECIDED:
        return None
    if len(found) >= search.num_pilot and len(found) >= plan_replicates(found, search):
        return None
    return Trial(rate_per_s=_first_rate(found, probes, search), replicate=len(replicates))


def conclude(runs: Sequence[Evidence], search: Search) -> Capacity:
    """Answer with what has been measured so far."""
    _, replicates = _sorted_runs(runs)
    crossings = (find_crossing(own, search) for own in replicates if not _is_lost(own))
    found = [crossing for crossing in crossings if crossing is not None]
    if any(crossing.is_lowest for crossing in found):
        return Capacity(answer=Answer.NONE, num_replicates=len(found))
    if any(crossing.is_highest for crossing in found):
        return Capacity(answer=Answer.ABOVE, low_per_s=search.highest_per_s, num_replicates=len(found))
    if len(found) < 2:
        return _bracketed(replicates, runs, len(found))
    centre, half = _centre(found), _t_times_spread(found, search) / sqrt(len(found))
    slack = fmean(log(crossing.high_per_s / crossing.low_per_s) for crossing in found) / 2
    return Capacity(
        answer=Answer.INTERVAL,
        low_per_s=exp(centre - slack - half),
        high_per_s=exp(centre + slack + half),
        confidence=search.confidence,
        num_replicates=len(found),
        num_planned=plan_replicates(found, search) if len(found) >= search.num_pilot else None,
    )


def find_crossing(own: Sequence[Evidence], search: Search) -> Crossing | None:
    """Where the runs of one replicate cross the limit; None while that is not known well enough."""
    bracket = Bracket.of(own)
    low, high = bracket.low, bracket.high
    if high is not None and high.rate_per_s <= search.lowest_per_s:
        return Crossing(low_per_s=high.rate_per_s, high_per_s=high.rate_per_s, is_lowest=True)
    if low is not None and low.rate_per_s >= search.highest_per_s:
        return Crossing(low_per_s=low.rate_per_s, high_per_s=low.rate_per_s, is_highest=True)
    if low is None or high is None:
        return None
    ratio = high.rate_per_s / low.rate_per_s
    if ratio <= INTERPOLATED_RATIO and _has_figure(high):
        at = _interpolate(low, high)
        above = None if high.excess is None else (log(high.rate_per_s / at), min(high.excess, MAX_EXCESS))
        return Crossing(low_per_s=at, high_per_s=at, above=above)
    return Crossing(low_per_s=low.rate_per_s, high_per_s=high.rate_per_s) if ratio <= NARROW_RATIO else None


def plan_replicates(found: Sequence[Crossing], search: Search) -> int:
    """How many replicates the wanted precision takes, by the spread of the pilot's crossings."""
    wanted = ceil((_t_times_spread(found, search) / log1p(search.precision)) ** 2)
    return min(max(wanted, search.num_pilot), search.max_replicates)


def _t_times_spread(found: Sequence[Crossing], search: Search) -> float:
    """t times the standard deviation of the pilot's crossings around their centre."""
    from scipy.special import stdtrit

    pilot = found[: search.num_pilot]
    centre, freedom = _centre(pilot), len(pilot) - 1
    squares = fsum((crossing.middle - centre) ** 2 for crossing in pilot)
    return float(stdtrit(freedom, (1 + search.confidence) / 2)) * sqrt(squares / freedom)


def _centre(found: Sequence[Crossing]) -> float:
    """The logarithm of the rate at which all replicates together cross the limit.

    The mean of the crossings lies too high: a short run rarely holds the worst of the tail. What averages
    without bias is the share above the limit, which grows as (rate / crossing)^k: together they cross it at
    the power mean of the crossings with exponent -k.
    """
    middles = [crossing.middle for crossing in found]
    above = [crossing.above for crossing in found if crossing.above is not None]
    distance = fsum(log_ratio for log_ratio, _ in above)
    k = SHARE_OF_SLOPE * fsum(excess for _, excess in above) / distance if distance > 0 else 0.0
    if k <= 0:
        return fmean(middles)
    least = min(middles)
    return least - log(fmean(exp(-k * (middle - least)) for middle in middles)) / k


def _next_probe(probes: Sequence[Evidence], search: Search) -> Trial | None:
    """Double while probes pass, halve while they do not; None once they have bracketed the answer."""
    passing = max((probe.rate_per_s for probe in probes if probe.passes), default=None)
    failing = min((probe.rate_per_s for probe in probes if not probe.passes), default=None)
    if passing is not None and failing is not None:
        return None
    rate = search.start_per_s
    if passing is not None:
        rate = passing * PROBE_STEP
    elif failing is not None:
        rate = failing / PROBE_STEP
    rate = _within(rate, search)
    return None if rate in (passing, failing) else Trial(rate_per_s=rate, replicate=0, is_probe=True)


def _first_rate(found: Sequence[Crossing], probes: Sequence[Evidence], search: Search) -> float:
    """Where a replicate starts: at the crossings so far; the first at the low end of the probes' bracket."""
    if found:
        return _within(exp(fmean(crossing.middle for crossing in found)), search)
    low = Bracket.of(probes).low
    return search.lowest_per_s if low is None else low.rate_per_s


def _next_rate(own: Sequence[Evidence], found: Sequence[Crossing], search: Search) -> float:
    """Where a replicate goes on: inside its bracket, or further and further out until there is one."""
    if own[-1].margin is None:
        return own[-1].rate_per_s
    bracket = Bracket.of(own)
    low, high = bracket.low, bracket.high
    if low is not None and high is not None:
        edge: float = (high.rate_per_s / low.rate_per_s) ** EDGE
        return min(max(_interpolate(low, high), low.rate_per_s * edge), high.rate_per_s / edge)
    num_steps = sum(run.margin is not None for run in own)
    factor = min((LATER_STEP if found else FIRST_STEP) ** (2 ** min(num_steps - 1, 8)), LARGEST_STEP)
    return _within(low.rate_per_s * factor if low else _rate(high or own[-1]) / factor, search)


def _interpolate(low: Evidence, high: Evidence) -> float:
    """Where the margin is 0 between a rate that passes and one that fails, linear in logarithms.

    The middle where the failing end has no figure.
    """
    share = 0.5
    if _has_figure(high):
        assert low.margin is not None
        assert high.margin is not None
        share = low.margin / (low.margin - high.margin)
    ratio: float = (high.rate_per_s / low.rate_per_s) ** share
    return low.rate_per_s * ratio


def _has_figure(run: Evidence) -> bool:
    return run.margin is not None and isfinite(run.margin)


def _bracketed(
    replicates: Sequence[Sequence[Evidence]], runs: Sequence[Evidence], num_found: int
) -> Capacity:
    """The answer of too few replicates: the narrowest bracket of one of them, else of all runs."""
    for sets in (replicates, [runs]):
        brackets = [Bracket.of(own) for own in sets]
        whole = [(b.low.rate_per_s, b.high.rate_per_s) for b in brackets if b.low and b.high]
        if whole:
            low, high = min(whole, key=lambda ends: ends[1] / ends[0])
            return Capacity(answer=Answer.BRACKET, low_per_s=low, high_per_s=high, num_replicates=num_found)
    passing = max((run.rate_per_s for run in runs if run.passes), default=None)
    return Capacity(answer=Answer.UNDECIDED, low_per_s=passing, num_replicates=num_found)


def _is_lost(own: Sequence[Evidence]) -> bool:
    return sum(run.margin is None for run in own) >= MAX_UNDECIDED


def _sorted_runs(runs: Sequence[Evidence]) -> tuple[list[Evidence], list[list[Evidence]]]:
    """Probes, and the runs of each replicate in order."""
    full = [run for run in runs if not run.trial.is_probe]
    num_replicates = max((run.trial.replicate + 1 for run in full), default=0)
    return (
        [run for run in runs if run.trial.is_probe],
        [[run for run in full if run.trial.replicate == number] for number in range(num_replicates)],
    )


def _within(rate_per_s: float, search: Search) -> float:
    return min(max(rate_per_s, search.lowest_per_s), search.highest_per_s)


def _rate(run: Evidence) -> float:
    return run.rate_per_s
