"""A sweep over rates as one self-contained HTML page: where it saturates, a table, figures, its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.measure.replicates import read_document
from reports.figure_spec import draw_all
from reports.pages import data_link, page_template, template_text
from reports.quantities import format_count, format_number, format_time
from reports.sweep import curves_of, sentences
from reports.sweep_figures import SWEEP_FIGURES

COLUMNS = (
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


def render_sweep(folder: Path) -> str:
    """Return the page of the sweep whose sweep.json lies in `folder`."""
    sweep = read_document(folder / "sweep.json")
    raw = json.dumps(sweep, indent=2, ensure_ascii=False, allow_nan=False)
    return page_template("sweep.html").render(
        name=folder.resolve().name,
        css=template_text("page.css"),
        sentence="; ".join(sentences(sweep)),
        columns=COLUMNS,
        rows=[
            {**_row(point, folder), "curve": curve["name"]}
            for curve in curves_of(sweep)
            for point in curve["points"]
        ],
        figures=draw_all(SWEEP_FIGURES, sweep),
        raw=raw,
        data_link=data_link(raw),
    )


def _row(point: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    latency = point["latency"]
    rates = ("offered_per_s", "ok_per_s", "output_tokens_per_s", "goodput_per_s")
    has_report = (folder / point["folder"] / "report.html").exists()
    return {
        "rate": f"{point['rate_per_s']:g} /s",
        "link": f"{point['folder']}/report.html" if has_report else "",
        "verdict": "VALID" if point["status"] == "valid" else "INVALID",
        "remark": _remark(point),
        "cells": [
            *(format_number(point[name]) for name in rates),
            *(format_time(latency[metric].get(statistic)) for metric, statistic in LATENCIES),
        ],
    }


def _remark(point: Mapping[str, Any]) -> str:
    remarks = [*point["reasons"]]
    if not point["is_stable"]:
        remarks.append("unstable")
    if point["failed"]:
        remarks.append(f"{format_count(point['failed'])} failed")
    return ", ".join(remarks)
