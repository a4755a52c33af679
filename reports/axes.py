"""Axes as every figure has them: times in ms and s, the run from 0 with its window, legends off the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reports.canvas import INK, MAX_VECTOR_POINTS, MUTED, SHADE
from reports.quantities import format_count, format_run_time, format_tick, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from reports.subject import Subject

MAX_LEGEND_LETTERS = 80


def draw_points(ax: Axes, x: Any, y: Any, colour: str) -> None:
    """Draw a cloud of points, the fainter and smaller the more there are; a large one becomes an image."""
    alpha = float(np.clip(600 / max(len(x), 1), 0.2, 0.7))
    size = float(np.clip(6000 / max(len(x), 1), 8, 30))
    ax.scatter(x, y, s=size, color=colour, alpha=alpha, linewidths=0, rasterized=len(x) > MAX_VECTOR_POINTS)


def draw_bars(
    ax: Axes,
    start: Any,
    end: Any,
    row: Any,
    colour: str,
    height: float = 0.8,
    **look: Any,
) -> None:
    """Draw bars from start to end as one path; `height` is a share of the row's."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    low, high = row - height / 2, row + height / 2
    corners = [(start, low), (end, low), (end, high), (start, high), (start, low)]
    boxes = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(boxes)
    ax.add_patch(PathPatch(Path(boxes.reshape(-1, 2), codes), facecolor=colour, **look))


def use_whole_numbers(ax: Axes, num_ticks: int = 6) -> None:
    """Count on the y axis in whole numbers."""
    from matplotlib.ticker import MaxNLocator

    ax.yaxis.set_major_locator(MaxNLocator(nbins=num_ticks, integer=True))
    ax.fmt_ydata = format_count


def place_legend(ax: Axes) -> None:
    """Put the legend above the axes, at the right: there it never covers data; long words in two columns."""
    words = sum(len(label) + 4 for label in ax.get_legend_handles_labels()[1])
    columns = 4 if words <= MAX_LEGEND_LETTERS else 2
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns, borderaxespad=0.2, columnspacing=1.2)


def label_times(ax: Axes, axis: str) -> None:
    """Make an axis of seconds logarithmic and label it in µs, ms and s."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    setattr(ax, f"fmt_{axis}data", format_time)
    scale = ax.xaxis if axis == "x" else ax.yaxis
    low, high = ax.get_xlim() if axis == "x" else ax.get_ylim()
    label = FuncFormatter(lambda value, _: format_tick(value))
    num_decades = np.floor(np.log10(high)) - np.ceil(np.log10(low)) + 1
    scale.set_major_locator(LogLocator(10, subs=(1.0,), numticks=12))
    scale.set_minor_locator(LogLocator(10, subs=(2.0, 5.0), numticks=40))
    scale.set_major_formatter(label)
    scale.set_minor_formatter(label if num_decades < 2 else NullFormatter())


def label_run(subject: Subject, *axes: Axes) -> None:
    """Let time run from 0, shade the warm-up and mark the end of the window, in all rows of a figure."""
    window = subject.summary["window"]
    start, end = window["start_s"], window["end_s"]
    axes[-1].set_xlabel("seconds into the run")
    axes[-1].set_xlim(0, subject.end_s)
    for ax in axes:
        ax.fmt_xdata = format_run_time
        if start:
            ax.axvspan(0, start, color=SHADE, linewidth=0, zorder=0)
        if end is not None and end < subject.end_s:
            ax.axvline(end, color=INK, linewidth=0.6, linestyle=(0, (4, 3)))
    if start:
        top = axes[0]
        top.text(
            0, 1.01, "warm-up", transform=top.get_xaxis_transform(), va="bottom", color=MUTED, gid="marginal"
        )
