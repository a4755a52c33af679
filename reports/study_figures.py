"""The charts of a study: lines, bars and stacks as study.json describes them; nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reports.axes import label_times, place_legend
from reports.canvas import AMBER, BLUE, GREEN, INK, MUTED, PURPLE, VERMILLION
from reports.figure_spec import FigureSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, AMBER, MUTED, INK)
ROW_INCHES = 0.34


def chart_spec(chart: Json) -> FigureSpec[Json]:
    """Return how a chart of study.json is drawn."""
    draw = {"lines": draw_lines, "bars": draw_bars, "stacked": draw_stack}[chart["kind"]]
    rows = len(chart["series"][0]["x"]) * (1 if chart["kind"] == "stacked" else len(chart["series"]))
    height = 3.4 if chart["kind"] == "lines" else 1.4 + ROW_INCHES * rows
    return FigureSpec(title=chart["title"], caption=chart["caption"], draw=draw, height_inches=height)


def draw_lines(chart: Json, axes: list[Axes]) -> bool:
    """Draw each series as a line through its points."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    (ax,) = axes
    for series, colour in zip(chart["series"], COLOURS, strict=False):
        ax.plot(series["x"], series["y"], "-o", color=colour, markersize=4, label=series["name"])
    if chart["x_log"]:
        ax.set_xscale("log")
        places = sorted({x for series in chart["series"] for x in series["x"]})
        ax.xaxis.set_major_locator(FixedLocator(places))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    if chart["y_label"].startswith("time"):
        label_times(ax, "y")
    elif chart["y_log"]:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(bottom=0)
    ax.set_xlabel(chart["x_label"])
    ax.set_ylabel(chart["y_label"])
    place_legend(ax)
    return True


def draw_bars(chart: Json, axes: list[Axes]) -> bool:
    """Draw a group of bars for each place, one a series, with its value at its end."""
    (ax,) = axes
    places, num = chart["series"][0]["x"], len(chart["series"])
    for number, (series, colour) in enumerate(zip(chart["series"], COLOURS, strict=False)):
        rows = [row + (number - (num - 1) / 2) * 0.8 / num for row in range(len(places))]
        bars = ax.barh(rows, series["y"], height=0.74 / num, color=colour, label=series["name"])
        ax.bar_label(bars, fmt=lambda value: f"{value:,.3g}" if value < 100 else f"{value:,.0f}", padding=3)
    ax.margins(x=0.12)
    _label_rows(ax, chart, places)
    if num > 1:
        place_legend(ax)
    return True


def draw_stack(chart: Json, axes: list[Axes]) -> bool:
    """Draw one bar a place, made of the series; shares below zero are left out of the picture."""
    (ax,) = axes
    places = chart["series"][0]["x"]
    left = [0.0] * len(places)
    for series, colour in zip(chart["series"], COLOURS, strict=False):
        widths = [max(value, 0.0) for value in series["y"]]
        ax.barh(range(len(places)), widths, left=left, height=0.6, color=colour, label=series["name"])
        left = [a + b for a, b in zip(left, widths, strict=True)]
    ax.set_xlim(0, 1.05)
    _label_rows(ax, chart, places)
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2, columnspacing=1.2)
    return True


def _label_rows(ax: Axes, chart: Json, places: list[str]) -> None:
    ax.set_yticks(range(len(places)), places)
    ax.set_ylim(len(places) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(chart["y_label"] or chart["x_label"])
