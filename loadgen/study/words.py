"""How a finding writes its figures: times, factors, shares and intervals, three digits each."""

from __future__ import annotations

from loadgen.stats.replicates import OverRuns
from loadgen.units import format_seconds as seconds

__all__ = ["around", "factor", "listed", "number", "percent", "seconds"]


def factor(value: float) -> str:
    """Write a ratio: `4.06x`."""
    return f"{value:.3g}x"


def around(ratio: OverRuns) -> str:
    """Write a ratio with its interval over seeds, where there is one: `4.06x [4.01, 4.11]`."""
    if ratio.interval is None:
        return factor(ratio.value)
    low, high = ratio.interval
    return f"{factor(ratio.value)} [{low:.3g}, {high:.3g}]"


def percent(share: float) -> str:
    """Write a share: `75 %`; of what is as good as nothing, `0 %`."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.095 or abs(share) < 0.0005 else f"{100 * share:.1f} %"


def number(value: float) -> str:
    """Write a count or a rate: thousands separated, three digits below 1,000."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def listed(names: list[str]) -> str:
    """Write names as a list in words; `none` for no name."""
    if not names:
        return "none"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
