"""Figures of a sweep: latency against throughput and rate, and what was achieved of what was offered.

Draws the points of sweep.json. A point whose backlog grew is hollow, one whose measurement is invalid a grey
cross: neither is a steady state to be read off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.axes import label_times, place_legend
from reports.canvas import BLUE, GREEN, INK, MUTED, SHADE, VERMILLION
from reports.figure_spec import FigureSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Sweep = Mapping[str, Any]
STATISTIC_COLOURS = {"p50": BLUE, "p90": GREEN, "p99": VERMILLION}


def draw_latency_against_throughput(sweep: Sweep, axes: list[Axes]) -> bool:
    """Draw TTFT and ITL over the output tokens per second that were delivered."""
    drawn = [
        _draw_latency(sweep, ax, metric, "output_tokens_per_s")
        for ax, metric in zip(axes, ("ttft_s", "itl_s"), strict=True)
    ]
    axes[-1].set_xlabel("output tokens/s delivered")
    place_legend(axes[0])
    return any(drawn)


def draw_latency_against_rate(sweep: Sweep, axes: list[Axes]) -> bool:
    """Draw TTFT and E2E over the offered rate, with the bracket of saturation."""
    drawn = [
        _draw_latency(sweep, ax, metric, "offered_per_s")
        for ax, metric in zip(axes, ("ttft_s", "e2e_s"), strict=True)
    ]
    for ax in axes:
        _mark_saturation(sweep, ax)
    axes[-1].set_xlabel("requests/s offered")
    place_legend(axes[0])
    return any(drawn)


def draw_achieved(sweep: Sweep, axes: list[Axes]) -> bool:
    """Draw completed requests and goodput per second over what was offered, beside the diagonal."""
    (ax,) = axes
    points = [point for point in sweep["points"] if point["offered_per_s"] is not None]
    if not points:
        return False
    offered = [point["offered_per_s"] for point in points]
    ax.plot(
        [0, max(offered)],
        [0, max(offered)],
        color=MUTED,
        linewidth=0.8,
        linestyle=(0, (4, 3)),
        label="offered",
    )
    _draw_points(ax, points, offered, [point["ok_per_s"] for point in points], BLUE, "ok")
    goodput = [point["goodput_per_s"] for point in points]
    if any(value is not None for value in goodput):
        _draw_points(ax, points, offered, goodput, GREEN, "goodput")
    _mark_saturation(sweep, ax)
    ax.set_xlabel("requests/s offered")
    ax.set_ylabel("requests/s")
    ax.set_xlim(0, None)
    ax.set_ylim(0, None)
    place_legend(ax)
    return True


def _draw_latency(sweep: Sweep, ax: Axes, metric: str, x_name: str) -> bool:
    points = [point for point in sweep["points"] if point[x_name] is not None]
    x = [point[x_name] for point in points]
    has_data = False
    for statistic, colour in STATISTIC_COLOURS.items():
        values = [point["latency"][metric].get(statistic) for point in points]
        has_data |= any(value is not None for value in values)
        _draw_points(ax, points, x, values, colour, statistic)
        for at, point in zip(x, points, strict=True):
            bounds = point["intervals"][metric].get(statistic)
            if bounds:
                ax.plot([at, at], bounds, color=colour, linewidth=0.8)
    ax.set_ylabel(metric.removesuffix("_s").upper())
    ax.set_xlim(0, None)
    if has_data:
        label_times(ax, "y")
    return has_data


def _draw_points(
    ax: Axes,
    points: Sequence[Mapping[str, Any]],
    x: list[float],
    y: list[float | None],
    colour: str,
    label: str,
) -> None:
    """Join the points in order of rate; mark each as steady, unstable or invalid."""
    values = np.array([np.nan if value is None else value for value in y])
    ax.plot(x, values, color=colour, linewidth=1.2, label=label)
    for at, value, point in zip(x, values, points, strict=True):
        if point["status"] != "valid":
            ax.plot(at, value, "x", color=MUTED, markersize=5)
        else:
            ax.plot(
                at,
                value,
                "o",
                color=colour,
                markersize=4.5,
                fillstyle="full" if point["is_stable"] else "none",
            )


def _mark_saturation(sweep: Sweep, ax: Axes) -> None:
    low, high = (sweep["saturation"][name] for name in ("stable_per_s", "unstable_per_s"))
    if high is None:
        return
    if low is not None:
        ax.axvspan(low, high, color=SHADE, linewidth=0, zorder=0)
    ax.axvline(high, color=INK, linewidth=0.6, linestyle=(0, (4, 3)))


SWEEP_FIGURES: dict[str, FigureSpec[Sweep]] = {
    "latency_throughput": FigureSpec(
        title="Latency against throughput",
        caption="TTFT and ITL over the output tokens delivered per second; bars are 95 % intervals. "
        "A hollow point has a growing backlog, a grey cross is an invalid measurement.",
        draw=draw_latency_against_throughput,
        num_rows=2,
        height_inches=4.2,
    ),
    "latency_rate": FigureSpec(
        title="Latency against the offered rate",
        caption="TTFT and E2E from the scheduled instant. Saturation lies in the shaded bracket: at its "
        "left edge the backlog was steady, at the dashed line it grew.",
        draw=draw_latency_against_rate,
        num_rows=2,
        height_inches=4.2,
    ),
    "achieved": FigureSpec(
        title="Achieved against offered",
        caption="Requests per second that succeeded, and those that met the objectives (goodput), "
        "beside what was offered.",
        draw=draw_achieved,
    ),
}
