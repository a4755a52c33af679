"""Arms of a comparison side by side: one table for every way of showing it, and where the time of each went.

Colours stand for arms in the figure of latencies and for causes in the figure of causes, each from one list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports.axes import label_times
from reports.canvas import AMBER, BLUE, BROWN, GREEN, INK, MUTED, PURPLE, RULE, SHADE, VERMILLION
from reports.causes import cause_name
from reports.figure_spec import FigureSpec
from reports.quantities import DASH, format_number, format_percent, format_time
from reports.repeat import format_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]
ARM_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, AMBER, INK, MUTED)
FIGURES = {
    "ttft.p50": "TTFT p50",
    "ttft.p99": "TTFT p99",
    "itl.p50": "ITL p50",
    "itl.p99": "ITL p99",
    "e2e.mean": "E2E mean",
    "ok": "ok",
    "goodput": "goodput",
}
ENGINE = {
    "batch_mean": ("batch", format_number),
    "kv_used_fraction": ("KV used", format_percent),
    "num_preemptions": ("evictions", format_number),
    "recompute_fraction": ("recomputed", format_percent),
    "flapping_cv": ("batch CV", format_percent),
    "flapping_step": ("step change", format_percent),
}
# What has one origin has one colour, so that a stack reads as few things: waiting, evictions, work, others.
CAUSE_GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("own work", MUTED, ("own",)),
    ("batch mates", RULE, ("batch",)),
    ("prompts of others", VERMILLION, ("interference", "stall_prefill")),
    ("waiting for a step, a slot or budget", BLUE, ("wait_align", "wait_slot", "wait_budget")),
    ("waiting for memory or its order", PURPLE, ("wait_memory", "wait_order", "wait_gate")),
    ("waiting by policy", GREEN, ("wait_policy", "stall_decode")),
    ("evictions", AMBER, ("preempted", "recompute", "swap")),
    ("client and network", INK, ("client",)),
    ("the engine between steps", BROWN, ("host",)),
    ("not explained by the cost model", SHADE, ("residual",)),
)
MIN_SHARE = 0.05
MAX_CAUSES = 4


def sides_of(document: Json) -> list[Json]:
    """Return the arms of compare.json that have a valid run."""
    return [side for side in document.get("sides") or () if side["num_runs"]]


def side_columns(sides: Sequence[Json]) -> list[str]:
    """Name the columns: the figure, then the arms."""
    return ["figure", *(side["name"] for side in sides)]


def side_rows(sides: Sequence[Json]) -> list[list[str]]:
    """Lay out a row a figure for which an arm has a value."""
    return [[title, *(cell(side) for side in sides)] for title, cell in _kept(sides)]


def _kept(sides: Sequence[Json]) -> list[tuple[str, Any]]:
    figures = [
        (title, lambda side, name=name: format_named(name, side["figures"].get(name)))
        for name, title in FIGURES.items()
        if any(name in side["figures"] for side in sides)
    ]
    engine = [
        (title, lambda side, name=name, show=show: show(side["engine"].get(name)))
        for name, (title, show) in ENGINE.items()
        if any(name in side["engine"] for side in sides)
    ]
    return figures + engine


def cause_sentences(sides: Sequence[Json]) -> list[tuple[str, str]]:
    """Say for each arm where the time of a mean request went; nothing where no engine kept account."""
    return [(side["name"], _sentence(side["causes_s"])) for side in sides if side["causes_s"]]


def _sentence(causes_s: Mapping[str, float]) -> str:
    total = sum(causes_s.values())
    largest = sorted(causes_s.items(), key=lambda item: -item[1])[:MAX_CAUSES]
    named = [
        f"{format_percent(s / total)} {cause_name(name)}" for name, s in largest if s >= MIN_SHARE * total
    ]
    return f"{', '.join(named) or DASH} (mean E2E {format_time(total)}, arithmetic over the runs)"


def draw_latencies(document: Json, axes: list[Axes]) -> bool:
    """Draw TTFT and ITL of each arm, from p50 (a bar) to p99 (a dot)."""
    drawn, sides = False, sides_of(document)
    if not sides:
        return False
    for ax, metric in zip(axes, ("ttft", "itl"), strict=True):
        for row, side in enumerate(sides):
            ends = [side["figures"].get(f"{metric}.{statistic}") for statistic in ("p50", "p99")]
            if None in ends:
                continue
            drawn, colour = True, ARM_COLOURS[row % len(ARM_COLOURS)]
            ax.plot(ends, [row, row], color=colour, linewidth=1.2, label=side["name"])
            ax.plot(ends[0], row, "|", color=colour, markersize=11, markeredgewidth=2)
            ax.plot(ends[1], row, "o", color=colour, markersize=5)
        ax.set_ylabel(metric.upper())
        ax.set_yticks(range(len(sides)), [side["name"] for side in sides])
        ax.set_ylim(len(sides) - 0.5, -0.5)
        ax.set_xscale("log")
    label_times(axes[-1], "x")
    return drawn


def draw_causes(document: Json, axes: list[Axes]) -> bool:
    """Draw the mean request of each arm as a bar of its causes."""
    (ax,), sides = axes, sides_of(document)
    if not sides:
        return False
    left = [0.0] * len(sides)
    for label, colour, names in CAUSE_GROUPS:
        widths = [max(0.0, sum(side["causes_s"].get(name, 0.0) for name in names)) for side in sides]
        if any(widths):
            ax.barh(range(len(sides)), widths, left=left, color=colour, height=0.6, label=label)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    ax.set_yticks(range(len(sides)), [side["name"] for side in sides])
    ax.set_ylim(len(sides) - 0.5, -0.5)
    ax.set_xlabel("E2E of a mean request, s")
    ax.grid(axis="y", visible=False)
    if any(left):
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    return any(left)


def side_figures(num_sides: int) -> dict[str, FigureSpec[Json]]:
    """Return the figures of a comparison's arms, drawn from compare.json."""
    return {
        "side-latencies": FigureSpec(
            title="Latency by arm",
            caption="From p50 (bar) to p99 (dot), geometric means over the valid runs; a logarithmic axis.",
            draw=draw_latencies,
            num_rows=2,
            height_inches=1.4 + 0.5 * num_sides,
        ),
        "side-causes": FigureSpec(
            title="Where the time of a mean request goes, by arm",
            caption="The engine's own account of each request, from its scheduled instant to its last token.",
            draw=draw_causes,
            height_inches=2.2 + 0.4 * num_sides,
        ),
    }
