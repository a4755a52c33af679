"""Which requests count: the window of scheduled instants, after a warm-up.

`auto` cuts by MSER-5 over TTFT, E2E and requests in flight, each in scheduled order and as *ranks*: on raw
latencies MSER prefers cuts that throw away slow bursts, and a stationary queue's p99 comes out 10 % too low
(3 % with ranks; n = 600, load 0.5 and 0.7). The largest of the three cuts holds for every metric.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadgen.measure.backlog import answer_length_s
from loadgen.measure.columns import Bools, Columns, Floats, Window
from loadgen.measure.metrics import in_flight_steps
from loadgen.stats.steady import MIN_VALUES, drifts, mser5_truncation

FILLED = 0.01  # of the window: a fill-up as short as that changes no rate
MIN_FLOW = 0.1  # of the window
SHARE_OF_FILL_UP = 0.1  # of the requests: a longer one says nothing of steadiness


def schedule_end_ns(columns: Columns, workload: dict[str, Any], is_open: Bools, *, is_closed: bool) -> float:
    """When the schedule ends: the duration asked for, else one mean gap after the last arrival.

    Turns that a slow server has pushed beyond the duration are sent, and lie outside. Where no gaps say how
    fast requests come (a closed loop, or all of them at one instant), it ends with the last answer.
    """
    scheduled_ns = columns.scheduled_ns
    if len(scheduled_ns) == 0:
        return 0.0
    last = float(scheduled_ns.max())
    duration_s = workload.get("duration_s")
    if duration_s and not workload.get("trace") and not workload.get("num_requests"):
        return max(float(duration_s) * 1e9, float(scheduled_ns[is_open].max(initial=0)) + 1)
    span = last - float(scheduled_ns.min())
    if span == 0 or is_closed:
        return max(last + 1, last_sign_ns(columns, last))
    return last + span / (len(scheduled_ns) - 1)


def last_sign_ns(columns: Columns, default_ns: float) -> float:
    """When a run last sent or heard anything: rates of one that was cut short end there."""
    signs = np.concatenate([columns.sent_ns, columns.ended_ns[~np.isnan(columns.sent_ns)]])
    signs = signs[~np.isnan(signs)]
    return float(signs.max()) + 1 if len(signs) else default_ns


def choose_window(columns: Columns, warmup_s: float | None, end_ns: float) -> Window:
    """Leave out the warm-up: `warmup_s` seconds, or None to find its end. Judge the rest for steadiness."""
    if warmup_s is not None:
        start_ns = warmup_s * 1e9
        _, is_steady = _find_start(columns, start_ns)
        method = f"fixed warm-up of {warmup_s:g} s" if warmup_s else "no warm-up"
        return Window(start_ns=start_ns, end_ns=end_ns, method=method, is_steady=is_steady)
    start_ns, is_steady = _find_start(columns, 0.0)
    method = {
        None: f"auto: fewer than {MIN_VALUES} answers one after the other, nothing left out",
        False: "auto (MSER-5): no steady state found, nothing left out",
        True: "auto (MSER-5)",
    }[is_steady]
    return Window(start_ns=start_ns if is_steady else 0.0, end_ns=end_ns, method=method, is_steady=is_steady)


def find_flow(columns: Columns, window: Window, *, is_closed: bool) -> Window | None:
    """The part of the window in which answers are completed as they come: after an answer's length, and in a
    closed loop until the last request left. None where less than a tenth of an open loop is left; all of a
    closed one, or of requests of one instant, that were one or two waves.
    """
    start_ns, end_ns = answer_length_s(columns) * 1e9, window.end_ns
    is_closed |= len(columns) > 0 and np.ptp(columns.scheduled_ns) == 0
    if start_ns - window.start_ns <= FILLED * window.length_s * 1e9 and not is_closed:
        return window
    if is_closed:
        end_ns = min(end_ns, float(np.nanmax(columns.sent_ns, initial=0)))
    start_ns = max(start_ns, window.start_ns)
    if end_ns - start_ns >= MIN_FLOW * window.length_s * 1e9 > 0:
        return Window(start_ns=start_ns, end_ns=end_ns)
    return window if is_closed else None


def _find_start(columns: Columns, from_ns: float) -> tuple[float, bool | None]:
    """Where the last of the series settles, and whether all do; None with too few answers, or all at once."""
    is_answered = columns.is_ok & ~np.isnan(columns.first_token_ns) & (columns.scheduled_ns >= from_ns)
    rows = np.flatnonzero(is_answered)
    counts = rows[np.argsort(columns.scheduled_ns[rows], kind="stable")]
    scheduled = columns.scheduled_ns[counts]
    if len(scheduled) < MIN_VALUES or scheduled[0] == scheduled[-1]:
        return from_ns, None
    steps = in_flight_steps(columns)
    level = np.append(steps.level, 0)[np.searchsorted(steps.time_ns, scheduled, side="right") - 1]
    # while the first answers are being written, requests in flight climb by themselves; of short answers that
    # is a matter of a few requests, which MSER finds
    first_flowing = int(np.searchsorted(scheduled, scheduled[0] + 1e9 * answer_length_s(columns)))
    if first_flowing < SHARE_OF_FILL_UP * len(scheduled):
        first_flowing = 0
    series = [(0, columns.first_token_ns[counts] - scheduled), (0, columns.last_token_ns[counts] - scheduled)]
    if len(scheduled) - first_flowing >= MIN_VALUES:
        series.append((first_flowing, level[first_flowing:]))
    is_steady, start = True, 0
    for first, values in series:
        ranks = _ranks(values)
        cut = mser5_truncation(ranks)
        # of a short series in a steady state, MSER takes the shortest rest one time in ten
        is_steady &= cut.reached_steady_state or not drifts(ranks)
        if cut.reached_steady_state and cut.num_dropped:
            start = max(start, first + cut.num_dropped)
    return (float(scheduled[start]) if start else from_ns), is_steady


def _ranks(values: Floats) -> Floats:
    """Ranks from 1, equal values sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], np.float64)
