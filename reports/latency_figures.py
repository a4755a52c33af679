"""Figures of how long things took, whatever the time of day: distributions, tails, cost of the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.axes import draw_points, label_times, place_legend, use_whole_numbers
from reports.canvas import AMBER, BLUE, GREEN, PURPLE, VERMILLION
from reports.quantities import format_nines, format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from loadgen.measure.series import Histogram, Points
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
NUM_BARS = 60
SHORTEST_SHOWN_S = 1e-6
NINES = {0.5: "p50", 0.9: "p90", 0.99: "p99", 0.999: "p99.9", 0.9999: "p99.99"}


def draw_cdfs(subject: Subject, axes: list[Axes]) -> bool:
    """Draw the distribution functions of ITL, TTFT and E2E."""
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
    ax.fmt_ydata = format_percent
    if drawn:
        label_times(ax, "x")
        place_legend(ax)
    return drawn


def count_histograms(subject: Subject) -> int:
    """How many latencies have a histogram; 1 where none has, for a figure that is left out."""
    return max(1, len(_histograms(subject)))


def _histograms(subject: Subject) -> dict[str, Histogram]:
    from loadgen.measure import series

    samples = subject.measured.samples
    found = {name: series.log_histogram(samples[name], NUM_BARS) for name in ("ttft_s", "itl_s", "e2e_s")}
    return {name: histogram for name, histogram in found.items() if histogram is not None}


def draw_histograms(subject: Subject, axes: list[Axes]) -> bool:
    """Draw how often each latency was how long, in bins of equal ratio; a row for each that there is."""
    histograms = _histograms(subject)
    for ax, (name, histogram) in zip(axes, histograms.items(), strict=False):
        counts = [*histogram.counts, 0]
        colour = LATENCY_COLOURS[name]
        ax.step(histogram.edges_s, counts, where="post", color=colour, label=LATENCY_LABELS[name])
        ax.fill_between(histogram.edges_s, counts, step="post", color=colour, alpha=0.2, linewidth=0)
        ax.set_ylim(0, None)
        ax.set_ylabel(LATENCY_LABELS[name])
        use_whole_numbers(ax, num_ticks=4)
    if histograms:
        label_times(axes[-1], "x")
    return bool(histograms)


def draw_spectrum(subject: Subject, axes: list[Axes]) -> bool:
    """Draw E2E, TTFT and ITL by percentile."""
    return _spectrum(subject, axes[0], ("e2e_s", "ttft_s", "itl_s"))


def draw_client_lag(subject: Subject, axes: list[Axes]) -> bool:
    """Draw send and receive lag by percentile, beside the latencies; not where time was virtual."""
    if not subject.measured.samples["send_lag_s"].values.any():
        return False
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
    ax.fmt_xdata = format_nines
    reach = max(float(points.x[-1]) for points in drawn.values())
    ticks = [p for p in NINES if p <= max(reach, 0.9)]
    ax.set_xticks([1 / (1 - p) for p in ticks], [NINES[p] for p in ticks])
    ax.minorticks_off()
    ax.set_xlim(1, max(1.2 / (1 - reach), 10))
    ax.set_ylim(0.7 * min(_lowest_shown(points) for points in drawn.values()), None)
    ax.set_xlabel("percentile, each decade ten times rarer")
    label_times(ax, "y")
    place_legend(ax)
    return True


def _lowest_shown(points: Points) -> float:
    """Where the axis may begin: the fastest tenth, and gaps of 0, would stretch it over empty decades."""
    shown = points.y[(points.x >= 0.1) & (points.y > 0)]
    return float(shown[0]) if len(shown) else SHORTEST_SHOWN_S


def draw_ttft_by_prompt(subject: Subject, axes: list[Axes]) -> bool:
    """Draw TTFT against the tokens of the prompt."""
    from loadgen.measure import series

    (ax,) = axes
    points = series.ttft_by_prompt(subject.measured.columns)
    draw_points(ax, points.x, points.y, BLUE)
    ax.set_xlabel("prompt tokens")
    ax.set_ylabel("TTFT")
    label_times(ax, "y")
    return len(points.x) > 0
