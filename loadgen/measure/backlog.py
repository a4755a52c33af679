"""Does the backlog grow? Told by what requests took against the instant at which they were due.

While the first answers are being written, requests in flight grow to rate x E2E by themselves, and nothing is
completed: their number says nothing before an answer's length has passed. What each took, by its scheduled
instant, has no such beginning. Both are watched after it, from third to third: a queue shows in the first, a
server that serves everybody slower in the second. Chance is held against it by the dispersion of the arrivals
and of the lengths. Where the rate asked for is known, the same requests are laid on even distances at that
rate: by how much later they left, one by one (the lag), no longer depends on how the arrivals fell.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import Any

import numpy as np

from loadgen.measure.columns import OUTCOMES, Columns, Floats
from loadgen.measure.metrics import in_flight_steps
from loadgen.records import Outcome

MIN_ARRIVALS = 20  # after the fill-up
MIN_ANSWERS = 4  # lengths of an answer that a run must last: the fill-up, and three to compare
MARGIN = 1.25
MIN_RUN_S = 30.0
NUM_SECTIONS = 12
FAST = 0.02  # the share of requests that nothing held up
MISSED = 0.1  # a rate that far above capacity must not be called steady
TOLERATED = 0.03
SURE, LIKELY = 3.5, 1.5  # standard errors
MIN_GROWTH = 3.0  # requests
BEND = 0.4  # growth from the second third to the last, of that before: what settles grows less and less
SLOWING, FAR_SLOWING = 1.04, 1.5
MIN_DISPERSION = 0.05  # arrivals at even distances
IDLE_REQUESTS, IDLE_SHARE = 0.25, 0.05
END_OF_RUN = OUTCOMES.index(Outcome.CANCELLED)
CUT_SHORT = [OUTCOMES.index(outcome) for outcome in (Outcome.TIMEOUT, Outcome.STALLED, Outcome.CANCELLED)]


class Trend(StrEnum):
    """What a run says of its backlog; not shown to grow is not steady."""

    STEADY = "steady"
    UNSTABLE = "unstable"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """num: requests judged. answer_s: what a long answer takes where nothing holds it up. shortfall: which
    share of the rate was not served, were it asked for at even distances. needed_s: how long a run should
    tell, where this one does not.
    """

    trend: Trend
    num: int = 0
    answer_s: float | None = None
    shortfall: float | None = None
    needed_s: float | None = None


def is_steady(summary: dict[str, Any]) -> bool | None:
    """What a summary says of its backlog; None where it is undecided, or was not judged."""
    found = summary.get("backlog")
    return {Trend.STEADY: True, Trend.UNSTABLE: False}.get(found["trend"]) if found else None


def run_length_s(answer_s: float, rate_per_s: float) -> float:
    """How long a first run at a rate must be to tell whether its backlog grows, by how long answers last.

    Where it does not tell all the same (near saturation), `Backlog.needed_s` goes on from there.
    """
    return max(MIN_RUN_S, MARGIN * MIN_ANSWERS * answer_s, 5 * MIN_ARRIVALS / rate_per_s)


def judge_backlog(columns: Columns, length_s: float, rate_per_s: float | None = None) -> Backlog:
    """Judge the requests of an open loop. length_s: of the schedule, from 0; rate_per_s: the mean rate that
    was asked for, None where only the arrivals themselves tell it (a trace).
    """
    at, took, waited = equal_answers(columns)
    if len(at) == 0 or not length_s > 0:
        return Backlog(trend=Trend.UNDECIDED)
    rate = rate_per_s or len(columns) / length_s
    cv2, longest = spread_of_lengths(columns)
    fast = float(np.quantile(took, FAST))
    answer_s = max(fast, 0.0) * longest
    start_s = min(answer_s, length_s / MIN_ANSWERS)
    rows = at >= start_s
    num = int(rows.sum())
    if num >= MIN_ARRIVALS and length_s < MIN_ANSWERS * answer_s and slowing(columns, rate) > FAR_SLOWING:
        # the more there are, the slower all become: no answer tells what one takes that nothing holds up
        return Backlog(trend=Trend.UNSTABLE, num=num, answer_s=answer_s)
    if num < MIN_ARRIVALS or length_s < MIN_ANSWERS * answer_s:
        needed = max(run_length_s(answer_s, rate), MARGIN * length_s)
        return Backlog(trend=Trend.UNDECIDED, num=num, answer_s=answer_s, needed_s=needed)
    at, took, waited = at[rows], took[rows], waited[rows]
    scheduled = np.sort(columns.scheduled_ns) / 1e9
    dispersion = dispersion_of(scheduled, start_s, length_s)
    noise = sqrt((dispersion + cv2) / num)
    # of a busy server only: how requests came shows in what leaves no longer, but for an answer's length
    own_noise = sqrt((cv2 + dispersion * min(1.0, (rate * answer_s + 1) / num)) / num)
    # against even distances at the rate; a trace is the rate
    late = at - np.searchsorted(scheduled, at) / rate_per_s if rate_per_s else np.zeros(num)
    level = in_flight_at(columns, at, columns.ended_ns) / rate
    if (columns.outcome_code == END_OF_RUN).any():  # they took the longer, the earlier they were due
        first = np.where(np.isnan(columns.first_token_ns), columns.ended_ns, columns.first_token_ns)
        waited, judged = in_flight_at(columns, at, first) / rate, [level]
    else:
        judged = [took, level]
    series = [Drift.of(at, values, late) for values in judged]
    waiting_per_s = Drift.of(at, waited, late).per_s

    def is_growing(one: Drift) -> bool:
        is_sure = one.per_s > SURE * noise and one.lag > TOLERATED
        is_likely = rate_per_s and one.per_s > LIKELY * noise and one.lag > TOLERATED + SURE * own_noise
        is_much = one.per_s * rate * (length_s - start_s) > MIN_GROWTH and num > MIN_ARRIVALS * dispersion
        if not (one.is_rising and is_much and (is_sure or is_likely)):
            return False
        return waiting_per_s >= one.per_s / 2 or slowing(columns, rate) > SLOWING

    def is_carried(one: Drift) -> bool:
        return one.per_s < MISSED / 2 and one.lag < MISSED - TOLERATED / 2 - SURE * own_noise

    lag = series[0].lag
    excess = rate * float(took.mean() - fast)
    is_idle = excess <= max(IDLE_REQUESTS, IDLE_SHARE * noise * num) and lag < 1.5 * MISSED
    carried = [is_carried(one) for one in series]
    if all(carried) or (is_idle and series[0].per_s < MISSED / 2):
        trend = Trend.STEADY
    elif any(map(is_growing, series)) and not any(carried):
        trend = Trend.UNSTABLE
    else:
        trend = Trend.UNDECIDED
    return Backlog(
        trend=trend,
        num=num,
        answer_s=answer_s,
        shortfall=lag / (1 + lag) if lag > 0 else lag,
        needed_s=2 * length_s if trend == Trend.UNDECIDED else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How a series (seconds) moves with the scheduled instant. per_s: its slope; lag: the same, of
    requests laid on even distances; is_rising: from third to third, and not ever less.
    """

    per_s: float
    lag: float
    is_rising: bool

    @classmethod
    def of(cls, at: Floats, values: Floats, late: Floats) -> Drift:
        """at: when each was due; late: by how much that was later than on even distances."""
        sections = np.array_split(np.arange(len(at)), NUM_SECTIONS)
        x, *means = ([float(v[rows].mean()) for rows in sections] for v in (at, values, values + late))
        per_s, lag = (slope(np.array(x), np.array(y)) for y in means)
        first, middle, last = (float(part.mean()) for part in np.array_split(values, 3))
        even = [float(part.mean()) for part in np.array_split(values + late, 3)]
        is_bent = last - middle <= BEND * (middle - first) or even[2] - even[1] <= BEND * (even[1] - even[0])
        return cls(per_s=per_s, lag=lag, is_rising=first < middle < last and not is_bent)


def answer_length_s(columns: Columns) -> float:
    """What a long answer takes where nothing holds it up: after that, answers flow. 0 without answers."""
    _, took, _ = equal_answers(columns)
    return max(float(np.quantile(took, FAST)), 0.0) * spread_of_lengths(columns)[1] if len(took) else 0.0


def equal_answers(columns: Columns) -> tuple[Floats, Floats, Floats]:
    """When each request was due, what it would have taken with an answer of mean length, and what it waited
    for its first token; in s, by the instant due. What was cut short took that long at least; what was
    refused is left out.
    """
    is_cut = np.isin(columns.outcome_code, CUT_SHORT)
    ended = np.where(np.isnan(columns.last_token_ns) | is_cut, columns.ended_ns, columns.last_token_ns)
    rows = np.flatnonzero((columns.is_ok | is_cut) & ~np.isnan(ended))
    rows = rows[np.argsort(columns.scheduled_ns[rows], kind="stable")]
    ended, scheduled = ended[rows], columns.scheduled_ns[rows]
    first = np.where(np.isnan(columns.first_token_ns[rows]), ended, columns.first_token_ns[rows])
    tokens = np.where(is_cut[rows], np.nan, columns.output_tokens[rows])
    known = tokens > 0
    took = ended - scheduled
    if known.any():
        per_token_ns = (ended - first)[known].sum() / tokens[known].sum()
        took = took - np.where(known, per_token_ns * (tokens - tokens[known].mean()), 0.0)
    return scheduled / 1e9, took / 1e9, (first - scheduled) / 1e9


def spread_of_lengths(columns: Columns) -> tuple[float, float]:
    """Squared coefficient of variation of the answers' tokens; a long one (p90) over the mean."""
    tokens = columns.output_tokens[columns.is_ok & (columns.output_tokens > 0)]
    if len(tokens) == 0:
        return 0.0, 1.0
    mean = float(tokens.mean())
    return float(tokens.var()) / mean**2, max(1.0, float(np.quantile(tokens, 0.9)) / mean)


def dispersion_of(scheduled_s: Floats, start_s: float, end_s: float) -> float:
    """Variance over mean of the arrivals in equal parts of the run, the largest over three sizes of part."""
    found = [MIN_DISPERSION]
    for num_parts in (20, 10, 6):
        counts, _ = np.histogram(scheduled_s, num_parts, (start_s, end_s))
        found.append(float(counts.var(ddof=1) / max(counts.mean(), 1e-9)))
    return max(found)


def in_flight_at(columns: Columns, at_s: Floats, until_ns: Floats) -> Floats:
    """How many requests had been sent at these instants, and had not come as far as `until_ns`."""
    was_sent = ~np.isnan(columns.sent_ns)
    edges = (np.sort(stamps[was_sent]) for stamps in (columns.sent_ns, until_ns))
    sent, ended = (np.searchsorted(stamps, at_s * 1e9, side="right") for stamps in edges)
    return np.asarray(sent - ended, np.float64)


def slowing(columns: Columns, rate_per_s: float) -> float:
    """By how many seconds an answer of mean length is longer written for one more in flight, times the rate.

    Above 1, no number in flight is enough for a server that takes all at once and serves them slower.
    """
    rows = columns.is_ok & (columns.output_tokens > 1) & (columns.last_token_ns > columns.sent_ns)
    if rows.sum() < MIN_ARRIVALS:
        return 0.0
    one, steps = columns.only(np.asarray(rows)), in_flight_steps(columns)
    area = np.concatenate([[0.0], np.cumsum(steps.level[:-1] * np.diff(steps.time_ns))])
    met = np.diff(np.interp([one.sent_ns, one.last_token_ns], steps.time_ns, area), axis=0)[0]
    level = met / (one.last_token_ns - one.sent_ns)
    writing = (one.last_token_ns - one.first_token_ns) / (one.output_tokens - 1)
    written_s = writing * one.output_tokens.mean() / 1e9
    return rate_per_s * slope(level, written_s, one.output_tokens)


def slope(x: Floats, y: Floats, weights: Floats | None = None) -> float:
    """Least squares; 0 where x does not move."""
    x = x - np.average(x, weights=weights)
    squares = np.average(x * x, weights=weights)
    return float(np.average(x * y, weights=weights) / squares) if squares > 1e-12 else 0.0
