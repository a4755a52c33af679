"""A sweep in the terminal: one line a rate, points that are not steady or not valid marked as such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.quantities import format_number, format_time

LATENCIES = (("ttft_s", "p50"), ("ttft_s", "p99"), ("itl_s", "p50"), ("itl_s", "p99"), ("e2e_s", "p99"))
NOT_STEADY = {False: "unstable", None: "undecided"}
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


def objectives(document: Mapping[str, Any]) -> list[str]:
    """Say of each objective at which rates it held; of invalid measurements nothing is known."""
    told = []
    points = _named_points(document)
    for name in dict.fromkeys(name for _, point in points for name in point.get("met") or ()):
        met = {at: point["met"].get(name) if point["status"] == "valid" else None for at, point in points}
        parts = []
        for said, wanted in (("held", True), ("missed", False), ("unknown", None)):
            if rates := [at for at, is_met in met.items() if is_met is wanted]:
                parts.append(f"{said} at {', '.join(rates)} requests/s")
        told.append(f"{name} {'; '.join(parts)}")
    return told


def _named_points(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Every point with its rate, and the name of its curve where there are several."""
    return [
        (f"{curve['name']} {point['rate_per_s']:g}".strip(), point)
        for curve in curves_of(document)
        for point in curve["points"]
    ]


def print_sweep(document: Mapping[str, Any], console: Console, *, wide: bool = False) -> None:
    """Print the points of sweep.json by rate, and the sentences about them.

    wide: p90 too, and the intervals of what has one.
    """
    curves = curves_of(document)
    for curve in curves:
        if len(curves) > 1:
            console.print(Text(curve["name"], style="bold"))
        console.print(_table(curve, wide=wide))
    points = _named_points(document)
    for code in dict.fromkeys(code for _, point in points for code in point["reasons"]):
        rates = ", ".join(at for at, point in points if code in point["reasons"])
        console.print(Text(f"INVALID {code} at {rates} requests/s", style="red"), soft_wrap=True)
    for sentence in (*objectives(document), *sentences(document)):
        console.print(Text(sentence), soft_wrap=True)


def _table(curve: Mapping[str, Any], *, wide: bool) -> Table:
    latencies = WIDE_LATENCIES if wide else LATENCIES
    labels = (f"{metric.removesuffix('_s').upper()} {statistic}" for metric, statistic in latencies)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("asked", "offered", "ok /s", "tok/s", *labels, ""):
        table.add_column(name, justify="right" if name else "left")
    for point in curve["points"]:
        rates = (point["offered_per_s"], point["ok_per_s"], point["output_tokens_per_s"])
        cells = [f"{point['rate_per_s']:.4g}", *map(format_number, rates)]
        cells += [_latency(point, metric, statistic, wide) for metric, statistic in latencies]
        table.add_row(*cells, _remark(point))
    return table


def _latency(point: Mapping[str, Any], metric: str, statistic: str, wide: bool) -> str:
    text = format_time(point["latency"][metric][statistic])
    interval = point["intervals"][metric].get(statistic)
    if not wide or not interval:
        return text
    return f"{text} [{format_time(interval[0])}, {format_time(interval[1])}]"


def _remark(point: Mapping[str, Any]) -> Text:
    if point["status"] != "valid":
        return Text("INVALID", style="red")
    if not point["is_stable"]:
        return Text(NOT_STEADY[point["is_stable"]], style="yellow")
    return Text(f"{point['failed']} failed", style="yellow") if point["failed"] else Text("")
