"""What is said beside the reasons: findings about the server, and warnings of what a figure does not carry.

Neither makes a measurement invalid. Checks as in `verdict`: pure functions of what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadgen.measure.columns import Columns, Floats, Window
from loadgen.measure.metrics import Steps
from loadgen.measure.verdict import Notice
from loadgen.records import Outcome

BACKLOG_SECTIONS = 10
BACKLOG_ALPHA = 0.001
MIN_BACKLOG_ARRIVALS = 20  # fewer say nothing about a trend
BACKLOG_GROWTH = 0.5
BUSY_PRESSURE_PERCENT = 20.0


def failures(counts: Mapping[str, int]) -> Notice | None:
    """Some requests failed. counts: by outcome."""
    total, failed = sum(counts.values()), sum(n for name, n in counts.items() if name != Outcome.OK)
    if failed == 0:
        return None
    kinds = ", ".join(
        f"{n} {name}" for name, n in sorted(counts.items(), key=lambda kind: -kind[1]) if name != Outcome.OK
    )
    return Notice(
        code="failures",
        message=f"{failed} of {total} requests failed ({100 * failed / total:.3g} %): {kinds}.",
        advice="Successes alone flatter the server: read ttft_with_failures_s beside ttft_s.",
    )


def unstable(steps: Steps, window: Window) -> Notice | None:
    """The backlog grows: requests in flight climb from section to section of the window.

    A least-squares slope over ten sections, the first left out (a run starts empty); one-sided t test at 0.1
    %, and growth over the window of more than half the mean and at least two requests.
    """
    from scipy.special import stdtr

    levels = section_means(steps, window, BACKLOG_SECTIONS)[1:]
    num_arrivals = int((np.diff(steps.level, prepend=0) > 0).sum())
    if len(levels) < 3 or np.ptp(levels) == 0 or num_arrivals < MIN_BACKLOG_ARRIVALS:
        return None
    x = np.arange(len(levels)) - (len(levels) - 1) / 2
    slope = float(x @ levels / (x @ x))
    residuals = levels - levels.mean() - slope * x
    freedom = len(levels) - 2
    error = float(np.sqrt(residuals @ residuals / freedom / (x @ x)))
    p = 0.0 if error == 0 else float(stdtr(freedom, -slope / error))
    growth = slope * len(levels)
    if p >= BACKLOG_ALPHA or growth <= max(2.0, BACKLOG_GROWTH * float(levels.mean())):
        return None
    return Notice(
        code="unstable",
        message=(
            f"the backlog grows: {growth:.0f} more requests in flight at the end of the window than at its "
            f"start (mean {np.mean(levels):.0f}), limit {100 * BACKLOG_GROWTH:.0f} % of the mean."
        ),
        advice="The offered rate is above capacity: these latencies grow with the length of the run.",
    )


def section_means(steps: Steps, window: Window, num_sections: int) -> Floats:
    """Time-weighted mean level in equal sections of the window; empty for an empty window."""
    if not window.length_s > 0 or len(steps.time_ns) == 0:
        return np.zeros(0)
    area = np.concatenate([[0.0], np.cumsum(steps.level[:-1] * np.diff(steps.time_ns))])
    edges = np.linspace(window.start_ns, window.end_ns, num_sections + 1)
    return np.asarray(np.diff(np.interp(edges, steps.time_ns, area)) / np.diff(edges), np.float64)


def closed_loop(concurrency: int | None, max_in_flight: int | None) -> Notice | None:
    """The loop was closed by a flag: the server slows its own load down."""
    if concurrency is None and max_in_flight is None:
        return None
    if concurrency is not None:
        message = f"closed loop, {concurrency} requests at a time: a slow server lowers its own load."
    else:
        message = f"at most {max_in_flight} requests in flight: latencies include any wait for a place."
    return Notice(code="closed_loop", message=message, advice="Use --rate alone to see what users would see.")


def tokens_unknown(output_tokens: Floats) -> Notice | None:
    """The server does not say how many tokens it wrote."""
    unknown = int(np.isnan(output_tokens).sum())
    if unknown == 0:
        return None
    return Notice(
        code="tokens_unknown",
        message=f"{unknown} of {len(output_tokens)} answers do not tell their number of tokens: not in TPOT.",
        advice="Use a server that reports usage; event_gap_s needs no counts.",
    )


def prompts_estimated(columns: Columns, how: str | None) -> Notice | None:
    """Prompt lengths were planned by an estimate; how: which one, None where they are exact."""
    if how is None:
        return None
    ok = columns.is_ok & ~np.isnan(columns.prompt_tokens)
    ratio = np.median(columns.prompt_tokens[ok] / columns.prompt_tokens_planned[ok]) if ok.any() else None
    counted = "" if ratio is None else f"; the server counted {ratio:.2f} times as many (median)"
    return Notice(
        code="prompts_estimated",
        message=f"planned prompt tokens are {how}{counted}.",
        advice="Read prompt_tokens, which the server counted; prompt_tokens_planned is no yardstick here.",
    )


def no_first_token(first_token_ns: Floats) -> Notice | None:
    """Some ok answers held no token-bearing event."""
    missing = int(np.isnan(first_token_ns).sum())
    if missing == 0:
        return None
    return Notice(
        code="no_first_token",
        message=f"{missing} of {len(first_token_ns)} ok answers held no token-bearing event: not in TTFT.",
        advice="Answers that are not streamed have no first token; use e2e_s.",
    )


def cpu_pressure(percent: float | None) -> Notice | None:
    """Tasks of this machine waited for a processor."""
    if percent is None or percent <= BUSY_PRESSURE_PERCENT:
        return None
    return Notice(
        code="cpu_pressure",
        message=f"tasks waited for a CPU {percent:.0f} % of the time, limit {BUSY_PRESSURE_PERCENT:.0f} %.",
        advice="A server on this machine waited too, and its latencies say so; free it, or use another.",
    )


def imported(facts: Mapping[str, Any] | None) -> Notice | None:
    """Another tool measured; what its file does not say cannot be judged."""
    if facts is None:
        return None
    return Notice(
        code="imported",
        message=f"measured by {facts['tool']}; not known: {'; '.join(facts['missing'])}.",
        advice="Its client was not judged: measure with bench run to know how far its figures hold.",
    )
