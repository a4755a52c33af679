"""Figures over the time of the run: load, requests, first tokens, gaps, the engine, the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports.axes import draw_bars, draw_points, label_run, label_times, place_legend, use_whole_numbers
from reports.canvas import AMBER, BLUE, GREEN, PAPER, PURPLE, VERMILLION
from reports.quantities import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from reports.subject import Subject

MAX_BARS = 300
MAX_EDGED_LANES = 40


def draw_requests(subject: Subject, axes: list[Axes]) -> bool:
    """Draw each request as a bar in the lowest free lane."""
    from loadgen.measure import series

    (ax,) = axes
    spans = series.request_spans(subject.measured.columns, MAX_BARS)
    if len(spans.start_s) == 0:
        return False
    lane = 1 + assign_lanes(spans.start_s, spans.end_s)
    edge = 0.3 if lane.max() < MAX_EDGED_LANES else 0  # neighbours in a lane are told apart
    ends = (spans.start_s, spans.first_token_s, spans.end_s)
    phases = (("waiting for the first token", AMBER), ("streaming", BLUE))
    for (label, colour), start, end in zip(phases, ends, ends[1:], strict=False):
        if not (end > start).any():
            continue  # a legend names what is drawn
        draw_bars(ax, start, end, lane, colour, label=label, edgecolor=PAPER, linewidth=edge)
    failed = ~spans.is_ok
    if failed.any():
        ax.plot(spans.end_s[failed], lane[failed], "x", color=VERMILLION, markersize=5, label="failed")
    ax.set_ylabel("requests in flight")
    use_whole_numbers(ax)
    ax.set_ylim(0.4, max(float(lane.max()), 5) + 0.6)
    ax.set_xlabel("seconds into the run")
    ax.set_xlim(float(spans.start_s.min()), float(spans.end_s.max()))
    place_legend(ax)
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


def draw_load(subject: Subject, axes: list[Axes]) -> bool:
    """Draw requests in flight and the rate of output tokens."""
    from loadgen.measure import series

    flight, tokens = axes
    columns = subject.measured.columns
    in_flight = series.thin_steps(series.in_flight(columns))
    token_rate = series.token_rate(subject.run.rows, columns)
    if len(in_flight) == 0:
        return False
    flight.step(in_flight.x, in_flight.y, where="post", color=BLUE, linewidth=1.1)
    flight.set_ylabel("in flight")
    use_whole_numbers(flight)
    flight.set_ylim(0, None)
    tokens.step(token_rate.x, token_rate.y, where="post", color=GREEN, linewidth=1.1)
    tokens.set_ylabel("output tokens/s")
    tokens.set_ylim(0, None if len(token_rate) else 1)
    label_run(subject, flight, tokens)
    return True


def draw_ttft_over_time(subject: Subject, axes: list[Axes]) -> bool:
    """Draw TTFT where it was scheduled, and where the failures lie."""
    from loadgen.measure import series

    (ax,) = axes
    points = series.ttft_over_schedule(subject.measured.columns)
    failures = series.failure_times(subject.measured.columns)
    if len(points) == 0:
        return False
    draw_points(ax, points.x, points.y, BLUE)
    if len(failures):
        marks: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "label": "failed"}
        ax.plot(failures, np.full(len(failures), 0.98), "|", color=VERMILLION, markersize=6, **marks)
        place_legend(ax)
    label_times(ax, "y")
    ax.set_ylabel("TTFT")
    label_run(subject, ax)
    ax.set_xlabel("scheduled at, seconds into the run")
    return True


def draw_gaps(subject: Subject, axes: list[Axes]) -> bool:
    """Draw how long token gaps were, as a density over time."""
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
    label_times(ax, "y")
    ax.set_ylabel("gap before a token event")
    label_run(subject, ax)
    return True


def draw_engine(subject: Subject, axes: list[Axes]) -> bool:
    """Draw the batch, the queue, the KV blocks and the evictions of the reference engine."""
    from loadgen.measure import series

    batch, blocks, evictions = axes
    levels = series.engine_levels(subject.run)
    if levels is None:
        return False
    line: dict[str, Any] = {"where": "post", "linewidth": 1.1}
    batch.step(levels.time_s, levels.running, color=BLUE, label="running", **line)
    batch.step(levels.time_s, levels.waiting, color=VERMILLION, label="waiting", **line)
    batch.set_ylabel("sequences")
    batch.set_ylim(0, None)
    use_whole_numbers(batch)
    place_legend(batch)
    blocks.step(levels.time_s, levels.kv_used_fraction, color=GREEN, **line)
    blocks.set_ylabel("KV blocks in use")
    blocks.set_ylim(0, max(1.1 * float(levels.kv_used_fraction.max()), 0.01))
    blocks.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    blocks.fmt_ydata = format_percent
    evictions.step(levels.time_s, levels.preempted, color=PURPLE, **line)
    evictions.set_ylabel("evictions")
    evictions.set_ylim(0, max(1.1 * float(levels.preempted.max()), 1))
    use_whole_numbers(evictions)
    label_run(subject, *axes)
    return True


def draw_server(subject: Subject, axes: list[Axes]) -> bool:
    """Draw queue and KV cache as the server's own metrics tell them; not beside the engine's step log."""
    from loadgen.measure import series

    queue, cache = axes
    gauges = {name: series.thin_steps(points) for name, points in series.server_gauges(subject.run).items()}
    if subject.run.step_rows() is not None or not {"running", "waiting", "kv_usage"} & set(gauges):
        return False
    for name, colour in (("running", BLUE), ("waiting", VERMILLION)):
        if name in gauges:
            queue.step(gauges[name].x, gauges[name].y, where="post", color=colour, label=name)
            place_legend(queue)
    queue.set_ylabel("sequences")
    queue.set_ylim(0, None)
    if "kv_usage" in gauges:
        cache.step(gauges["kv_usage"].x, gauges["kv_usage"].y, where="post", color=GREEN)
    cache.set_ylabel("KV cache in use")
    cache.set_ylim(0, None)
    cache.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    cache.fmt_ydata = format_percent
    label_run(subject, queue, cache)
    return True
