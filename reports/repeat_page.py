"""Runs of one question as one self-contained HTML page: figures with intervals over the runs, each run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.measure.replicates import DOCUMENT, read_document
from reports.canvas import BLUE, INK, MUTED
from reports.figure_spec import FigureSpec
from reports.pages import Cell, SeriesPage, Table, run_link
from reports.quantities import format_percent
from reports.repeat import format_interval, format_named, objectives, shown_figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]
RUN_FIGURES = ("ttft.p50", "ttft.p99", "itl.p50", "itl.p99", "e2e.p99", "ok")


def describe_runs(folder: Path) -> SeriesPage:
    """Return the page of the runs whose repeat.json lies in `folder`."""
    document = read_document(folder / DOCUMENT)
    runs, figures = document["runs"], document["figures"]
    num_valid = sum(not run["reasons"] for run in runs)
    return SeriesPage(
        kind="repeat",
        folder=folder,
        badge="VALID" if num_valid == len(runs) else "INVALID",
        claim=f"{num_valid} of {len(runs)} measurements can be trusted",
        answer=_answer(figures, num_valid),
        notes=[
            *(f"{sentence}." for sentence in objectives(document)),
            "One question, asked once a run, each with a seed of its own; intervals are over the runs.",
        ],
        before=[
            Table(
                heading="Over all valid runs",
                columns=["figure", "mean of runs", "95 % interval", "spread"],
                rows=[_figure_row(name, figures[name]) for name in shown_figures(document)],
            )
        ],
        figures=REPEAT_FIGURES,
        after=[
            Table(
                heading="Every run",
                columns=["run", "verdict", "seed", *RUN_FIGURES],
                rows=[_run_row(run, folder) for run in runs],
                texts=frozenset([1]),
            )
        ],
        document=document,
    )


def _answer(figures: Json, num_valid: int) -> str:
    ttft = figures.get("ttft.p99")
    if ttft is None:
        return f"{num_valid} valid runs: no first token to be told of."
    told = f"Over {num_valid} valid runs the TTFT p99 is {format_named('ttft.p99', ttft['value'])}"
    if ttft["interval"] is None:
        return f"{told}; one run has no interval."
    return f"{told}, with 95 % confidence {format_interval('ttft.p99', ttft['interval'])}."


def _figure_row(name: str, figure: Json) -> list[str]:
    interval = format_interval(name, figure["interval"])
    return [name, format_named(name, figure["value"]), interval, format_percent(figure["spread"])]


def _run_row(run: Json, folder: Path) -> list[str | Cell]:
    verdict = Cell(text=", ".join(run["reasons"]), badge="INVALID" if run["reasons"] else "VALID")
    figures = [format_named(name, run["figures"].get(name)) for name in RUN_FIGURES]
    return [run_link(folder, run["folder"], run["folder"]), verdict, str(run["seed"]), *figures]


def draw_spread(document: Json, axes: list[Axes]) -> bool:
    """Draw every figure as a row: its runs as dots around their mean, the interval of the mean as a bar."""
    (ax,) = axes
    names = [name for name in shown_figures(document) if document["figures"][name]["value"]][::-1]
    valid = [run["figures"] for run in document["runs"] if not run["reasons"]]
    for row, name in enumerate(names):
        figure = document["figures"][name]
        change = [100 * (run[name] / figure["value"] - 1) for run in valid]
        ax.plot(change, [row] * len(change), "o", color=MUTED, markersize=3, alpha=0.6)
        if figure["interval"]:
            ends = [100 * (end / figure["value"] - 1) for end in figure["interval"]]
            ax.plot(ends, [row, row], color=BLUE, linewidth=1.6)
    ax.axvline(0, color=INK, linewidth=0.6)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, max(len(names), 1) - 0.4)
    ax.set_xlabel("from the mean of the runs, %")
    ax.grid(axis="y", visible=False)
    return bool(names) and len(valid) > 1


REPEAT_FIGURES: dict[str, FigureSpec[Json]] = {
    "spread": FigureSpec(
        title="How far the runs lie apart",
        caption="Each dot is one valid run; the bar is the 95 % interval of the mean.",
        draw=draw_spread,
        height_inches=5.4,
    ),
}
