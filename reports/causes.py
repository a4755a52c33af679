"""What the tail is made of, in words: the causes of summary.json's `attribution` as sentences and a table.

Decides wording, order and what is too small to be said; every figure comes from the summary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.quantities import DASH, format_percent, format_time
from reports.words import printable

METRICS = {"ttft_s": "TTFT", "itl_s": "ITL", "e2e_s": "E2E"}
MIN_SHARE = 0.05
MAX_CAUSES = 3

CAUSES = {
    "client": "client and network",
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
}


def cause_name(cause: str) -> str:
    """Name a cause in words; one that is not known keeps its own name."""
    return CAUSES.get(cause, printable(cause))


def tail_sentences(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say for each latency what sets its slowest hundredth apart; nothing where no engine kept account."""
    tails = (summary.get("attribution") or {}).get("tails") or {}
    return [(label, _sentence(tails[name])) for name, label in METRICS.items() if tails.get(name)]


def _sentence(tail: Mapping[str, Any]) -> str:
    means = f"mean {format_time(tail['tail_s'])}, of the rest {format_time(tail['rest_s'])}"
    named = [
        f"{format_percent(cause['share'])} {cause_name(cause['cause'])}"
        for cause in tail["causes"]
        if cause["share"] is not None and cause["share"] >= MIN_SHARE
    ][:MAX_CAUSES]
    return f"{', '.join(named) or 'no cause stands out'} ({means})"


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
