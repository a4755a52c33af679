"""A capacity in the terminal: the answer, and every run that was made for it, by rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.quantities import format_count, format_number, format_time

LABELS = {
    "interval": ("CAPACITY", "bold green"),
    "none": ("NO RATE", "bold red"),
    "above": ("CAPACITY", "bold yellow"),
    "bracket": ("BRACKET", "bold yellow"),
    "undecided": ("UNDECIDED", "bold yellow"),
}


def print_capacity(document: Mapping[str, Any], console: Console) -> None:
    """Print the answer of capacity.json, and its points by rate."""
    label, style = LABELS[document["answer"]]
    console.print(Text.assemble((label, style), f"  {document['sentence']}"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("rate", "seed", *document["limits"], "failed", ""):
        table.add_column(name, justify="right" if name else "left")
    for point in sorted(document["points"], key=lambda p: (p["rate_per_s"], p["replicate"])):
        figures = [format_figure(name, point["figures"].get(name)) for name in document["limits"]]
        seed = "probe" if point["is_probe"] else str(point["seed"])
        rate = f"{format_number(point['rate_per_s'])} /s"
        table.add_row(rate, seed, *figures, format_count(point["failed"]), _remark(point))
    console.print(table)
    console.print(Text(f"spent {describe_spending(document)}"))


def describe_spending(document: Mapping[str, Any]) -> str:
    """`3,300 requests in 11 runs`."""
    runs = len(document["points"])
    requests = document["num_requests"]
    return f"{format_count(requests)} request{'s' * (requests != 1)} in {runs} run{'s' * (runs != 1)}"


def describe_figures(figures: Mapping[str, float | None]) -> str:
    """Objectives and what was seen: `ttft.p99 312 ms, itl.p99 41 ms`."""
    return ", ".join(f"{name} {format_figure(name, value)}" for name, value in figures.items())


def format_figure(label: str, value: float | None) -> str:
    """A figure in its unit; counts have none."""
    is_count = label.startswith(("in_flight", "output_tokens", "prompt_tokens"))
    return format_number(value) if is_count else format_time(value)


def _remark(point: Mapping[str, Any]) -> Text:
    if point["passes"] is None:
        return Text(f"INVALID {' '.join(point['reasons'])}", style="red")
    if point["is_stable"] is False:
        return Text("backlog grows", style="yellow")
    return Text("holds", style="green") if point["passes"] else Text("fails", style="yellow")
