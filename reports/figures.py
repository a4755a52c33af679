"""The figures of one run, each a function from a run to a drawing; one dict names them all.

Decides which marks show which series; the series come from `loadgen.measure.series`, the looks from
`reports.canvas`. A figure whose data the run does not hold returns False and is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports.canvas import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    MAX_VECTOR_POINTS,
    MUTED,
    PAPER,
    PURPLE,
    SHADE,
    VERMILLION,
    inline_svg,
    new_figure,
    save_figure,
)
from reports.quantities import format_tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from loadgen.measure.series import Points
    from reports.subject import Subject

LATENCY_COLOURS = {
    "ttft_s": BLUE,
    "itl_s": GREEN,
    "e2e_s": VERMILLION,
    "send_lag_s": PURPLE,
    "recv_lag_s": AMBER,
}
LATENCY_LABELS = {
    "ttft_s": "TTFT",
    "itl_s": "ITL",
    "e2e_s": "E2E",
    "send_lag_s": "send lag",
    "recv_lag_s": "receive lag",
}
MAX_BARS = 300
MAX_EDGED_LANES = 40
SHORTEST_SHOWN_S = 1e-6
NINES = {0.5: "p50", 0.9: "p90", 0.99: "p99", 0.999: "p99.9", 0.9999: "p99.99"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """One figure: what it is called, what the reader should see in it, and how it is drawn."""

    title: str
    caption: str
    draw: Callable[[Subject, list[Axes]], bool]
    num_rows: int = 1
    height_inches: float = 3.3


def render_figure(subject: Subject, name: str, file_format: str = "svg") -> bytes | None:
    """Draw one figure by name as svg, pdf or png; None where the run holds no data for it."""
    spec = FIGURES[name]
    with new_figure(spec.num_rows, spec.height_inches) as (figure, axes):
        return save_figure(figure, file_format) if spec.draw(subject, axes) else None


def render_inline(subject: Subject, name: str) -> str | None:
    """Draw one figure as an SVG element for a page; None where the run holds no data for it."""
    svg = render_figure(subject, name)
    spec = FIGURES[name]
    return None if svg is None else inline_svg(svg.decode(), name, spec.title, spec.caption)


def _draw_cdfs(subject: Subject, axes: list[Axes]) -> bool:
    from loadgen.measure import series

    (ax,) = axes
    drawn = False
    for name in ("itl_s", "ttft_s", "e2e_s"):
        points = series.cdf(subject.measured.samples[name])
        if len(points) == 0:
            continue
        ax.step(points.x, points.y, where="post", color=LATENCY_COLOURS[name], label=LATENCY_LABELS[name])
        drawn = True
    ax.set_ylim(0, 1.02)
    ax.set_ylabel("share of all")
    if drawn:
        _time_axis(ax, "x")
        _legend(ax)
    return drawn


def _draw_spectrum(subject: Subject, axes: list[Axes]) -> bool:
    return _spectrum(subject, axes[0], ("e2e_s", "ttft_s", "itl_s"))


def _draw_client_lag(subject: Subject, axes: list[Axes]) -> bool:
    return _spectrum(subject, axes[0], ("ttft_s", "itl_s", "send_lag_s", "recv_lag_s"))


def _spectrum(subject: Subject, ax: Axes, names: tuple[str, ...]) -> bool:
    from loadgen.measure import series

    drawn = {name: series.spectrum(subject.measured.samples[name]) for name in names}
    drawn = {name: points for name, points in drawn.items() if len(points.x)}
    if not drawn:
        return False
    for name, points in drawn.items():
        ax.plot(1 / (1 - points.x), points.y, color=LATENCY_COLOURS[name], label=LATENCY_LABELS[name])
    ax.set_xscale("log")
    reach = max(float(points.x[-1]) for points in drawn.values())
    ticks = [p for p in NINES if p <= max(reach, 0.9)]
    ax.set_xticks([1 / (1 - p) for p in ticks], [NINES[p] for p in ticks])
    ax.minorticks_off()
    ax.set_xlim(1, max(1.2 / (1 - reach), 10))
    ax.set_ylim(0.7 * min(_lowest_shown(points) for points in drawn.values()), None)
    ax.set_xlabel("percentile, each decade ten times rarer")
    _time_axis(ax, "y")
    _legend(ax)
    return True


def _lowest_shown(points: Points) -> float:
    """Where the axis may begin: the fastest tenth, and gaps of 0, would stretch it over empty decades."""
    shown = points.y[(points.x >= 0.1) & (points.y > 0)]
    return float(shown[0]) if len(shown) else SHORTEST_SHOWN_S


def _draw_requests(subject: Subject, axes: list[Axes]) -> bool:
    from loadgen.measure import series

    (ax,) = axes
    spans = series.request_spans(subject.measured.columns, MAX_BARS)
    if len(spans.start_s) == 0:
        return False
    lane = 1 + assign_lanes(spans.start_s, spans.end_s)
    edge = 0.3 if lane.max() < MAX_EDGED_LANES else 0  # neighbours in a lane are told apart
    shared: dict[str, Any] = {"height": 0.8, "edgecolor": PAPER, "linewidth": edge}
    ax.barh(
        lane,
        spans.first_token_s - spans.start_s,
        left=spans.start_s,
        color=AMBER,
        label="waiting for the first token",
        **shared,
    )
    ax.barh(
        lane,
        spans.end_s - spans.first_token_s,
        left=spans.first_token_s,
        color=BLUE,
        label="streaming",
        **shared,
    )
    failed = ~spans.is_ok
    if failed.any():
        ax.plot(spans.end_s[failed], lane[failed], "x", color=VERMILLION, markersize=5, label="failed")
    ax.set_ylabel("requests in flight")
    _whole_numbers(ax)
    ax.set_ylim(0.4, max(float(lane.max()), 5) + 0.6)
    ax.set_xlabel("seconds into the run")
    ax.set_xlim(float(spans.start_s.min()), float(spans.end_s.max()))
    _legend(ax)
    return True


def assign_lanes(start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Give each span the lowest lane that is free when it starts, so that spans never overlap in a lane."""
    free_at: list[float] = []
    lanes = np.zeros(len(start_s), np.int64)
    for position in np.argsort(start_s, kind="stable"):
        start, end = float(start_s[position]), float(end_s[position])
        lane = next((lane for lane, free in enumerate(free_at) if free <= start), len(free_at))
        free_at[lane : lane + 1] = [end]
        lanes[position] = lane
    return lanes


def _draw_load(subject: Subject, axes: list[Axes]) -> bool:
    from loadgen.measure import series

    flight, tokens = axes
    columns = subject.measured.columns
    in_flight, token_rate = series.in_flight(columns), series.token_rate(subject.run.rows, columns)
    if len(in_flight) == 0:
        return False
    flight.step(in_flight.x, in_flight.y, where="post", color=BLUE, linewidth=1.1)
    flight.set_ylabel("in flight")
    _whole_numbers(flight)
    flight.set_ylim(0, None)
    tokens.step(token_rate.x, token_rate.y, where="post", color=GREEN, linewidth=1.1)
    tokens.set_ylabel("output tokens/s")
    tokens.set_ylim(0, None if len(token_rate) else 1)
    _run_axis(subject, flight, tokens)
    return True


def _draw_ttft_over_time(subject: Subject, axes: list[Axes]) -> bool:
    from loadgen.measure import series

    (ax,) = axes
    points = series.ttft_over_schedule(subject.measured.columns)
    failures = series.failure_times(subject.measured.columns)
    if len(points) == 0:
        return False
    _scatter(ax, points.x, points.y, BLUE)
    if len(failures):
        marks: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "clip_on": False, "label": "failed"}
        ax.plot(failures, np.full(len(failures), 0.98), "|", color=VERMILLION, markersize=6, **marks)
        _legend(ax)
    _time_axis(ax, "y")
    ax.set_ylabel("TTFT")
    _run_axis(subject, ax)
    ax.set_xlabel("scheduled at, seconds into the run")
    return True


def _draw_ttft_by_prompt(subject: Subject, axes: list[Axes]) -> bool:
    from loadgen.measure import series

    (ax,) = axes
    points = series.ttft_by_prompt(subject.measured.columns)
    _scatter(ax, points.x, points.y, BLUE)
    ax.set_xlabel("prompt tokens")
    ax.set_ylabel("TTFT")
    _time_axis(ax, "y")
    return len(points.x) > 0


def _draw_gaps(subject: Subject, axes: list[Axes]) -> bool:
    from loadgen.measure import series

    (ax,) = axes
    density = series.gap_density(subject.run.rows, subject.measured.columns)
    if density is None:
        return False
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    # One blue from faint to full: more is stronger on white and on black paper alike.
    ramp = LinearSegmentedColormap.from_list("gaps", [(0.16, 0.52, 0.75, alpha) for alpha in (0.18, 0.6, 1)])
    counts = np.ma.masked_equal(density.counts, 0)
    mesh = ax.pcolormesh(
        density.time_edges_s, density.gap_edges_s, counts.T, cmap=ramp, norm=LogNorm(1), rasterized=True
    )
    bar = ax.figure.colorbar(mesh, ax=ax, pad=0.01, aspect=30, format="%g", label="gaps in a cell")
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    _time_axis(ax, "y")
    ax.set_ylabel("gap before a token event")
    _run_axis(subject, ax)
    return True


def _draw_engine(subject: Subject, axes: list[Axes]) -> bool:
    from loadgen.measure import series

    batch, blocks = axes
    levels = series.engine_levels(subject.run)
    if levels is None:
        return False
    line: dict[str, Any] = {"where": "post", "linewidth": 1.1}
    batch.step(levels.time_s, levels.running, color=BLUE, label="running", **line)
    batch.step(levels.time_s, levels.waiting, color=VERMILLION, label="waiting", **line)
    batch.set_ylabel("sequences")
    batch.set_ylim(0, None)
    _whole_numbers(batch)
    _legend(batch)
    blocks.step(levels.time_s, levels.kv_used_fraction, color=GREEN, **line)
    blocks.set_ylabel("KV blocks in use")
    blocks.set_ylim(0, max(1.1 * float(levels.kv_used_fraction.max()), 0.01))
    blocks.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    _run_axis(subject, batch, blocks)
    return True


def _scatter(ax: Axes, x: Any, y: Any, colour: str) -> None:
    alpha = float(np.clip(600 / max(len(x), 1), 0.2, 0.7))
    size = float(np.clip(6000 / max(len(x), 1), 8, 30))
    ax.scatter(x, y, s=size, color=colour, alpha=alpha, linewidths=0, rasterized=len(x) > MAX_VECTOR_POINTS)


def _whole_numbers(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _legend(ax: Axes) -> None:
    """Put the legend above the axes, at the right: there it never covers data."""
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, borderaxespad=0.2, columnspacing=1.2)


def _time_axis(ax: Axes, axis: str) -> None:
    """Make an axis of seconds logarithmic and label it in µs, ms and s."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    scale = ax.xaxis if axis == "x" else ax.yaxis
    low, high = ax.get_xlim() if axis == "x" else ax.get_ylim()
    label = FuncFormatter(lambda value, _: format_tick(value))
    num_decades = np.floor(np.log10(high)) - np.ceil(np.log10(low)) + 1
    scale.set_major_locator(LogLocator(10, subs=(1.0,), numticks=12))
    scale.set_minor_locator(LogLocator(10, subs=(2.0, 5.0), numticks=40))
    scale.set_major_formatter(label)
    scale.set_minor_formatter(label if num_decades < 2 else NullFormatter())


def _run_axis(subject: Subject, *axes: Axes) -> None:
    """Let time run from 0, shade the warm-up and mark the end of the window, in all rows of a figure."""
    window = subject.summary["window"]
    start, end = window["start_s"], window["end_s"]
    axes[-1].set_xlabel("seconds into the run")
    axes[-1].set_xlim(0, axes[-1].get_xlim()[1])
    for ax in axes:
        if start:
            ax.axvspan(0, start, color=SHADE, linewidth=0, zorder=0)
        if end is not None and end < ax.get_xlim()[1]:
            ax.axvline(end, color=INK, linewidth=0.6, linestyle=(0, (4, 3)))
    if start:
        top = axes[0]
        top.text(0, 1.01, "warm-up", transform=top.get_xaxis_transform(), va="bottom", color=MUTED)


FIGURES: dict[str, FigureSpec] = {
    "latency_spectrum": FigureSpec(
        title="Latency by percentile",
        caption="How slow the slowest requests are: each step to the right is ten times rarer. "
        "TTFT and E2E count from the scheduled instant.",
        draw=_draw_spectrum,
    ),
    "latency_cdf": FigureSpec(
        title="Latency distributions",
        caption="Share of requests (TTFT, E2E) and of token gaps (ITL) that took at most this long.",
        draw=_draw_cdfs,
    ),
    "load": FigureSpec(
        title="Requests in flight and output rate",
        caption="Requests sent and not yet ended, and output tokens received per second. "
        "A count in flight that keeps growing means that the server does not keep up.",
        draw=_draw_load,
        num_rows=2,
    ),
    "requests": FigureSpec(
        title="Requests on a time line",
        caption="One bar a request, from its scheduled instant to its end, in the lowest free lane; a cross "
        f"marks a failure. A long run shows the {MAX_BARS} requests around the slowest first token.",
        draw=_draw_requests,
    ),
    "ttft_over_time": FigureSpec(
        title="TTFT over the run",
        caption="Time to first token of each request, where it was scheduled. "
        "Ticks along the top are failures.",
        draw=_draw_ttft_over_time,
    ),
    "ttft_by_prompt": FigureSpec(
        title="TTFT against prompt length",
        caption="What prefill costs: the lower edge is the cost of the prompt, "
        "what lies above it was waiting.",
        draw=_draw_ttft_by_prompt,
    ),
    "gaps": FigureSpec(
        title="Gaps between tokens over the run",
        caption="Each gap between two token events of a stream, where it ended; "
        "the stronger the colour, the more gaps.",
        draw=_draw_gaps,
    ),
    "client_lag": FigureSpec(
        title="The client's own delay",
        caption="Send lag and receive lag beside the latencies that they could have spoiled: "
        "they should lie far below.",
        draw=_draw_client_lag,
    ),
    "engine": FigureSpec(
        title="Inside the engine",
        caption="Sequences running and waiting in the reference engine, and the share of its KV blocks "
        "in use; the largest value of each moment.",
        draw=_draw_engine,
        num_rows=2,
    ),
}
