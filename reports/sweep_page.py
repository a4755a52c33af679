"""A sweep over rates as one self-contained HTML page: where it saturates, a table, figures, its runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.measure.replicates import read_document
from reports.pages import Cell, SeriesPage, Table, run_link
from reports.quantities import format_count, format_number, format_time
from reports.sweep import NOT_STEADY, curves_of, objectives, sentences
from reports.sweep_figures import sweep_figures

COLUMNS = (
    "asked",
    "verdict",
    "offered",
    "ok",
    "output tok/s",
    "goodput",
    "TTFT p50",
    "TTFT p99",
    "ITL p50",
    "ITL p99",
    "E2E p99",
)
LATENCIES = (("ttft_s", "p50"), ("ttft_s", "p99"), ("itl_s", "p50"), ("itl_s", "p99"), ("e2e_s", "p99"))


def describe_sweep(folder: Path) -> SeriesPage:
    """Return the page of the sweep whose sweep.json lies in `folder`."""
    sweep = read_document(folder / "sweep.json")
    points = [(curve["name"], point) for curve in curves_of(sweep) for point in curve["points"]]
    num_invalid = sum(point["status"] != "valid" for _, point in points)
    told = f"{num_invalid} of {len(points)} measurements cannot" if num_invalid else "every measurement can"
    said = "; ".join(sentences(sweep))
    is_alone = len(curves_of(sweep)) == 1  # a policy's name stays as it is
    return SeriesPage(
        kind="sweep",
        folder=folder,
        badge="INVALID" if num_invalid else "VALID",
        claim=f"{told} be trusted",
        answer=f"{said[0].upper() + said[1:] if is_alone else said}.",
        notes=[f"{sentence}." for sentence in objectives(sweep)],
        before=[
            Table(
                heading="One run a rate",
                columns=COLUMNS,
                rows=[_row(name, point, folder) for name, point in points],
                texts=frozenset([1]),
            )
        ],
        figures=sweep_figures(sweep),
        after=[],
        document=sweep,
    )


def _row(curve: str, point: Mapping[str, Any], folder: Path) -> list[str | Cell]:
    rates = ("offered_per_s", "ok_per_s", "output_tokens_per_s", "goodput_per_s")
    return [
        run_link(folder, point["folder"], f"{curve} {point['rate_per_s']:g} /s".strip()),
        Cell(text=_remark(point), badge="VALID" if point["status"] == "valid" else "INVALID"),
        *(format_number(point[name]) for name in rates),
        *(format_time(point["latency"][metric].get(statistic)) for metric, statistic in LATENCIES),
    ]


def _remark(point: Mapping[str, Any]) -> str:
    remarks = [*point["reasons"]]
    if not point["is_stable"]:
        remarks.append(NOT_STEADY[point["is_stable"]])
    if point["failed"]:
        remarks.append(f"{format_count(point['failed'])} failed")
    return ", ".join(remarks)
