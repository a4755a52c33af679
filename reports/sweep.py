"""A sweep in the terminal: one line a rate, unstable and invalid points marked as such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.quantities import format_number, format_time

LATENCIES = (("ttft_s", "p50"), ("ttft_s", "p99"), ("itl_s", "p50"), ("itl_s", "p99"), ("e2e_s", "p99"))
WIDE_LATENCIES = tuple((metric, s) for metric in ("ttft_s", "itl_s", "e2e_s") for s in ("p50", "p90", "p99"))


def curves_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the curves of sweep.json, each with a name; one without, where only one thing was swept."""
    return document.get("curves") or [{"name": "", **document}]


def sentences(document: Mapping[str, Any]) -> list[str]:
    """Say where a curve saturates and where its knee is; of several only where each saturates."""
    curves = curves_of(document)
    if len(curves) > 1:
        return [f"{curve['name']}: {curve['saturation']['sentence']}" for curve in curves]
    return [curves[0][found]["sentence"] for found in ("saturation", "knee") if curves[0].get(found)]


def print_sweep(document: Mapping[str, Any], console: Console, *, wide: bool = False) -> None:
    """Print the points of sweep.json by rate, and the sentences about them.

    wide: p90 too, and the intervals of what has one.
    """
    latencies = WIDE_LATENCIES if wide else LATENCIES
    table = Table(box=None, padding=(0, 1, 0, 0))
    curves = curves_of(document)
    if len(curves) > 1:
        table.add_column("policy")
    for name in (
        "asked /s",
        "offered /s",
        "ok /s",
        "output tok/s",
        *(f"{m.removesuffix('_s').upper()} {s}" for m, s in latencies),
        "",
    ):
        table.add_column(name, justify="right" if name else "left")
    for curve in curves:
        for point in curve["points"]:
            cells = [curve["name"]] if len(curves) > 1 else []
            rates = (point["offered_per_s"], point["ok_per_s"])
            cells += [f"{point['rate_per_s']:.4g}", *map(format_number, rates)]
            cells.append(format_number(point["output_tokens_per_s"]))
            cells += [_latency(point, metric, statistic, wide) for metric, statistic in latencies]
            table.add_row(*cells, _remark(point))
    console.print(table)
    for sentence in sentences(document):
        console.print(Text(sentence), soft_wrap=True)


def _latency(point: Mapping[str, Any], metric: str, statistic: str, wide: bool) -> str:
    text = format_time(point["latency"][metric][statistic])
    interval = point["intervals"][metric].get(statistic)
    if not wide or not interval:
        return text
    return f"{text} [{format_time(interval[0])}, {format_time(interval[1])}]"


def _remark(point: Mapping[str, Any]) -> Text:
    if point["status"] != "valid":
        return Text(f"INVALID {' '.join(point['reasons'])}", style="red")
    if not point["is_stable"]:
        return Text("unstable", style="yellow")
    return Text(f"{point['failed']} failed", style="yellow") if point["failed"] else Text("")
