"""The rows of requests that were never sent over a wire: a simulated run, in the same file as a measured one.

Decides which columns virtual time can fill. Where a live run takes a stamp at a socket there is none here:
a request is sent, connected and written at one instant, and a token is read when it is emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from loadgen.records import MAX_ERROR_CHARS, Outcome, arrow_schema
from loadgen.row_stream import stream_path

if TYPE_CHECKING:
    import pyarrow as pa

    from workloads.plan import Plan

BATCH_ROWS = 8192
STAMP_SOURCE = "virtual"


class VirtualRows:
    """Append requests of a simulation to the stream of rows of a run folder, many at a time."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        import pyarrow as pa

        self._plan = plan
        self._run_id = folder.name
        self._file: BinaryIO = open(stream_path(folder, 0), "xb")  # noqa: SIM115 (closed by close)
        self._stream = pa.ipc.new_stream(self._file, arrow_schema())
        self._index: list[int] = []
        self._sent: list[tuple[int, int]] = []
        self._stamps_ps: list[int] = []
        self._num_stamps: list[int] = []
        self._delay_ns: list[int] = []
        self._ends: list[tuple[int | None, str, str | None, int | None]] = []

    def append(
        self,
        index: int,
        scheduled_ns: int,
        sent_ns: int,
        stamps_ps: Sequence[int],
        *,
        delay_ns: int = 0,
        ended_ns: int | None = None,
        outcome: Outcome = Outcome.OK,
        error: str | None = None,
        http_status: int | None = 200,
    ) -> None:
        """Take a request that has ended; `ended_ns` where that is not at its last token.

        stamps_ps: when its tokens came out of the engine, `delay_ns` before they were read.
        """
        self._index.append(index)
        self._sent.append((scheduled_ns, sent_ns))
        self._stamps_ps += stamps_ps
        self._num_stamps.append(len(stamps_ps))
        self._delay_ns.append(delay_ns)
        self._ends.append((ended_ns, str(outcome), error and error[:MAX_ERROR_CHARS], http_status))
        if len(self._index) >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand every pending row to the kernel."""
        if not self._index:
            return
        self._stream.write_batch(self._batch())
        self._file.flush()
        for pending in (
            self._index,
            self._sent,
            self._stamps_ps,
            self._num_stamps,
            self._delay_ns,
            self._ends,
        ):
            pending.clear()

    def close(self) -> None:
        """Write what is pending and end the stream."""
        self.flush()
        self._stream.close()
        self._file.close()

    def _batch(self) -> pa.RecordBatch:
        import pyarrow as pa

        plan, n = self._plan, len(self._index)
        rows = np.array(self._index, np.int64)
        scheduled, sent = np.array(self._sent, np.int64).T
        stamps = (np.array(self._stamps_ps, np.int64) + 500) // 1000
        stamps += np.repeat(np.array(self._delay_ns, np.int64), self._num_stamps)
        offsets = np.concatenate([[0], np.cumsum(self._num_stamps)]).astype(np.int32)
        counts = np.diff(offsets)
        is_empty = counts == 0
        padded = np.append(stamps, 0)
        first = pa.array(padded[np.minimum(offsets[:-1], len(stamps))], mask=is_empty)
        last = pa.array(padded[offsets[1:] - 1], mask=is_empty)
        ended, outcomes, errors, statuses = map(list, zip(*self._ends, strict=True))
        is_ok = np.array([outcome == Outcome.OK for outcome in outcomes])
        done = np.where(is_ok, padded[offsets[1:] - 1], np.array([e or 0 for e in ended], np.int64))
        events = pa.ListArray.from_arrays(pa.array(offsets), pa.array(stamps))
        singles = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ones(len(stamps), np.int32)))
        prompts = plan.prompt_tokens[rows]
        values: dict[str, Any] = {
            "index": rows,
            "session": plan.session[rows],
            "turn": plan.turn[rows],
            "class": pa.array(plan.classes).take(pa.array(plan.class_id[rows])),
            "scheduled_ns": scheduled,
            "headers_ns": first,
            "first_event_ns": first,
            "first_token_ns": first,
            "first_answer_ns": first,
            "last_token_ns": last,
            "done_ns": done,
            "prompt_tokens_planned": prompts,
            "output_tokens_planned": plan.output_tokens[rows],
            "prompt_tokens": pa.array(prompts, mask=is_empty),
            "output_tokens": pa.array(counts.astype(np.int32), mask=is_empty),
            "prompt_tokens_source": ["count"] * n,
            "output_tokens_source": ["count"] * n,
            "chunk_ns": events,
            "chunk_lower_ns": events,
            "chunk_tokens": singles,
            "stamp_source": [STAMP_SOURCE] * n,
            "recv_lag_ns": np.zeros(n, np.int64),
            "outcome": outcomes,
            "http_status": statuses,
            "error": errors,
            "worker": np.zeros(n, np.int32),
            "server_request_id": [f"{self._run_id}-{index}" for index in self._index],
        }
        values |= dict.fromkeys(("sent_ns", "connected_ns", "written_ns"), sent)
        schema = arrow_schema()
        columns = [
            values[column.name]
            if isinstance(values.get(column.name), pa.Array)
            else pa.array(values.get(column.name, [None] * n), column.type)
            for column in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
