"""What the reference engine's scheduler decided, step by step: who was computed, who waited, who was evicted.

Reads the engine's own log and decides which few steps are worth a picture: the first ones, or those around
the longest silence of the request that stalled longest. Instants are seconds from the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.measured import Measured
from loadgen.store import Run

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["waiting", "standing by", "evicted", "prefill", "decode"]
Ints = NDArray[np.int64]
Request = Mapping[str, Any]  # index, arrived_ns, finished_ns, spans

NUM_STEPS = 40
MAX_STALL_STEPS = 60
MAX_REQUESTS = 24
MAX_PAUSE_STEPS = 8  # an engine idle for longer than so many typical steps ends a window


class Bar(NamedTuple):
    """What happened to a request, and from when to when; `row` counts `Gantt.requests`."""

    row: int
    kind: Kind
    start_s: float
    end_s: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gantt:
    """A window of steps: its requests in order of arrival, by index in the plan, and their bars.

    `stall`: row, start and end in seconds of the silence that the window is about.
    """

    requests: list[int]
    bars: list[Bar]
    start_s: float
    end_s: float
    stall: tuple[int, float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """The engine's steps: int64 [steps] each."""

    number: Ints
    start_ns: Ints
    end_ns: Ints
    decode_seqs: Ints

    @classmethod
    def of(cls, table: pa.Table) -> Steps:
        names = {"number": "step", "start_ns": "start_ns", "end_ns": "end_ns", "decode_seqs": "decode_seqs"}
        return cls(**{field: table.column(name).to_numpy() for field, name in names.items()})

    def of_span(self, span: Mapping[str, Any]) -> Ints:
        """Positions of the steps in which the span's request was computed."""
        first, last = np.searchsorted(self.number, [span["first_step"], span["last_step"] + 1])
        at = np.arange(first, last)
        return at[self.decode_seqs[at] > 0] if span["kind"] == "decode" else at

    def widen(self, first: int, last: int) -> tuple[int, int]:
        """Widen first..last to NUM_STEPS or a little more, but not over a pause of the engine."""
        pause = MAX_PAUSE_STEPS * float(np.median(self.end_ns - self.start_ns))
        is_pause = self.start_ns[1:] - self.end_ns[:-1] > pause
        before, after = np.flatnonzero(is_pause[:first]), np.flatnonzero(is_pause[last:])
        margin = max(NUM_STEPS - (last - first), NUM_STEPS // 4) // 2
        low = int(before[-1]) + 1 if len(before) else 0
        high = last + int(after[0]) if len(after) else len(self.number) - 1
        return max(first - margin, low), min(last + margin, high)


def first_steps(run: Run) -> Gantt | None:
    """The first decisions of a run; None where the engine kept no log of them."""
    steps, requests = _read(run)
    if steps is None or not requests:
        return None
    arrived_ns = min(request["arrived_ns"] for request in requests)
    first = int(np.searchsorted(steps.end_ns, arrived_ns))
    last = min(first + NUM_STEPS, len(steps.number)) - 1
    return _cut_out(steps, requests, first, last) if first <= last else None


def worst_stall(run: Run, measured: Measured) -> Gantt | None:
    """The decisions around the longest silence of the request that stalled longest; None without one."""
    steps, requests = _read(run)
    silence_s = measured.values["max_gap_s"]
    if steps is None or np.isnan(silence_s).all():
        return None
    index = int(np.flatnonzero(measured.counted)[np.nanargmax(silence_s)])
    request = next((request for request in requests if request["index"] == index), None)
    tokens = _token_steps(steps, request["spans"]) if request else []
    if len(tokens) < 2:
        return None
    begin, end = max(pairwise(tokens), key=lambda gap: steps.end_ns[gap[1]] - steps.end_ns[gap[0]])
    window = steps.widen(begin, min(end, begin + MAX_STALL_STEPS))
    start_s, end_s = float(steps.end_ns[begin]) / 1e9, float(steps.end_ns[end]) / 1e9
    return _cut_out(steps, requests, *window, stall=(index, start_s, end_s))


def _read(run: Run) -> tuple[Steps | None, list[Request]]:
    import pyarrow.compute as pc

    steps, requests = run.step_rows(), run.engine_request_rows()
    if steps is None or requests is None or not len(steps) or "spans" not in requests.column_names:
        return None, []
    prefix = f"{run.manifest.get('run_id', run.path.name)}-"
    named = requests.filter(pc.starts_with(requests.column("server_request_id"), prefix))
    rows = named.select(["server_request_id", "arrived_ns", "finished_ns", "spans"]).to_pylist()
    return Steps.of(steps), [
        {**row, "index": int(row["server_request_id"].removeprefix(prefix))} for row in rows
    ]


def _token_steps(steps: Steps, spans: Sequence[Mapping[str, Any]]) -> list[int]:
    """The steps that gave a request a token: its decodes, and the prefill before them."""
    found: list[int] = []
    for span, after in pairwise([*spans, {"kind": ""}]):
        if span["kind"] == "decode":
            found += steps.of_span(span).tolist()
        elif span["kind"] == "prefill" and after["kind"] == "decode":
            found += steps.of_span(span).tolist()[-1:]
    return found


def _cut_out(
    steps: Steps,
    requests: Sequence[Request],
    first: int,
    last: int,
    stall: tuple[int, float, float] | None = None,
) -> Gantt:
    """Cut steps first..last out of the log; of many requests, those that arrived next to the stalled one."""
    start_ns, end_ns = int(steps.start_ns[first]), int(steps.end_ns[last])
    alive = [r for r in requests if r["arrived_ns"] < end_ns and (r["finished_ns"] or end_ns) > start_ns]
    alive.sort(key=lambda request: int(request["arrived_ns"]))
    names = [int(request["index"]) for request in alive]
    centre = names.index(stall[0]) if stall else 0
    begin = max(min(centre - MAX_REQUESTS // 2, len(alive) - MAX_REQUESTS), 0)
    alive, names = alive[begin : begin + MAX_REQUESTS], names[begin : begin + MAX_REQUESTS]
    start_s, end_s = start_ns / 1e9, end_ns / 1e9
    bars = [
        bar._replace(start_s=max(bar.start_s, start_s), end_s=min(bar.end_s, end_s))
        for row, request in enumerate(alive)
        for bar in _bars(steps, row, request)
        if bar.start_s < end_s and bar.end_s > start_s
    ]
    marked = (names.index(stall[0]), *stall[1:]) if stall else None
    return Gantt(requests=names, bars=bars, start_s=start_s, end_s=end_s, stall=marked)


def _bars(steps: Steps, row: int, request: Request) -> Iterator[Bar]:
    """What happened to a request, from its arrival to its last step."""
    state: Kind = "waiting"
    since_ns, previous = request["arrived_ns"], -1
    for span in request["spans"]:
        at = steps.of_span(span)
        is_loss = span["kind"] in ("evicted", "displaced")
        tokens = span["tokens"] // max(len(at), 1)
        for step in at:
            start_ns = steps.start_ns[step]
            if step != previous + 1 or state != "standing by":
                yield Bar(row, state, since_ns / 1e9, start_ns / 1e9, 0)
            if is_loss:
                since_ns, state = start_ns, "evicted"
                continue
            yield Bar(row, span["kind"], start_ns / 1e9, steps.end_ns[step] / 1e9, tokens)
            since_ns, state, previous = steps.end_ns[step], "standing by", step
