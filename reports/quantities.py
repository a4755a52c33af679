"""How a number is written for a person: three significant digits and the unit that suits its size.

Decides digits, units and words for quantities, the same on the terminal, in HTML and in Markdown. Null is
written as a dash, never as 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DASH = "–"
NUM_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit of display: `scale` is how many of it make one SI unit."""

    name: str
    scale: float


SECONDS = Unit(name="s", scale=1.0)
MILLISECONDS = Unit(name="ms", scale=1e3)
MICROSECONDS = Unit(name="µs", scale=1e6)


def suit_time(value_s: float) -> Unit:
    """Pick the unit of one time that stands alone."""
    size = abs(value_s) * (1 + 1e-9)  # 10 ** -3 may come as a hair less
    return SECONDS if size >= 1 else MILLISECONDS if size >= 1e-3 else MICROSECONDS


def choose_time_unit(values_s: list[float | None]) -> Unit:
    """Pick one unit for a row of times that are read together."""
    known = sorted(abs(value) for value in values_s if value is not None)
    if not known:
        return MILLISECONDS
    if known[-1] < 1e-3:
        return MICROSECONDS
    return SECONDS if known[0] >= 1.0 or known[-1] >= 100.0 else MILLISECONDS


def format_number(value: float | None) -> str:
    """Write a number with three significant digits, thousands separated; whole from 100 up."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    digits = NUM_DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if rounded != 0:
        digits = NUM_DIGITS - 1 - math.floor(math.log10(abs(rounded)))
    return f"{value:,.{min(max(digits, 0), 6)}f}"


def format_count(value: int | float | None) -> str:
    """Write a whole number, thousands separated."""
    return DASH if value is None else f"{int(value):,}"


def format_in(value_s: float | None, unit: Unit) -> str:
    """Write a time in the given unit, without naming it."""
    return DASH if value_s is None else format_number(value_s * unit.scale)


def format_time(value_s: float | None) -> str:
    """Write a time with the unit that suits it: `212 ms`, `1.42 s`, `83.0 µs`."""
    if value_s is None:
        return DASH
    unit = suit_time(value_s)
    return f"{format_in(value_s, unit)} {unit.name}"


def format_tick(value_s: float) -> str:
    """Write a round time on an axis: `1 ms`, `20 ms`, `1 s`; 0 needs no unit."""
    if value_s == 0:
        return "0"
    unit = suit_time(value_s)
    return f"{value_s * unit.scale:g} {unit.name}"


def format_duration(value_s: float | None) -> str:
    """Write a span as a person sets it: `30 s`, `1.5 s`, `1 min 5 s`."""
    if value_s is None:
        return DASH
    if value_s >= 60:
        minutes, seconds = divmod(round(value_s), 60)
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    return f"{round(value_s, 1):g} s"


def format_run_time(time_s: float) -> str:
    """Write an instant of a run: `12.35 s`."""
    return f"{time_s:.2f} s"


def format_nines(one_in: float) -> str:
    """Write how rare a value is (1 in 100) as its percentile: `p99`."""
    return f"p{100 - 100 / one_in:.5g}"


def format_percent(fraction: float | None) -> str:
    """Write a fraction as a percentage: `41 %`, `0.3 %`."""
    if fraction is None:
        return DASH
    percent = 100 * fraction
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"


def sparkline(counts: list[int]) -> str:
    """Draw counts as block characters; zero is blank, anything above zero is visible."""
    blocks = "▁▂▃▄▅▆▇█"
    top = max(counts, default=0)
    if top == 0:
        return " " * len(counts)
    return "".join(
        " " if n == 0 else blocks[min(len(blocks) - 1, n * len(blocks) // (top + 1))] for n in counts
    )
