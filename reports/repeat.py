"""Replicates in the terminal: every figure with its interval over the runs, and the runs left out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.quantities import DASH, format_number, format_percent, format_time

RATES = ("ok", "output_tokens", "goodput")
SHARES = ("attained", "errors.rate")
SHOWN_METRICS = ("ttft", "itl", "tpot", "e2e", "max_gap")
SHOWN_STATISTICS = ("mean", "p50", "p90", "p99")


def format_named(name: str, value: float | None) -> str:
    """A figure by its name: rates are numbers per second, shares per cent, all others times."""
    if name in SHARES:
        return format_percent(value)
    return f"{format_number(value)} /s" if name in RATES else format_time(value)


def format_interval(name: str, interval: tuple[float, float] | list[float] | None) -> str:
    """An interval in the units of its figure."""
    return DASH if interval is None else " to ".join(format_named(name, end) for end in interval)


def shown_figures(document: Mapping[str, Any]) -> list[str]:
    """Names of the figures that are shown, latencies first."""
    latencies = [f"{metric}.{statistic}" for metric in SHOWN_METRICS for statistic in SHOWN_STATISTICS]
    return [name for name in (*latencies, *RATES, *SHARES) if name in document["figures"]]


def objectives(document: Mapping[str, Any]) -> list[str]:
    """Say of each objective in how many runs it held."""
    return [
        f"{one['objective']} held in {one['num_met']} of {one['num_runs']} valid runs"
        for one in document.get("slo") or ()
    ]


def print_repeat(document: Mapping[str, Any], console: Console) -> None:
    """Print the figures of repeat.json, and the runs that are invalid."""
    runs = document["runs"]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("", "mean of runs", "95 % interval", "spread"):
        table.add_column(column, justify="right" if column else "left")
    for name in shown_figures(document):
        figure = document["figures"][name]
        interval = format_interval(name, figure["interval"])
        table.add_row(name, format_named(name, figure["value"]), interval, format_percent(figure["spread"]))
    console.print(table)
    for sentence in objectives(document):
        console.print(Text(sentence))
    num_valid = sum(not run["reasons"] for run in runs)
    console.print(Text(f"{num_valid} of {len(runs)} runs valid, each with a seed of its own"))
    for run in runs:
        if run["reasons"]:
            console.print(Text(f"INVALID {run['folder']}: {', '.join(run['reasons'])}", style="red"))
