"""What is said beside the reasons: findings about the server, and warnings of what a figure does not carry.

Neither makes a measurement invalid. Checks as in `verdict`: pure functions of what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadgen.measure.backlog import TOLERATED, Backlog, Trend
from loadgen.measure.columns import Columns, Floats, Window
from loadgen.measure.metrics import Steps
from loadgen.measure.verdict import Notice
from loadgen.records import Outcome
from loadgen.units import format_seconds

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


def backlog(found: Backlog, length_s: float) -> Notice | None:
    """The backlog grows, or the run is too short to tell; None where it is steady. length_s: of the run."""
    if found.trend == Trend.STEADY or found.answer_s is None:
        return None
    if found.trend == Trend.UNDECIDED:
        return Notice(
            code="undecided",
            message=(
                f"{format_seconds(length_s)}, {found.num} requests after the first answer: they do not tell "
                f"whether the backlog grows (a long answer takes {format_seconds(found.answer_s)})."
            ),
            advice=f"A run of {found.needed_s:.0f} s should tell (--duration {found.needed_s:.0f}s).",
        )
    share = "" if found.shortfall is None else f"{100 * found.shortfall:.0f} % of "
    return Notice(
        code="unstable",
        message=(
            f"the backlog grows: {share}what came was not done in its time, limit {100 * TOLERATED:.0f} %, "
            "and requests took ever longer."
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
