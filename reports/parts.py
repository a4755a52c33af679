"""Parts of a run as tables: the same figures per class, turn, prompt length and slice of time.

Decides labels and columns; a p99 of few values is left out, for it is no more than their largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.pages import Table
from reports.quantities import DASH, format_count, format_percent, format_time
from reports.words import MIN_VALUES_FOR_P99, printable

NAMES = {
    "turn": ("session turn", "turn, from 0"),
    "prefix": ("prefix cache", "prompt"),
    "prompt_tokens_up_to": ("prompt length", "tokens, up to"),
    "from_s": ("time", "from second"),
}
METRICS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "max_gap_s": "worst stall"}


def part_tables(groups: Mapping[str, Any]) -> list[Table]:
    """Lay out every parting of summary.json's `groups`."""
    return [_table(name, parts) for name, parts in groups.items()]


def _table(name: str, parts: list[Mapping[str, Any]]) -> Table:
    has_slo = any(part.get("attained_fraction") is not None for part in parts)
    heading, first = NAMES.get(name, (name, name))
    columns = [first, "scheduled", "ok", *(["attained"] if has_slo else [])]
    columns += [f"{label} {statistic}" for label in METRICS.values() for statistic in ("p50", "p99")]
    return Table(
        heading=f"By {heading}", columns=columns, rows=[_row(part, has_slo=has_slo) for part in parts]
    )


def _row(part: Mapping[str, Any], *, has_slo: bool) -> list[str]:
    cells = [printable(_key(part["key"])), format_count(part["scheduled"]), format_count(part["ok"])]
    if has_slo:
        cells.append(format_percent(part.get("attained_fraction")))
    for name in METRICS:
        metric = part.get(name) or {}
        cells.append(format_time(metric.get("p50")))
        cells.append(format_time(metric.get("p99")) if metric.get("n", 0) >= MIN_VALUES_FOR_P99 else DASH)
    return cells


def _key(key: Any) -> str:
    return f"{key:g}" if isinstance(key, float) else str(key)
