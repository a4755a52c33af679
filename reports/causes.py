"""What the tail is made of, in words: the causes of summary.json's `attribution` as sentences and a table.

Decides wording, order and what is too small to be said; every figure comes from the summary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.quantities import DASH, format_count, format_percent, format_time
from reports.words import printable

METRICS = {"ttft_s": "TTFT", "itl_s": "ITL", "e2e_s": "E2E"}
MIN_SHARE = 0.05
MIN_NEGATIVE_SHARE = 0.03
MAX_CAUSES = 3
MIN_TAIL = 3  # of fewer it is said how many they are

CAUSES = {
    "client": "client and network",
    "not sent": "due, not sent",
    "no answer": "sent, no first token",
    "wait_align": "waiting for the step in progress",
    "wait_slot": "waiting for a slot in the batch",
    "wait_budget": "waiting for room in a step's token budget",
    "wait_memory": "waiting for KV memory",
    "wait_order": "waiting behind a request that does not fit",
    "wait_policy": "waiting while the policy runs others",
    "wait_gate": "waiting while evictions keep admission shut",
    "preempted": "evicted, waiting to come back",
    "stall_prefill": "resident, standing by for the prompts of others",
    "stall_decode": "resident, standing by for the decodes of others",
    "host": "the engine between steps",
    "own": "own work",
    "batch": "batch mates",
    "interference": "the prompts of others in the same step",
    "recompute": "computing again what an eviction lost",
    "swap": "copying memory to and from the host",
    "residual": "not explained by the cost model",
    "solo_prefill": "computing the prompt, as alone",
    "wait_before_first": "waiting before the first token, or sharing its steps",
}


def cause_name(cause: str) -> str:
    """Name a cause in words; one that is not known keeps its own name."""
    return CAUSES.get(cause, printable(cause))


def largest_cause(seconds: Mapping[str, float]) -> str:
    """Name what most of a request's time went to, with its share; a dash where it is not known."""
    if not seconds:
        return DASH
    cause = max(seconds, key=lambda name: seconds[name])
    return f"{format_percent(seconds[cause] / sum(seconds.values()))} {cause_name(cause)}"


def tail_sentences(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say for each latency what sets its slowest hundredth apart; nothing where no engine kept account."""
    tails = (summary.get("attribution") or {}).get("tails") or {}
    return [(label, _sentence(tails[name])) for name, label in METRICS.items() if tails.get(name)]


def _sentence(tail: Mapping[str, Any]) -> str:
    slow, rest = format_time(tail["tail_s"]), format_time(tail["rest_s"])
    means = f"mean {slow}, of the rest {rest}"
    if tail["num_tail"] < MIN_TAIL:
        few = "slowest" if tail["num_tail"] == 1 else f"slowest {tail['num_tail']}"
        means = f"the {few} of {format_count(tail['n'])}: {slow}, mean of the rest {rest}"
    known = [
        (cause["share"], cause_name(cause["cause"])) for cause in tail["causes"] if cause["share"] is not None
    ]
    if not known:
        return f"no tail to speak of ({means})"
    more = [f"{format_percent(share)} {name}" for share, name in known if share >= MIN_SHARE]
    less = [
        f"less {format_percent(-share)} {name}"
        for share, name in reversed(known)
        if share <= -MIN_NEGATIVE_SHARE
    ]
    named = [*more[:MAX_CAUSES], *less[:MAX_CAUSES]]
    return f"{', '.join(named) or 'no cause stands out'} ({means})"


def inferred_sentences(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say what was inferred from outside of a server that keeps no account; nothing where nothing was."""
    found = summary.get("inferred") or {}
    if not found:
        return []
    lines = []
    if found["ttft_s"]:
        solo = found["solo"]
        told = f"{solo['method']}, {format_count(solo['num_requests'])} of them"
        lines.append(("TTFT", f"{_sentence(found['ttft_s'])}; computing alone as {told}"))
    lines += [("gaps", text) for text in [_gaps(found["gaps"] or {})] if text]
    server = found["server"]
    said = [text.format(show(server[name])) for name, (text, show) in SERVER_SIGNS.items() if name in server]
    return [*lines, *([("server", ", ".join(said))] if said else [])]


SERVER_SIGNS = {
    "queue_mean_s": ("{} in its queue on average", format_time),
    "waiting_max": ("at most {} waiting", format_count),
    "num_preemptions": ("{} evictions", format_count),
    "kv_usage_max": ("KV memory up to {} full", format_percent),
}


def _gaps(gaps: Mapping[str, Any]) -> str:
    """Say what long gaps have in common; nothing where none is long."""
    if not gaps.get("num_long"):
        return ""
    firsts, chance = gaps["first_token_fraction"], gaps["first_token_by_chance"]
    suspect = ""
    if firsts > max(0.5, 2 * chance):
        suspect = ": prompts of others are the likely cause"
    elif gaps["coincide_fraction"] > 0.5:
        suspect = ": something stops all streams at once"
    num, time = format_count(gaps["num_long"]), format_percent(gaps["long_time_fraction"])
    return (
        f"{num} above three medians, {time} of all time between tokens;"
        f" {format_percent(gaps['coincide_fraction'])} coincide with one of another stream,"
        f" in {format_percent(firsts)} a first token came out ({format_percent(chance)} by chance){suspect}"
    )


def cause_table(summary: Mapping[str, Any]) -> list[list[str]]:
    """Lay out every cause: its name, then for each latency what it adds in the tail, and that as a share."""
    tails = (summary.get("attribution") or {}).get("tails") or {}
    found = {
        name: {cause["cause"]: cause for cause in (tails.get(name) or {}).get("causes", ())}
        for name in METRICS
    }
    return [
        [cause_name(cause), *(cell for name in METRICS for cell in _cells(found[name].get(cause)))]
        for cause in dict.fromkeys(cause for causes in found.values() for cause in causes)
    ]


def _cells(cause: Mapping[str, Any] | None) -> tuple[str, str]:
    if cause is None:
        return DASH, DASH
    share = DASH if cause["share"] is None else format_percent(cause["share"])
    return format_time(cause["excess_s"]), share
