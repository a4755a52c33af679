"""Figures of what was decided: the scheduler's steps request by request, and what first tokens waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports.axes import draw_bars, place_legend
from reports.canvas import AMBER, BLUE, INK, MUTED, PAPER, PURPLE, RULE, VERMILLION
from reports.quantities import format_tick, format_time
from reports.sides import CAUSE_GROUPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from loadgen.measure.gantt import Gantt
    from reports.subject import Subject

# What is drawn how: colour, and height as a share of the row.
DECISIONS = {
    "waiting": (RULE, 0.3),
    "standing by": (PURPLE, 0.3),
    "evicted": (VERMILLION, 0.3),
    "prefill": (AMBER, 0.8),
    "decode": (BLUE, 0.8),
}
TOKENS_WIDTH = 0.045  # of the figure: what three digits take
MAX_ROWS_WITH_TOKENS = 18

# What the client alone saw, of a server without an account.
PHASES = (("due, not sent", INK, ("not sent",)), ("sent, no first token", BLUE, ("no answer",)))


def draw_first_steps(subject: Subject, axes: list[Axes]) -> bool:
    """Draw the scheduler's first decisions."""
    from loadgen.measure.gantt import first_steps

    return _draw_decisions(first_steps(subject.run), axes[0])


def draw_worst_stall(subject: Subject, axes: list[Axes]) -> bool:
    """Draw the scheduler's decisions around the worst stall."""
    from loadgen.measure.gantt import worst_stall

    return _draw_decisions(worst_stall(subject.run, subject.measured), axes[0])


def _draw_decisions(gantt: Gantt | None, ax: Axes) -> bool:
    if gantt is None:
        return False
    for kind, (colour, height) in DECISIONS.items():
        bars = [bar for bar in gantt.bars if bar.kind == kind]
        if bars:
            start, end = np.array([(bar.start_s, bar.end_s) for bar in bars]).T
            rows = np.array([bar.row for bar in bars])
            look: dict[str, Any] = {"label": kind, "edgecolor": PAPER, "linewidth": 0.4, "height": height}
            draw_bars(ax, start, end, rows, colour, **look)
    _write_tokens(gantt, ax)
    if gantt.stall:
        row, begin, finish = gantt.stall
        ax.plot([begin, finish], [row, row], color=INK, linewidth=0.8, marker="|", label="worst stall")
    ax.set_xlim(gantt.start_s, gantt.end_s)
    ax.set_ylim(max(len(gantt.requests), 6) - 0.4, -0.6)
    ax.set_yticks(range(len(gantt.requests)), [str(index) for index in gantt.requests])
    if len(gantt.requests) > MAX_ROWS_WITH_TOKENS:
        ax.tick_params("y", labelsize="x-small")
    ax.grid(axis="y", visible=False)
    ax.set_ylabel("request")
    ax.set_xlabel("seconds into the run")
    place_legend(ax)
    return True


def _write_tokens(gantt: Gantt, ax: Axes) -> None:
    """Write how many tokens of a prompt a step took, where the bar is wide enough for it."""
    narrowest = TOKENS_WIDTH * (gantt.end_s - gantt.start_s)
    if len(gantt.requests) > MAX_ROWS_WITH_TOKENS:
        return
    for bar in gantt.bars:
        if bar.kind == "prefill" and bar.end_s - bar.start_s > narrowest:
            middle = (bar.start_s + bar.end_s) / 2
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": "x-small", "color": "#1b1b1c"}
            ax.text(middle, bar.row, str(bar.tokens), clip_on=True, **look)


def draw_waterfall(subject: Subject, axes: list[Axes]) -> bool:
    """Draw the slowest first tokens as bars, from the instant they were due, parted by cause."""
    (ax,) = axes
    rows = np.arange(len(subject.slowest))
    if not len(rows):
        return False
    reached = np.zeros(len(rows))
    for label, colour, seconds in _grouped(subject.slowest_causes):
        look: dict[str, Any] = {"label": label, "edgecolor": MUTED, "linewidth": 0.3}
        draw_bars(ax, reached, reached + seconds, rows, colour, **look)
        reached = reached + seconds
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(rows, [str(slow.index) for slow in subject.slowest])
    ax.set_ylabel("request")
    ax.set_xlim(0, 1.02 * max(float(reached.max()), 1e-6))
    ax.xaxis.set_major_formatter(lambda value, _: format_tick(value))
    ax.fmt_xdata = format_time
    ax.set_xlabel("since the request was due")
    ax.grid(axis="y", visible=False)
    place_legend(ax)
    return True


def _grouped(causes: list[dict[str, float]]) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
    """Sum causes by group: label, colour, seconds of each request; without groups that hold nothing."""
    for label, colour, names in (*PHASES, *CAUSE_GROUPS):
        seconds = np.array([sum(parts.get(name, 0.0) for name in names) for parts in causes])
        if seconds.any():
            yield label, colour, seconds
