"""What the reference engine's scheduler decided, step by step: who was computed, who waited, who was evicted.

Reads the engine's own log and decides which few steps are worth a picture: the first ones, or those around
the longest silence of the request that stalled longest. Instants are seconds from the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
Request = dict[str, Any]  # index, and the columns of engine_requests.parquet

NUM_STEPS = 40
MAX_STALL_STEPS = 60
MAX_REQUESTS = 24
MAX_WAITING = 6  # of those that only wait, the first in line
_NO_STEPS: Ints = np.zeros(0, np.int64)
MAX_PAUSE_STEPS = 8  # an engine idle for longer than so many typical steps ends a window


class Bar(NamedTuple):
    """What happened to a request, and from when to when; `row` counts `Gantt.requests`."""

    row: int
    kind: Kind
    start_s: float
    end_s: float
    tokens: int


class Phase(NamedTuple):
    """A stretch of a request's time in the engine; steps: positions of those that computed it."""

    kind: Kind
    start_ns: int
    end_ns: int
    tokens: int
    steps: Ints


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

    def of_span(self, span: dict[str, Any]) -> Ints:
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineLog:
    """The engine's steps, and its requests of this run as a table with their `index` in the plan."""

    steps: Steps
    table: pa.Table

    @classmethod
    def of(cls, run: Run) -> EngineLog | None:
        """Read the log of a run; None where the engine kept none, or not what it did with each request."""
        import pyarrow.compute as pc

        steps, requests = run.step_rows(), run.engine_request_rows()
        if steps is None or requests is None or not len(steps) or "spans" not in requests.column_names:
            return None
        prefix = f"{run.manifest.get('run_id', run.path.name)}-"
        requests = requests.filter(pc.starts_with(requests.column("server_request_id"), prefix))
        index = pc.cast(pc.utf8_slice_codeunits(requests.column("server_request_id"), len(prefix)), "int64")
        return cls(steps=Steps.of(steps), table=requests.append_column("index", index))

    def request(self, index: int) -> Request | None:
        """One request by its index in the plan."""
        import pyarrow.compute as pc

        found: list[Request] = self.table.filter(pc.equal(self.table.column("index"), index)).to_pylist()
        return found[0] if found else None

    def alive(self, start_ns: int, end_ns: int) -> list[Request]:
        """Requests that were in the engine at some time between, in order of arrival."""
        import pyarrow.compute as pc

        arrived = pc.less(self.table.column("arrived_ns"), end_ns)
        finished = pc.greater(pc.fill_null(self.table.column("finished_ns"), end_ns), start_ns)
        rows: list[Request] = self.table.filter(pc.and_(arrived, finished)).sort_by("arrived_ns").to_pylist()
        return rows


def first_steps(run: Run) -> Gantt | None:
    """The first decisions of a run; None where the engine kept no log of them."""
    import pyarrow.compute as pc

    log = EngineLog.of(run)
    if log is None or not len(log.table):
        return None
    first = int(np.searchsorted(log.steps.end_ns, pc.min(log.table.column("arrived_ns")).as_py()))
    last = min(first + NUM_STEPS, len(log.steps.number)) - 1
    return _cut_out(log, first, last) if first <= last else None


def worst_stall(run: Run, measured: Measured) -> Gantt | None:
    """The decisions around the longest silence of the request that stalled longest; None without one."""
    log, silence_s = EngineLog.of(run), measured.values["max_gap_s"]
    if log is None or np.isnan(silence_s).all():
        return None
    index = int(np.flatnonzero(measured.counted)[np.nanargmax(silence_s)])
    request = log.request(index)
    tokens = _token_steps(log.steps, request["spans"]) if request else []
    if len(tokens) < 2:
        return None
    ends = log.steps.end_ns
    begin, end = max(pairwise(tokens), key=lambda gap: ends[gap[1]] - ends[gap[0]])
    window = log.steps.widen(begin, min(end, begin + MAX_STALL_STEPS))
    return _cut_out(log, *window, stall=(index, float(ends[begin]) / 1e9, float(ends[end]) / 1e9))


def histories(run: Run) -> Iterator[tuple[Request, list[Phase]]]:
    """Every request of the run that the engine kept a log of, and what happened to it."""
    log = EngineLog.of(run)
    if log is not None:
        for request in log.table.to_pylist():
            yield request, list(_phases(log.steps, request))


def _token_steps(steps: Steps, spans: Sequence[dict[str, Any]]) -> list[int]:
    """The steps that gave a request a token: its decodes, and the prefill before them."""
    found: list[int] = []
    for span, after in pairwise([*spans, {"kind": ""}]):
        if span["kind"] == "decode":
            found += steps.of_span(span).tolist()
        elif span["kind"] == "prefill" and after["kind"] == "decode":
            found += steps.of_span(span).tolist()[-1:]
    return found


def _cut_out(log: EngineLog, first: int, last: int, stall: tuple[int, float, float] | None = None) -> Gantt:
    """Cut steps first..last out of the log, with the requests that were computed and a few that waited."""
    steps = log.steps
    start_ns, end_ns = int(steps.start_ns[first]), int(steps.end_ns[last])
    from_step, to_step = int(steps.number[first]), int(steps.number[last])
    alive, num_waiting = [], 0
    for request in log.alive(start_ns, end_ns):
        is_computed = any(
            span["first_step"] <= to_step and span["last_step"] >= from_step for span in request["spans"]
        )
        num_waiting += not is_computed
        if is_computed or num_waiting <= MAX_WAITING:
            alive.append(request)
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


def _phases(steps: Steps, request: Request) -> Iterator[Phase]:
    """What happened to a request, from its arrival to its last step; pauses between steps are left out."""
    state: Kind = "waiting"
    since_ns, previous = int(request["arrived_ns"]), -1
    for span in request["spans"]:
        at = steps.of_span(span)
        if not len(at):
            continue
        start_ns = int(steps.start_ns[at[0]])
        if start_ns > since_ns and (state != "standing by" or at[0] > previous + 1):
            yield Phase(state, since_ns, start_ns, 0, _NO_STEPS)
        if span["kind"] in ("evicted", "displaced"):
            since_ns, state = start_ns, "evicted"
            continue
        since_ns, state, previous = int(steps.end_ns[at[-1]]), "standing by", int(at[-1])
        yield Phase(span["kind"], start_ns, since_ns, span["tokens"], at)


def _bars(steps: Steps, row: int, request: Request) -> Iterator[Bar]:
    """The same step by step: a bar each, and one wherever a step passed without the request."""
    previous = -1
    for kind, start_ns, end_ns, tokens, at in _phases(steps, request):
        if len(at) == 0:
            yield Bar(row, kind, start_ns / 1e9, end_ns / 1e9, 0)
        for step in at.tolist():
            start_s, end_s = float(steps.start_ns[step]) / 1e9, float(steps.end_ns[step]) / 1e9
            if step > at[0] and step != previous + 1:
                yield Bar(row, "standing by", float(steps.end_ns[previous]) / 1e9, start_s, 0)
            yield Bar(row, kind, start_s, end_s, tokens // len(at))
            previous = step
