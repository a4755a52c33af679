"""One run as one self-contained HTML page: no network, no script needed, light, dark and paper.

Decides the order of the page and what stands in each table; `reports.words` writes the sentences,
`reports.figures` draws. Everything that came from outside is escaped by the template engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reports import facts, words
from reports.causes import METRICS, cause_table, inferred_sentences, largest_cause, tail_sentences
from reports.figure_spec import draw_all
from reports.figures import FIGURES
from reports.pages import data_link, page_template
from reports.parts import part_tables
from reports.quantities import choose_time_unit, format_count, format_time
from reports.subject import Subject

if TYPE_CHECKING:
    from loadgen.store import Run

STATISTICS = ("mean", "p50", "p90", "p99", "p99.9", "max")
TABLE_METRICS = {
    "ttft_s": "TTFT",
    "ttft_from_send_s": "TTFT from send",
    "itl_s": "ITL (each gap)",
    "tpot_s": "TPOT (mean gap)",
    "e2e_s": "E2E",
    "max_gap_s": "worst stall",
    "send_lag_s": "send lag",
    "recv_lag_s": "receive lag",
}


SLOWEST_COLUMNS = (
    "request",
    "scheduled at",
    "prompt tokens",
    "output tokens",
    "TTFT",
    "worst stall",
    "E2E",
    "TTFT went to",
)


def render_run(run: Run) -> str:
    """Return the page of one run, complete in itself."""
    subject = Subject.of(run)
    summary = subject.summary
    raw = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False)
    return page_template("run.html").render(
        name=run.path.name,
        status=words.status(summary),
        claim=words.claim(run.manifest, summary),
        answer=words.answer(summary),
        notices=words.notices(summary),
        rates=words.rate_pairs(summary),
        context=words.context_lines(run.manifest, summary),
        latency_columns=["metric", "unit", *STATISTICS, "p99 interval (95 %)", "n"],
        rows=latency_rows(summary["metrics"]),
        figures=draw_all(FIGURES, subject),
        causes=cause_table(summary),
        cause_columns=["cause", *(f"{m} {what}" for m in METRICS.values() for what in ("excess", "share"))],
        tails=tail_sentences(summary),
        inferred=inferred_sentences(summary),
        slowest=_slowest(subject),
        slowest_columns=SLOWEST_COLUMNS,
        parts_of_run=part_tables(summary.get("groups") or {}),
        dialects=[
            (tool, facts.flatten(figures)) for tool, figures in (summary.get("dialects") or {}).items()
        ],
        failures=words.failure_rows(run),
        counts=summary["counts"],
        command=facts.command(run.manifest),
        tables=facts.tables(run.manifest),
        settings=facts.settings(run.manifest),
        raw=raw,
        data_link=data_link(raw),
        format_count=format_count,
    )


def latency_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Lay out the headline table: one unit a row, intervals beside the p99."""
    rows = []
    for name, label in TABLE_METRICS.items():
        metric = metrics.get(name)
        if not metric:
            continue
        values = [metric.get(statistic) for statistic in STATISTICS]
        unit = choose_time_unit(values)
        cells = [words.cell(metric, statistic, unit) for statistic in STATISTICS]
        interval, num = words.interval(metric, "p99", unit), format_count(metric.get("n"))
        rows.append([label, unit.name, *cells, interval, num])
    return rows


def _slowest(subject: Subject) -> list[list[str]]:
    """Lay out the requests of the tail, every cell as text."""
    return [
        [
            format_count(slow.index),
            f"{slow.scheduled_s:.2f} s",
            format_count(slow.prompt_tokens),
            format_count(slow.output_tokens),
            *map(format_time, (slow.ttft_s, slow.max_gap_s, slow.e2e_s)),
            largest_cause(causes),
        ]
        for slow, causes in zip(subject.slowest, subject.slowest_causes, strict=True)
    ]
