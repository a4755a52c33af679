"""A run as a Chrome trace (JSON object format) that ui.perfetto.dev opens.

Requests are async slices (`b`/`e`, one id a request, their phases nested inside), because requests overlap
and complete slices (`X`) of one track must nest: once as the client saw them, once as the engine's account
tells of them. Engine steps never overlap, so they are `X`; counters are
`C`, names `M`. Format: "Trace Event Format", Google, 2016. Times are microseconds from the start of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgen.store import Run

Event = dict[str, Any]

CLIENT, ENGINE = 1, 2
# The instants of a request in order, and what it was doing until it reached each.
PHASES = {
    "sent_ns": "due, not sent",
    "first_token_ns": "waiting for the first token",
    "last_token_ns": "streaming",
    "done_ns": "closing",
}
INSTANTS = ("scheduled_ns", *PHASES)
STEP_COUNTERS = {
    "batch": ("decode_seqs", "prefill_tokens"),
    "sequences": ("running", "waiting"),
    "KV blocks": ("kv_used", "kv_cached", "kv_free"),
}


def render_perfetto(run: Run) -> str:
    """Return the run as one JSON document, events sorted by time."""
    events = [*_request_events(run), *_in_flight_events(run), *_step_events(run), *_engine_events(run)]
    # Stable: at a shared instant a slice still opens before what it holds and closes after it.
    events.sort(key=lambda event: event["ts"])
    document = {
        "traceEvents": [*_names(run), *events],
        "displayTimeUnit": "ms",
        "otherData": {"run": run.path.name, "status": run.manifest.get("status")},
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def _names(run: Run) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": CLIENT, "args": {"name": "client: requests"}}
    if run.step_rows() is not None:
        yield {"ph": "M", "name": "process_name", "pid": ENGINE, "args": {"name": "reference engine"}}
        yield {"ph": "M", "name": "thread_name", "pid": ENGINE, "tid": 1, "args": {"name": "steps"}}


def _request_events(run: Run) -> Iterator[Event]:
    details = ("index", "outcome", "prompt_tokens", "output_tokens", "error")
    for row in run.rows.read([*INSTANTS, *details]).to_pylist():
        instants = [(name, row[name]) for name in INSTANTS if row[name] is not None]
        common = {"cat": "request", "id": row["index"], "pid": CLIENT, "tid": 1}
        name = f"request {row['index']}"
        known = {key: row[key] for key in details if row[key] is not None}
        yield {"ph": "b", "name": name, "ts": _us(instants[0][1]), "args": known, **common}
        for (_, start_ns), (reached, end_ns) in pairwise(instants):
            yield {"ph": "b", "name": PHASES[reached], "ts": _us(start_ns), **common}
            yield {"ph": "e", "name": PHASES[reached], "ts": _us(end_ns), **common}
        yield {"ph": "e", "name": name, "ts": _us(instants[-1][1]), **common}


def _in_flight_events(run: Run) -> Iterator[Event]:
    from loadgen.measure import series
    from loadgen.measure.columns import read_columns

    points = series.in_flight(read_columns(run.rows))
    for time_s, level in zip(points.x, points.y, strict=True):
        common = {"ph": "C", "pid": CLIENT, "tid": 1}
        yield {"name": "in flight", "ts": time_s * 1e6, "args": {"requests": int(level)}, **common}


def _step_events(run: Run) -> Iterator[Event]:
    table = run.step_rows()
    for row in table.to_pylist() if table is not None else []:
        start_us, end_us = _us(row["start_ns"]), _us(row["end_ns"])
        common = {"pid": ENGINE, "tid": 1, "ts": start_us}
        details = {name: value for name, value in row.items() if name not in ("start_ns", "end_ns")}
        yield {
            "ph": "X",
            "name": "step",
            "cat": "engine",
            "dur": end_us - start_us,
            "args": details,
            **common,
        }
        for counter, names in STEP_COUNTERS.items():
            yield {"ph": "C", "name": counter, "args": {name: row[name] for name in names}, **common}


def _engine_events(run: Run) -> Iterator[Event]:
    """Each request inside the engine: waiting, prefills, decodes, evictions, and its account in full."""
    from loadgen.measure.gantt import histories

    for request, phases in histories(run):
        common = {"cat": "engine request", "id": request["index"], "pid": ENGINE, "tid": 2}
        name = f"request {request['index']}"
        buckets = {name: value for name, value in request.items() if name not in ("spans", "index")}
        yield {"ph": "b", "name": name, "ts": _us(request["arrived_ns"]), "args": buckets, **common}
        for phase in phases:
            told = {"args": {"tokens": phase.tokens}} if phase.tokens else {}
            yield {"ph": "b", "name": phase.kind, "ts": _us(phase.start_ns), **told, **common}
            yield {"ph": "e", "name": phase.kind, "ts": _us(phase.end_ns), **common}
        ends_ns = [phase.end_ns for phase in phases] or [request["arrived_ns"]]
        yield {"ph": "e", "name": name, "ts": _us(max(*ends_ns, request["finished_ns"] or 0)), **common}


def _us(instant_ns: int) -> float:
    return instant_ns / 1e3
