"""A study as one self-contained HTML page: the table of claims, then each experiment with its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.measure.replicates import read_document
from reports.figure_spec import draw_all
from reports.pages import data_link, page_template, template_text
from reports.quantities import format_count
from reports.study import format_cells, origin, tally
from reports.study_figures import chart_spec

Json = Mapping[str, Any]


def render_study(folder: Path) -> str:
    """Return the page of the study whose study.json lies in `folder`."""
    document = read_document(folder / "study.json")
    raw = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return page_template("study.html").render(
        name=folder.resolve().name,
        css=template_text("page.css") + template_text("study.css"),
        tally=tally(document),
        origin=origin,
        document=document,
        claims=[(one, claim) for one in document["experiments"] for claim in one["claims"]],
        sections=[_section(one, folder) for one in document["experiments"]],
        raw=raw,
        data_link=data_link(raw),
    )


def _section(experiment: Json, folder: Path) -> dict[str, Any]:
    return {
        "experiment": experiment,
        "size": _size(experiment),
        "figures": [
            figure
            for number, chart in enumerate(experiment["charts"])
            for figure in draw_all({f"{experiment['name']}-{number}": chart_spec(chart)}, chart)
        ],
        "commands": list(dict.fromkeys(_command(experiment, row) for row in experiment["rows"])),
        "rows": [
            {
                "arm": row["arm"],
                "cells": format_cells(experiment, row),
                "runs": [{**run, "link": _link(run["folder"], folder)} for run in row["runs"]],
            }
            for row in experiment["rows"]
        ],
    }


def _command(experiment: Json, row: Json) -> str:
    command = row["command"]
    return command if experiment["kind"] == "device" else f"{command} --seed {row['runs'][0]['seed']}"


def _size(experiment: Json) -> str:
    if not experiment["num_requests"]:
        return ""
    runs, requests = experiment["num_runs"], experiment["num_requests"]
    seeds = experiment["num_seeds"]
    over = f"{seeds} seeds an arm; figures are means over them" if seeds > 1 else "one seed an arm"
    return f"{format_count(runs)} runs, {format_count(requests)} requests, {over}."


def _link(name: str, folder: Path) -> str:
    """The run's own page where it was drawn, else its summary, else whatever lies there."""
    for file in ("report.html", "summary.json", "curve.json"):
        if (folder / name / file).exists():
            return f"{name}/{file}"
    return ""
