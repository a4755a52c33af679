"""A capacity as one self-contained HTML page: the answer, every run, how far each was from the limit."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.measure.replicates import read_document
from reports.axes import place_legend
from reports.canvas import BLUE, INK, MUTED, SHADE, VERMILLION
from reports.capacity import LABELS, describe_spending, format_figure
from reports.figure_spec import FigureSpec
from reports.pages import Cell, SeriesPage, Table, run_link
from reports.quantities import format_count, format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]


def describe_capacity(folder: Path) -> SeriesPage:
    """Return the page of the search whose capacity.json lies in `folder`."""
    document = read_document(folder / "capacity.json")
    points = sorted(document["points"], key=lambda p: (p["rate_per_s"], p["replicate"]))
    limits = [f"{name} ≤ {format_figure(name, said['limit'])}" for name, said in document["limits"].items()]
    spent = describe_spending(document)
    return SeriesPage(
        kind="capacity",
        folder=folder,
        badge=LABELS[document["answer"]][0],
        claim=", ".join(limits),
        answer=f"{document['sentence']}.",
        notes=[f"A rate holds where every objective is met and the backlog does not grow. Spent {spent}."],
        before=[
            Table(
                heading="Every run",
                columns=["rate", "objective", "seed", *limits, "requests", "failed"],
                rows=[_row(point, document, folder) for point in points],
                texts=frozenset([1]),
            )
        ],
        figures={"margins": margins_figure(document)},
        after=[],
        document=document,
    )


def _row(point: Json, document: Json, folder: Path) -> list[str | Cell]:
    said = {True: "holds", False: "fails", None: "invalid"}[point["passes"]]
    remarks = [said, *(point["reasons"] if point["passes"] is None else [])]
    remarks += ["backlog grows"] if point["is_stable"] is False else []
    return [
        run_link(folder, point["folder"], f"{format_number(point['rate_per_s'])} /s"),
        ", ".join(remarks),
        "probe" if point["is_probe"] else str(point["seed"]),
        *(format_figure(name, point["figures"].get(name)) for name in document["limits"]),
        format_count(point["requests"]),
        format_count(point["failed"]),
    ]


def draw_margins(document: Json, axes: list[Axes]) -> bool:
    """Draw the worst figure over its limit against the rate; a replicate is a line, the interval a band."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (ax,) = axes
    points = [point for point in document["points"] if point["passes"] is not None]
    capacity = document["capacity"]
    if capacity and capacity["low_per_s"] and capacity["high_per_s"]:
        ax.axvspan(capacity["low_per_s"], capacity["high_per_s"], color=SHADE, linewidth=0, zorder=0)
    ax.axhline(1, color=INK, linewidth=0.6)
    known = [point for point in points if point["margin"] is not None]
    for replicate in sorted({point["replicate"] for point in known if not point["is_probe"]}):
        own = [p for p in known if p["replicate"] == replicate and not p["is_probe"]]
        own.sort(key=lambda point: point["rate_per_s"])
        label = "runs of one seed" if replicate == 0 else None
        ax.plot(*_ratios(own), "-o", color=BLUE, linewidth=0.8, markersize=3.5, alpha=0.7, label=label)
    probes = [point for point in known if point["is_probe"]]
    ax.plot(*_ratios(probes), "o", color=MUTED, markersize=3.5, fillstyle="none", label="probes")
    without = [point["rate_per_s"] for point in points if point["margin"] is None]
    if without:
        top = max([1.0, *_ratios(known)[1]])
        ax.plot(
            without, [2 * top] * len(without), "^", color=VERMILLION, label="backlog grows or requests fail"
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("requests/s offered")
    ax.set_ylabel("worst figure / its limit")
    place_legend(ax)
    return bool(points)


def _ratios(points: list[Json]) -> tuple[list[float], list[float]]:
    return [point["rate_per_s"] for point in points], [exp(point["margin"]) for point in points]


def margins_figure(document: Json) -> FigureSpec[Json]:
    """Return the figure of a capacity; its caption speaks of what is drawn."""
    known = [point for point in document["points"] if point["passes"] is not None]
    bands = {
        "interval": " The band is the capacity.",
        "bracket": " The band lies between the rates that held and did not: no confidence can be stated.",
    }
    band = bands.get(document["answer"], "")
    has_arrow = any(point["margin"] is None for point in known)
    arrow = " An arrow is a run whose backlog grew or whose requests failed; its height is no figure."
    return FigureSpec(
        title="How far from the limit",
        caption="The objective that is nearest to failing, as a multiple of its limit, at every rate "
        f"that was tried: above 1 it does not hold.{band}{arrow if has_arrow else ''}",
        draw=draw_margins,
    )
