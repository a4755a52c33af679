"""A sweep in the terminal: one line a rate, unstable and invalid points marked as such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.quantities import format_number, format_time

COLUMNS = ("asked", "ok", "output", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "E2E p99", "")


def print_sweep(document: Mapping[str, Any], folder: str, console: Console) -> None:
    """Print the points of sweep.json by rate, the sentence about saturation, and where the runs are."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        table.add_column(name, justify="right" if name else "left")
    for point in document["points"]:
        latency = point["latency"]
        cells = [f"{point['rate_per_s']:.4g} /s", f"{format_number(point['ok_per_s'])} /s"]
        cells.append(f"{format_number(point['output_tokens_per_s'])} tok/s")
        cells += [format_time(latency[m][s]) for m, s in (("ttft_s", "p50"), ("ttft_s", "p99"))]
        cells += [
            format_time(latency[m][s]) for m, s in (("itl_s", "p50"), ("itl_s", "p99"), ("e2e_s", "p99"))
        ]
        table.add_row(*cells, _remark(point))
    console.print(table)
    console.print(Text(document["saturation"]["sentence"]), soft_wrap=True)
    console.print(Text(f"data  {folder}"), soft_wrap=True)


def _remark(point: Mapping[str, Any]) -> Text:
    if point["status"] != "valid":
        return Text(f"INVALID {' '.join(point['reasons'])}", style="red")
    if not point["is_stable"]:
        return Text("unstable", style="yellow")
    return Text(f"{point['failed']} failed", style="yellow") if point["failed"] else Text("")
