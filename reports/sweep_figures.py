"""Figures of a sweep: latency against throughput and rate, and what was achieved of what was offered.

Draws the points of sweep.json: one curve by its percentiles, several each in a colour of its own. A point
whose backlog grew is hollow, an undecided one half full, one whose measurement is invalid a grey cross: none
of them is a steady state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reports.axes import label_times, place_legend
from reports.canvas import BLUE, GREEN, INK, MUTED, PURPLE, SHADE, VERMILLION
from reports.figure_spec import FigureSpec
from reports.sides import ARM_COLOURS
from reports.sweep import curves_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Sweep = Mapping[str, Any]
DASHED = (0, (4, 3))
FILL: Mapping[bool | None, Literal["full", "none", "left"]] = {True: "full", False: "none", None: "left"}
STATISTIC_COLOURS = {"p50": BLUE, "p90": GREEN, "p99": VERMILLION}


@dataclass(frozen=True, slots=True)
class Line:
    """How a curve is drawn; a label that begins with _ stays out of the legend."""

    label: str
    colour: str
    style: str = "solid"


def draw_latency_against_throughput(sweep: Sweep, axes: list[Axes]) -> bool:
    """Draw TTFT and ITL over the output tokens per second that were delivered."""
    drawn = [
        _draw_latency(sweep, ax, metric, "output_tokens_per_s")
        for ax, metric in zip(axes, ("ttft_s", "itl_s"), strict=True)
    ]
    axes[-1].set_xlabel("output tokens/s delivered")
    _place_legend(sweep, axes[0])
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
    _place_legend(sweep, axes[0])
    return any(drawn)


def draw_achieved(sweep: Sweep, axes: list[Axes]) -> bool:
    """Draw completed requests and goodput per second over what was offered, beside the diagonal."""
    (ax,), curves = axes, curves_of(sweep)
    found = [(curve, *_known(curve, "offered_per_s")) for curve in curves]
    most = max((at for _, _, offered in found for at in offered), default=None)
    if most is None:
        return False
    ax.plot([0, most], [0, most], color=MUTED, linewidth=0.8, linestyle=DASHED, label="offered")
    for number, (curve, points, offered) in enumerate(found):
        ok, goodput = ([point[name] for point in points] for name in ("ok_per_s", "goodput_per_s"))
        has_goodput = any(value is not None for value in goodput)
        if len(curves) > 1:
            colour = ARM_COLOURS[number % len(ARM_COLOURS)]
            _draw_points(ax, points, offered, goodput if has_goodput else ok, Line(curve["name"], colour))
            continue
        _draw_points(ax, points, offered, ok, Line("ok", BLUE))
        if has_goodput:
            _draw_points(ax, points, offered, goodput, Line("goodput", GREEN))
    _mark_saturation(sweep, ax)
    ax.set_xlabel("requests/s offered")
    ax.set_ylabel("requests/s" if len(curves) == 1 else "requests/s met or ok")
    ax.set_xlim(0, None)
    ax.set_ylim(0, None)
    place_legend(ax)
    return True


def _place_legend(sweep: Sweep, ax: Axes) -> None:
    """Colours are policies; what is solid and what dotted stands beside them in none of these colours."""
    if len(curves_of(sweep)) > 1:
        for label, style in (("p99", "solid"), ("p50", "dotted")):
            ax.plot([], [], color=MUTED, linewidth=1.2, linestyle=style, label=label)
    place_legend(ax)


def _lines(sweep: Sweep) -> list[tuple[Sweep, str, Line]]:
    """Say what is drawn: a curve, a statistic, and how; percentiles of one, p50 and p99 of several."""
    curves = curves_of(sweep)
    if len(curves) == 1:
        return [(curves[0], name, Line(name, colour)) for name, colour in STATISTIC_COLOURS.items()]
    return [
        (curve, name, Line(label.format(curve["name"]), ARM_COLOURS[i % len(ARM_COLOURS)], style))
        for i, curve in enumerate(curves)
        for name, label, style in (("p99", "{}", "solid"), ("p50", "_", "dotted"))
    ]


def _known(curve: Sweep, x_name: str) -> tuple[list[Sweep], list[float]]:
    points = [point for point in curve["points"] if point[x_name] is not None]
    return points, [point[x_name] for point in points]


def _draw_latency(sweep: Sweep, ax: Axes, metric: str, x_name: str) -> bool:
    has_data = False
    for curve, statistic, line in _lines(sweep):
        points, x = _known(curve, x_name)
        values = [point["latency"][metric].get(statistic) for point in points]
        has_data |= any(value is not None for value in values)
        _draw_points(ax, points, x, values, line)
        for at, point in zip(x, points, strict=True):
            bounds = point["intervals"][metric].get(statistic)
            if bounds:
                ax.plot([at, at], bounds, color=line.colour, linewidth=0.8)
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
    line: Line,
) -> None:
    """Join the points in order of rate; mark each as steady, undecided, unstable or invalid."""
    values = np.array([np.nan if value is None else value for value in y])
    ax.plot(x, values, color=line.colour, linewidth=1.2, linestyle=line.style, label=line.label)
    for at, value, point in zip(x, values, points, strict=True):
        if point["status"] != "valid":
            ax.plot(at, value, "x", color=MUTED, markersize=5)
        else:
            ax.plot(
                at,
                value,
                "o",
                color=line.colour,
                markersize=4.5,
                fillstyle=FILL[point["is_stable"]],
            )


def _mark_saturation(sweep: Sweep, ax: Axes) -> None:
    """Mark where each curve saturates; of one curve alone the whole bracket, and its knee."""
    curves = curves_of(sweep)
    is_alone = len(curves) == 1
    for number, curve in enumerate(curves):
        low, high = (curve["saturation"][name] for name in ("stable_per_s", "unstable_per_s"))
        colour = INK if is_alone else ARM_COLOURS[number % len(ARM_COLOURS)]
        if high is not None:
            ax.axvline(high, color=colour, linewidth=0.6, linestyle=DASHED)
        if is_alone and low is not None and high is not None:
            ax.axvspan(low, high, color=SHADE, linewidth=0, zorder=0)
        if is_alone and curve.get("knee"):
            ax.axvline(curve["knee"]["rate_per_s"], color=PURPLE, linestyle=":")


def sweep_figures(sweep: Sweep) -> dict[str, FigureSpec[Sweep]]:
    """Return the figures of a sweep; their captions speak of what is drawn."""
    curves = curves_of(sweep)
    points = [point for curve in curves for point in curve["points"]]
    marks = _describe_marks(points)
    has_bars = any(bounds for p in points for found in p["intervals"].values() for bounds in found.values())
    has_goodput = any(point["goodput_per_s"] is not None for point in points)
    bars = "; bars are 95 % intervals" if has_bars else ""
    lines = " Each policy has its colour: p99 is solid, p50 dotted." if len(curves) > 1 else ""
    counted = "that succeeded"
    if has_goodput:
        counted = "that met the objectives" if len(curves) > 1 else f"{counted}, and that met the objectives"
    return {
        "latency_throughput": FigureSpec(
            title="Latency against throughput",
            caption=f"TTFT and ITL over the output tokens delivered per second{bars}.{lines}{marks}",
            draw=draw_latency_against_throughput,
            num_rows=2,
            height_inches=4.2,
        ),
        "latency_rate": FigureSpec(
            title="Latency against the offered rate",
            caption=f"TTFT and E2E from the scheduled instant{bars}.{lines}{marks}"
            f"{_describe_saturation(curves)}",
            draw=draw_latency_against_rate,
            num_rows=2,
            height_inches=4.2,
        ),
        "achieved": FigureSpec(
            title="Achieved against offered",
            caption=f"Requests per second {counted}, beside what was offered.{marks}",
            draw=draw_achieved,
        ),
    }


def _describe_marks(points: Sequence[Sweep]) -> str:
    drawn = {point["is_stable"] if point["status"] == "valid" else "invalid" for point in points}
    told = {
        False: " A hollow point has a growing backlog.",
        None: " Of a half-filled point it is undecided whether its backlog grows.",
        "invalid": " A grey cross is an invalid measurement.",
    }
    return "".join(sentence for mark, sentence in told.items() if mark in drawn)


def _describe_saturation(curves: Sequence[Sweep]) -> str:
    """Say what `_mark_saturation` drew."""
    said = ""
    if any(curve["saturation"]["unstable_per_s"] is not None for curve in curves):
        said = " A dashed line marks a rate at which the backlog grew"
        if len(curves) == 1 and curves[0]["saturation"]["stable_per_s"] is not None:
            said += "; shading leads to it from the highest rate at which it was steady"
        said += "."
    if len(curves) == 1 and curves[0].get("knee"):
        said += " A dotted line is the knee: the most throughput for its latency."
    return said
