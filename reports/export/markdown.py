"""A run as Markdown (GitHub's flavour): for a step summary, an issue, a design document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from reports import words
from reports.quantities import choose_time_unit, format_count
from reports.subject import Subject

if TYPE_CHECKING:
    from loadgen.store import Run

STATISTICS = ("p50", "p90", "p99", "max")


def render_markdown(run: Run) -> str:
    """Return verdict, answer, rates, latency table and failures of a run."""
    summary = Subject.of(run).summary
    notices = [
        f"- **{notice.severity} `{notice.code}`**: {escape(f'{notice.message} {notice.advice}'.strip())}"
        for notice in words.notices(summary)
    ]
    rates = words.rate_pairs(summary)
    blocks = [
        f"## {words.status(summary)}: {escape(run.path.name)}",
        escape(words.answer(summary)),
        "\n".join(notices),
        table([name for name, _ in rates], [[value for _, value in rates]]),
        table(["latency", *STATISTICS, "p99 interval (95 %)", "n"], _latency_rows(summary)),
        _failures(run),
        "\n".join(f"- {name}: {escape(text)}" for name, text in words.context_lines(run.manifest, summary)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _latency_rows(summary: words.Json) -> list[list[str]]:
    rows = []
    for name, label in words.LATENCY_ROWS.items():
        metric = summary["metrics"].get(name) or {}
        values = [metric.get(statistic) for statistic in STATISTICS]
        unit = choose_time_unit(values)
        cells = [words.cell(metric, statistic, unit) for statistic in STATISTICS]
        rows.append(
            [
                f"{label} ({unit.name})",
                *cells,
                words.interval(metric, "p99", unit),
                format_count(metric.get("n")),
            ]
        )
    return rows


def _failures(run: Run) -> str:
    rows = [[format_count(row.count), f"`{row.label}`", escape(row.error)] for row in words.failure_rows(run)]
    return table(["failed", "kind", "words"], rows) if rows else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a pipe table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Make text from outside inert in Markdown: no markup, no HTML, no mention, no new line or cell."""
    # A zero-width space after @ keeps a server's error message from paging somebody.
    one_line = " ".join(text.split()).replace("@", "@\u200b")
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", one_line)
