"""ServeGen's client models (github.com/alibaba/ServeGen, Apache-2.0) as a workload of clients.

A file holds, for each client and window of 600 s: start, rate, CV of the gaps, law, shape and scale; either
with a header and a client column, or as published, one client a file and no header. Rates become steps, and
the CV is the rate-weighted mean of the windows'. Rescaling is by `rate`: `shape * scale` is not `1 / rate`
in sparse windows. Lengths are quantiles of the published probabilities, prompt and answer independent (as
ServeGen's paper finds them; its code ties their ranks).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import WorkloadError
from workloads.spec import Workload
from workloads.traces.cells import CellError, parse_count
from workloads.traces.source import Head, look, objects, rows

_NAMED = ("client", "window_start_s", "rate_rps", "iat_cv")
WINDOW_S = 600.0
LEVELS = np.array([0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.9, 100]) / 100


def load_servegen(path: Path, lengths: Path | None, window_s: tuple[float, float | None] | None) -> Workload:
    """Make a workload of the file's clients that are active in the window (None: all of its time)."""
    start, end = window_s or (0.0, None)
    clients = []
    found = _windows(look(path))
    if end is None:
        end = max(float(windows[-1, 0]) for windows in found.values()) + WINDOW_S
    laws = {} if lengths is None else _lengths(lengths)
    for client, windows in found.items():
        is_active = (windows[:, 0] + WINDOW_S > start) & (windows[:, 0] < end) & (windows[:, 1] > 0)
        if not is_active.any():
            continue
        active = windows[is_active]
        inputs, outputs = laws.get(client, (None, None))
        clients.append(
            Workload(
                name=f"client-{client}",
                share=round(float(active[:, 1].sum()), 6),
                arrival=_arrival(active, start, end),
                input_tokens=inputs,
                output_tokens=outputs,
            )
        )
    if not clients:
        raise WorkloadError(f"{path}: no client is active in the window {start:g}:{end:g}s")
    return Workload(name=path.name.partition(".")[0], duration_s=end - start, clients=tuple(clients))


def _windows(head: Head) -> dict[str, Any]:
    """Read start, rate and CV of each client's windows, in order of time."""
    is_named = "client" in head.columns
    found: dict[str, list[list[float]]] = {}
    if not is_named:  # no header: what was taken for one is the first row
        found["0"] = [[float(cell) for cell in head.columns[:3]]]
    for line, cells in rows(head, _NAMED if is_named else head.columns[:3]):
        client = str(cells[0]) if is_named else "0"
        try:
            values = [float(cell or 0) for cell in cells[is_named:]]
        except ValueError as exc:
            raise WorkloadError(f"{head.path}, line {line}: {exc}") from exc
        found.setdefault(client, []).append(values)
    return {client: np.array(sorted(values)) for client, values in found.items()}


def _arrival(windows: Any, start: float, end: float) -> str:
    """Write the windows as steps, idle where there is none."""
    steps: dict[float, float] = {0.0: 0.0}
    for at, rate, _ in windows:
        steps[max(at - start, 0.0)] = rate
        steps.setdefault(min(at + WINDOW_S, end) - start, 0.0)
    cv = float(np.average(windows[:, 2], weights=windows[:, 1]))
    parts = [f"{at:g}s:{rate:g}" for at, rate in sorted(steps.items())]
    return f"steps({', '.join(parts)}, cv={min(max(cv, 0.05), 50):.3g})"


def _lengths(path: Path) -> dict[str, tuple[str, str]]:
    """Read each client's lengths as quantile laws; probabilities are renormalised, windows weigh alike."""
    totals: dict[str, tuple[dict[int, float], dict[int, float]]] = {}
    for line, row in objects(look(path)):
        client = totals.setdefault(str(row.get("client", 0)), ({}, {}))
        for side, total in zip(("input_tokens", "output_tokens"), client, strict=True):
            try:
                pairs = [(parse_count(value), float(p)) for value, p in row[side].items()]
            except (KeyError, AttributeError, CellError, ValueError) as exc:
                raise WorkloadError(f"{path}, line {line}, column {side}: no table of probabilities") from exc
            mass = sum(p for _, p in pairs) or 1.0
            for value, p in pairs:
                total[value] = total.get(value, 0.0) + p / mass
    return {client: (_quantiles(inputs), _quantiles(outputs)) for client, (inputs, outputs) in totals.items()}


def _quantiles(total: dict[int, float]) -> str:
    values = np.array(sorted(total))
    cumulative = np.cumsum([total[value] for value in values.tolist()])
    picks = np.searchsorted(cumulative, LEVELS * cumulative[-1])
    lengths = np.maximum(values[np.minimum(picks, len(values) - 1)], 1)
    named = [f"p{level * 100:g}={length}" for level, length in zip(LEVELS, lengths, strict=True)]
    return f"empirical({', '.join(['min' + named[0][2:], *named[1:-1], 'max' + named[-1][4:]])})"
