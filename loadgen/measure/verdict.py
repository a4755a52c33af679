"""The verdict: is this measurement to be trusted, and if not, why and what to do.

*Reasons* are faults of the measurement and make it invalid; *findings* are about the server and leave it
valid; *warnings* say what a figure does not carry. Each check is a pure function of what was measured that
returns a notice or None, and has a test in which it fires and one in which it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadgen.measure.arrivals import Arrivals
from loadgen.measure.columns import OUTCOMES, Columns, Floats, Window
from loadgen.records import Outcome
from loadgen.units import format_seconds

MAX_MISMATCHED_SHARE = 0.01
MAX_CONTAMINATED_SHARE = 0.01
TEMPLATE_TOKENS = 32  # a chat template and BOS are the same in every request, and rightly cached
MIN_TAIL_EVENTS = 10
MAX_CLOCK_STEP_S = 0.001
GONE = (Outcome.CONNECT_FAILED, Outcome.RESET)
OUR_LIMITS = {  # how an error begins that is this machine's, and what to do
    "EMFILE": "Raise the limit of open files (ulimit -Hn)",
    "ENFILE": "Raise the system's limit of open files (fs.file-max)",
    "EADDRNOTAVAIL": "Widen net.ipv4.ip_local_port_range or leave --fresh-connections out",
    "ENOBUFS": "Free memory for sockets",
    "ENOMEM": "Free memory",
}
BROKE_OFF = {
    "failed": "the load generator broke before the run was whole (a full disk, a folder that is gone).",
    "running": "the run broke off, or has not ended; rows that were not on disk are lost.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing to say; the message holds the value seen and the limit, the advice what to do."""

    code: str
    message: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Valid where there is no reason against it."""

    reasons: tuple[Notice, ...]
    findings: tuple[Notice, ...]
    warnings: tuple[Notice, ...]

    @property
    def is_valid(self) -> bool:
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """The verdict as it stands in summary.json."""
        return {
            "status": "valid" if self.is_valid else "invalid",
            "reasons": [asdict(notice) for notice in self.reasons],
            "findings": [asdict(notice) for notice in self.findings],
            "warnings": [asdict(notice) for notice in self.warnings],
        }


def arrivals_mismatch(arrivals: Arrivals) -> Notice | None:
    """What was sent is not the process that was asked for."""
    failed = [test for test in arrivals.tests if test.has_failed]
    if not failed:
        return None
    shown = "; ".join(
        f"{test.name} {test.value:.3g} for {test.expected:.3g}, off by {test.effect:+.2g}, "
        f"limit {test.effect_limit:g}" + (f" (p = {test.p:.1g})" if test.p is not None else "")
        for test in failed
    )
    return Notice(
        code="arrivals_mismatch",
        message=f"what was sent is not {arrivals.asked}: {shown}.",
        advice="Lower --rate (--trace-speed) or add --workers; a server that refuses thins what is sent.",
    )


def too_few_samples(label: str, share: float, num_tail_events: float | None, n: int) -> Notice | None:
    """A percentile rests on fewer than ten independent values beyond it."""
    num = num_tail_events or 0.0
    if num >= MIN_TAIL_EVENTS:
        return None
    needed = np.ceil(MIN_TAIL_EVENTS / num * n) if num > 0 else np.ceil(MIN_TAIL_EVENTS / (1 - share))
    return Notice(
        code="too_few_samples",
        message=f"{label} rests on {num:.1f} independent tail events (n = {n}), limit {MIN_TAIL_EVENTS}.",
        advice=f"Measure some {needed:.0f} requests (--duration, --requests), or name a lower percentile.",
    )


def not_steady(window: Window) -> Notice | None:
    """Latency still moves at the end of the run: no cut leaves a steady rest."""
    if window.is_steady is not False:
        return None
    return Notice(
        code="not_steady",
        message=f"no steady state in {window.length_s:.0f} s: latencies drift to the end (MSER-5).",
        advice="Run longer (--duration), lower --rate, or set --warmup by hand.",
    )


def token_mismatch(columns: Columns, *, is_prompt_exact: bool = True) -> Notice | None:
    """The server read or wrote another number of tokens than planned, in more than 1 % of the ok requests.

    Outputs must be exact, prompts within max(2 tokens, 1 %), but for those whose length was only estimated.
    Unknown counts are no mismatch (and a warning).
    """
    ok = columns.is_ok
    if not ok.any():
        return None
    found = []
    for kind, seen, planned, slack in (
        ("output", columns.output_tokens[ok], columns.output_tokens_planned[ok], 0.0),
        ("prompt", columns.prompt_tokens[ok], columns.prompt_tokens_planned[ok], 2.0),
    ):
        if kind == "prompt" and not is_prompt_exact:
            continue
        tolerance = np.maximum(slack, 0.01 * planned) if slack else slack
        differs = np.abs(seen - planned) > tolerance
        share = float(differs.mean())
        if share > MAX_MISMATCHED_SHARE:
            found.append(
                f"{100 * share:.1f} % of ok requests have other {kind} tokens than planned "
                f"(mean {np.mean(seen[differs]):.1f} for {np.mean(planned[differs]):.1f})"
            )
    if not found:
        return None
    return Notice(
        code="token_mismatch",
        message=f"{'; '.join(found)}; limit {100 * MAX_MISMATCHED_SHARE:.0f} %.",
        advice="Check that the server honours max_tokens and ignore_eos, and counts tokens as bench does.",
    )


def prefix_contaminated(columns: Columns, allowed_tokens: Floats) -> Notice | None:
    """Prompt tokens came from a cache that this run did not fill; allowed: per row, what the plan shares."""
    ok = columns.is_ok & ~np.isnan(columns.cached_tokens)
    beyond = np.maximum(columns.cached_tokens[ok] - allowed_tokens[ok] - TEMPLATE_TOKENS, 0)
    total = float(columns.prompt_tokens_planned[ok].sum())
    share = float(beyond.sum()) / total if total else 0.0
    if share <= MAX_CONTAMINATED_SHARE:
        return None
    return Notice(
        code="prefix_contaminated",
        message=(
            f"{100 * share:.1f} % of the prompt tokens came from a prefix cache that this run did not fill, "
            f"limit {100 * MAX_CONTAMINATED_SHARE:.0f} %."
        ),
        advice="Restart the server or reset its prefix cache; do not repeat a run's nonce.",
    )


def clock_stepped(num_steps: int, largest_ns: float, sum_ns: float) -> Notice | None:
    """The wall clock was set while kernel stamps (which use it) were being read.

    A stamp is off by what the clock moved since it was last read, a second at most: small steps harm none.
    """
    if num_steps == 0 or largest_ns <= MAX_CLOCK_STEP_S * 1e9:
        return None
    at_once = f"{format_seconds(largest_ns / 1e9)} at once, limit {format_seconds(MAX_CLOCK_STEP_S)} at once"
    return Notice(
        code="clock_stepped",
        message=(
            f"the wall clock was set {num_steps} times during the run, "
            f"by {format_seconds(sum_ns / 1e9)} in all and {at_once}."
        ),
        advice="Let the time daemon slew instead of step, and run again.",
    )


def no_answers(num_counted: int, columns: Columns, window: Window) -> Notice | None:
    """Not one good answer in the window: there is no latency to report. num_counted: of good ones there."""
    if num_counted:
        return None
    num_ok = int(columns.is_ok.sum())
    if not len(columns):
        message = "nothing was scheduled."
    elif num_ok and not window.length_s > 0:
        message = f"the run ended before its warm-up of {window.start_ns / 1e9:g} s did."
    elif num_ok:
        when = f"{window.start_ns / 1e9:.1f} s to {window.end_ns / 1e9:.1f} s"
        message = f"none of the {num_ok} good answers is to a request scheduled in the window ({when})."
    else:
        message = f"none of {len(columns)} requests got a good answer: no latency was measured."
    return Notice(
        code="no_answers",
        message=message,
        advice="See how the requests failed and mend that first; else run longer, or shorten --warmup.",
    )


def client_exhausted(failed: Mapping[str, int], num_scheduled: int) -> Notice | None:
    """This machine had no descriptor, port or memory left for a request. failed: rows by their error."""
    ours = {error: n for error, n in failed.items() if error.partition(":")[0] in OUR_LIMITS}
    if not ours:
        return None
    words = max(ours, key=lambda error: ours[error])
    return Notice(
        code="client_exhausted",
        message=(
            f"{sum(ours.values())} of {num_scheduled} requests could not leave, by no fault of the target: "
            f"{words}, limit 0."
        ),
        advice=f"{OUR_LIMITS[words.partition(':')[0]]}, lower --rate, or cap with --max-in-flight.",
    )


def target_died(columns: Columns, is_alive_at_end: bool) -> Notice | None:
    """The target is gone: its process ended, or nobody is found where it was, asked as the run asked it."""
    if is_alive_at_end:
        return None
    sent = np.flatnonzero(~np.isnan(columns.sent_ns))
    gone = np.isin(columns.outcome_code[sent], [OUTCOMES.index(outcome) for outcome in GONE])
    answered = np.flatnonzero(~gone)
    tail = sent[answered[-1] + 1 :] if len(answered) else sent
    if not len(tail):
        message = "the target was gone at the end of the run; no request came after that."
    else:
        when = f" {columns.scheduled_ns[tail[0]] / 1e9:.1f} s into the run"
        message = f"the target went away{when}: the last {len(tail)} requests were refused or reset."
    return Notice(
        code="target_died",
        message=message,
        advice="Look at its log (engine.log, server.log in the run folder); requests.parquet has the rest.",
    )


def interrupted(status: str) -> Notice | None:
    """The user stopped the run."""
    if status != "interrupted":
        return None
    return Notice(
        code="interrupted",
        message="the run was stopped before its schedule had ended.",
        advice="Run it again; the rows written so far are kept.",
    )


def failed(status: str, worker_errors: Sequence[str]) -> Notice | None:
    """The load generator broke: a load process, the disk, the folder."""
    if worker_errors:
        num = len(worker_errors)
        message = f"{num} load process{'es' if num > 1 else ''} broke: {worker_errors[0].rstrip('.')}."
    elif status in BROKE_OFF:
        message = BROKE_OFF[status]
    else:
        return None
    return Notice(code="failed", message=message, advice="Run it again; the rows written so far are kept.")
