"""A comparison as one self-contained HTML page: a verdict a figure, each pair as a point, the runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.measure.replicates import read_document
from reports.canvas import BLUE, INK, MUTED, SHADE, VERMILLION
from reports.compare import describe_test, format_change, format_interval
from reports.figure_spec import FigureSpec, draw_all
from reports.pages import data_link, page_template, template_text
from reports.repeat import format_named
from reports.sides import cause_sentences, side_columns, side_figures, side_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]
ROW_INCHES = 0.32


def render_comparison(folder: Path) -> str:
    """Return the page of the comparison whose compare.json lies in `folder`."""
    document = read_document(folder / "compare.json")
    raw = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    sides = document.get("sides") or []
    comparisons = [one for one in document["comparisons"] if one["figures"]]
    specs: dict[str, FigureSpec[Json]] = {
        f"pairs-{number}": FigureSpec(
            title=f"{one['base']} → {one['arm']}",
            caption="Each dot is one pair of runs on the same requests; the bar is the interval of their "
            "mean, the shaded band the change that does not matter.",
            draw=partial(draw_changes, one),
            height_inches=1.0 + ROW_INCHES * len(one["figures"]),
        )
        for number, one in enumerate(comparisons)
    }
    return page_template("compare.html").render(
        name=folder.resolve().name,
        css=template_text("page.css"),
        margin=f"{100 * document['rule']['margin']:g} %",
        comparisons=[_comparison(one) for one in document["comparisons"]],
        arms=[_arm(arm, folder) for arm in document["arms"]],
        columns=side_columns(sides),
        sides=side_rows(sides),
        causes=cause_sentences(sides),
        figures=draw_all({**side_figures(len(sides)), **specs}, document),
        raw=raw,
        data_link=data_link(raw),
    )


def render_comparison_markdown(folder: Path) -> str:
    """Return the arms side by side, where their time goes and every decision, for a document or a summary."""
    from reports.export.markdown import escape, table

    document = read_document(folder / "compare.json")
    sides = document.get("sides") or []
    blocks = [f"## bench compare: {escape(folder.resolve().name)}"]
    blocks.append(table(side_columns(sides), [[escape(cell) for cell in row] for row in side_rows(sides)]))
    blocks.append("\n".join(f"- {escape(name)}: {escape(said)}" for name, said in cause_sentences(sides)))
    for one in document["comparisons"]:
        rows = [
            [f["name"], f["change"], format_change(f["ratio"]), format_interval(f["interval"])]
            for f in one["figures"]
        ]
        blocks.append(f"### {escape(one['base'])} → {escape(one['arm'])}")
        blocks.append(table(["figure", "verdict", "change", "95 % interval"], rows))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _comparison(one: Json) -> dict[str, Any]:
    return {
        "title": f"{one['base']} → {one['arm']}",
        "notes": [*one["notes"], *(f"left out: {said}" for said in one["left_out"])],
        "rows": [
            {
                "name": figure["name"],
                "is_primary": figure["is_primary"],
                "change": figure["change"],
                "cells": [
                    format_change(figure["ratio"]),
                    format_interval(figure["interval"]),
                    format_named(figure["name"], figure["base"]),
                    format_named(figure["name"], figure["other"]),
                ],
                "test": describe_test(figure, one),
            }
            for figure in one["figures"]
        ],
    }


def _arm(arm: Json, folder: Path) -> dict[str, Any]:
    return {
        "name": arm["name"],
        "runs": [
            {
                "name": run["folder"],
                "link": f"{run['folder']}/report.html"
                if (folder / run["folder"] / "report.html").exists()
                else "",
                "remark": ", ".join(run["reasons"]) or "valid",
                "plan": run["plan_digest"],
                "seed": run["seed"],
            }
            for run in arm["replicates"]
        ],
    }


def draw_changes(comparison: Json, document: Json, axes: list[Axes]) -> bool:
    """Draw every figure as a row: its pairs, its interval, the margin as a band around no change."""
    (ax,) = axes
    figures = comparison["figures"][::-1]
    margin = document["rule"]["margin"]
    ax.axvspan(100 / (1 + margin) - 100, 100 * margin, color=SHADE, linewidth=0, zorder=0)
    ax.axvline(0, color=INK, linewidth=0.6)
    for row, figure in enumerate(figures):
        colour = VERMILLION if figure["change"] == "worse" else BLUE
        ax.plot(
            [100 * (ratio - 1) for ratio in figure["ratios"]],
            [row] * len(figure["ratios"]),
            "o",
            color=MUTED,
            markersize=3,
            alpha=0.5,
        )
        if figure["interval"]:
            ends = [100 * (end - 1) for end in figure["interval"]]
            ax.plot(ends, [row, row], color=colour, linewidth=2.2 if figure["is_primary"] else 1.2)
        ax.plot(100 * (figure["ratio"] - 1), row, "|", color=colour, markersize=9)
    ax.set_yticks(range(len(figures)), [figure["name"] for figure in figures])
    ax.set_xlabel(f"{comparison['arm']} against {comparison['base']}, %")
    ax.grid(axis="y", visible=False)
    return bool(figures)
