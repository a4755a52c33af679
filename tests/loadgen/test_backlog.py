"""The backlog judged against servers of known capacity (benchmarks/backlog.py), and runs that cannot tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.backlog import ABOVE, BELOW, SERVERS, Case, cases, decide, in_batches, in_slots, simulate
from loadgen.measure import remarks
from loadgen.measure.backlog import Backlog, Trend, judge_backlog, run_length_s
from loadgen.measure.columns import Columns, Floats, Window
from loadgen.measure.window import find_flow
from loadgen.records import Outcome
from tests.loadgen.rows import codes, make_columns

ROOMY = Case(server="slots", size=4096, arrival="poisson", lengths="fixed", load=4 / 227.6, answer_s=18.0)


@pytest.mark.parametrize("server", [name for name, _ in SERVERS])
def test_no_false_unstable_below_capacity_and_no_miss_above(server: str) -> None:
    """`python -m benchmarks.backlog` does the same 200 times."""
    decided = [
        (case, decide(case, number).backlog.trend)
        for number in range(4)
        for case in cases(BELOW + ABOVE, number)
        if case.server == server
    ]
    assert not [case for case, trend in decided if case.load < 1 and trend != Trend.STEADY]
    assert not [case for case, trend in decided if case.load > 1 and trend != Trend.UNSTABLE]


def test_long_answers_are_no_backlog() -> None:
    """Room for 4,096 and answers of 18 s: in 30 s nearly all that comes stays in flight."""
    short = judge_backlog(simulate(ROOMY, 1, 30.0), 30.0, ROOMY.rate_per_s)
    assert (short.trend, short.num > 20) == (Trend.UNDECIDED, True)
    assert short.answer_s == pytest.approx(18)
    assert short.needed_s == pytest.approx(90)
    assert run_length_s(18.0, 4.0) == 90
    assert judge_backlog(simulate(ROOMY, 1, 90.0), 90.0, ROOMY.rate_per_s).trend == Trend.STEADY


def test_run_length_follows_the_answers_and_the_rate() -> None:
    assert run_length_s(0.1, 20.0) == 30.0
    assert run_length_s(60.0, 20.0) == 300.0
    assert run_length_s(0.1, 0.5) == 200.0


def test_a_trace_is_its_own_rate() -> None:
    for load, trend in ((0.7, Trend.STEADY), (1.5, Trend.UNSTABLE)):
        case = replace(ROOMY, size=16, load=load, answer_s=2.0)
        assert judge_backlog(simulate(case, 3, 120.0), 120.0).trend == trend


def test_what_is_refused_is_no_backlog_and_what_is_cut_short_is() -> None:
    """Twice what the server can do: it refuses every second request, or lets the client give up at 10 s."""
    case = replace(ROOMY, size=8, load=2.0, answer_s=2.0)
    columns = simulate(case, 5, 60.0)
    half = np.arange(len(columns)) % 2 == 0
    kept = columns.only(half)
    first, last = in_slots(kept.scheduled_ns / 1e9, kept.output_tokens, 10)
    served = answered(columns, half, first, last, Outcome.HTTP_STATUS)
    assert judge_backlog(served, 60.0, case.rate_per_s).trend != Trend.UNSTABLE
    gave_up = columns.last_token_ns > columns.scheduled_ns + 10e9
    ended = np.where(gave_up, columns.scheduled_ns + 10e9, columns.done_ns)
    outcome = np.where(gave_up, codes([Outcome.TIMEOUT])[0], columns.outcome_code).astype(np.int8)
    cut = replace(columns, done_ns=ended, outcome_code=outcome)
    assert judge_backlog(cut, 60.0, case.rate_per_s).trend != Trend.STEADY


def test_what_the_end_of_the_run_cuts_short_is_seen_in_flight() -> None:
    """Those due first have been in flight the longest when all are given up: their times fall."""
    for load, trend in ((4.0, Trend.UNSTABLE), (0.5, Trend.STEADY)):
        case = replace(ROOMY, size=8, load=load, answer_s=2.0)
        columns = simulate(case, 5, 60.0)
        left = columns.done_ns > 61e9
        ended = np.where(left, 61e9, columns.done_ns)
        outcome = np.where(left, codes([Outcome.CANCELLED])[0], columns.outcome_code).astype(np.int8)
        first = np.where(columns.first_token_ns > 61e9, np.nan, columns.first_token_ns)
        cut = replace(columns, done_ns=ended, last_token_ns=ended, first_token_ns=first, outcome_code=outcome)
        assert judge_backlog(cut, 60.0, case.rate_per_s).trend == trend


def answered(columns: Columns, rows: np.ndarray, first: Floats, last: Floats, otherwise: Outcome) -> Columns:
    """Some rows answered at these instants (s), the others not at all."""
    instants = {"first_token_ns": first, "last_token_ns": last, "done_ns": last}
    changed = {name: np.full(len(columns), np.nan) for name in instants}
    for name, values in instants.items():
        changed[name][rows] = values * 1e9
    outcome = np.where(rows, columns.outcome_code, codes([otherwise])[0]).astype(np.int8)
    return replace(columns, **changed, outcome_code=outcome)


def test_nothing_answered_tells_nothing() -> None:
    refused = make_columns(
        50, outcome_code=codes([Outcome.HTTP_STATUS])[0], last_token_ns=np.nan, first_token_ns=np.nan
    )
    found = judge_backlog(refused, 50.0, 1.0)
    assert found == Backlog(trend=Trend.UNDECIDED)
    assert remarks.backlog(found, 50.0) is None


def test_what_is_said() -> None:
    assert remarks.backlog(Backlog(trend=Trend.STEADY, answer_s=1.0), 30.0) is None
    told = remarks.backlog(Backlog(trend=Trend.UNSTABLE, answer_s=1.0, shortfall=0.21), 30.0)
    assert told is not None
    assert (told.code, "21 % of what came" in told.message) == ("unstable", True)
    told = remarks.backlog(Backlog(trend=Trend.UNDECIDED, num=70, answer_s=18.0, needed_s=90.0), 30.0)
    assert told is not None
    assert (told.code, "--duration 90s" in told.advice) == ("undecided", True)


def test_rates_are_of_the_part_in_which_answers_flow() -> None:
    columns = simulate(replace(ROOMY, arrival="constant"), 1, 30.0)
    window = Window(start_ns=0.0, end_ns=30e9)
    flow = find_flow(columns, window, is_closed=False)
    assert flow is not None
    assert flow.start_ns == pytest.approx(18e9, rel=0.01)
    assert flow.end_ns == 30e9
    assert flow.holds(columns.last_token_ns).sum() / flow.length_s == pytest.approx(4.0, rel=0.03)
    assert find_flow(columns, Window(start_ns=0.0, end_ns=19e9), is_closed=False) is None
    quick = make_columns(100)
    assert find_flow(quick, window, is_closed=False) is window


def test_a_saturated_server_has_one_throughput_however_much_is_asked() -> None:
    """Whole batches of 32 answers of 5 s: 6.4 requests/s."""
    for load in (1.2, 2.0, 4.0):
        case = Case(server="batches", size=32, arrival="poisson", lengths="fixed", load=load, answer_s=5.0)
        columns = simulate(case, 2, 60.0)
        flow = find_flow(columns, Window(start_ns=0.0, end_ns=60e9), is_closed=False)
        assert flow is not None
        assert flow.holds(columns.last_token_ns).sum() / flow.length_s == pytest.approx(6.4, rel=0.1)


def test_a_closed_loop_is_rated_without_its_drain() -> None:
    """Ten at a time, each 1 s: ten a second, from the first answer to the last request."""
    starts = np.repeat(np.arange(20.0), 10)
    first, last = in_batches(starts, np.full(200, 33.0), 10)
    ns = {"scheduled_ns": starts, "sent_ns": starts, "first_token_ns": first, "last_token_ns": last}
    columns = make_columns(200, **{name: values * 1e9 for name, values in ns.items()}, done_ns=last * 1e9)
    window = Window(start_ns=0.0, end_ns=21e9)
    flow = find_flow(columns, window, is_closed=True)
    assert flow is not None
    assert flow.start_ns == pytest.approx(1e9, rel=0.05)
    assert flow.end_ns == 19e9
    one_wave = columns.only(starts == 0.0)
    assert find_flow(one_wave, window, is_closed=True) is window
