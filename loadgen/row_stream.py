"""Rows on disk as requests end: one Arrow IPC stream per load process, and the way back from all of them.

Decides when a row reaches the disk, what a planned request without a row becomes, and in which order rows are
read. A stream that a killed process left is read up to its last whole batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ContextDecorator, suppress
from importlib.abc import MetaPathFinder
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from loadgen.errors import RunFolderError
from loadgen.records import MAX_ERROR_CHARS, Outcome, RequestRecord, arrow_schema, column_names

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS = 16_384


class WithoutPandas(ContextDecorator, MetaPathFinder):
    """A context without pandas: pyarrow would import it, 300 ms and 30 MB, to see whether an array is its."""

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("rows are read and written without pandas", name=name)


class RowWriter:
    """Append request records to one Arrow IPC stream, a worker's own.

    A batch reaches the file after `batch_rows` rows, or when the caller flushes. A killed process loses no
    other.
    """

    def __init__(self, path: Path, *, batch_rows: int = 64) -> None:
        import pyarrow as pa

        self._path = path
        self._is_broken = False
        self._schema = arrow_schema()
        self._batch_rows = batch_rows
        self._pending: list[RequestRecord] = []
        try:
            self._file: BinaryIO = open(path, "xb")  # noqa: SIM115 (closed by close)
            self._stream = pa.ipc.new_stream(self._file, self._schema)
            self._file.flush()
        except OSError as exc:
            raise RunFolderError(f"cannot write {path}: {exc.strerror or exc}") from exc
        self.num_rows = 0

    def append(self, record: RequestRecord) -> None:
        """Take a record; it is on disk when its batch is full."""
        self._pending.append(record)
        self.num_rows += 1
        if len(self._pending) >= self._batch_rows:
            self.flush()

    def flush(self) -> None:
        """Hand every pending row to the kernel."""
        if self._pending:
            batch = _to_batch(self._pending, self._schema)
            self._pending.clear()
            try:
                self._stream.write_batch(batch)
                self._file.flush()
            except OSError as exc:
                self._is_broken = True
                raise RunFolderError(f"cannot write {self._path}: {exc.strerror or exc}") from exc

    def close(self) -> None:
        """Write what is pending and end the stream; further calls do nothing."""
        if self._file.closed:
            return
        if self._is_broken:  # it ends at its last whole batch
            with suppress(OSError):
                self._file.close()
            return
        self.flush()
        self._stream.close()
        self._file.close()


def _to_batch(records: Sequence[RequestRecord], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = []
    for name, column in zip(column_names(), schema, strict=True):
        values: list[Any] = list(map(attrgetter("request_class" if name == "class" else name), records))
        if name == "error":
            values = [None if value is None else value[:MAX_ERROR_CHARS] for value in values]
        elif name == "outcome":
            values = [str(value) for value in values]
        columns.append(pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def stream_path(folder: Path, worker: int) -> Path:
    """Where a worker's rows lie until they are compacted."""
    return folder / f"requests-{worker}.arrows"


def stream_paths(folder: Path) -> list[Path]:
    """The workers' streams that have not been compacted."""
    return sorted(folder.glob("requests-*.arrows"))


def read_stream(path: Path) -> list[pa.RecordBatch]:
    """Every whole batch of a stream, mapped into memory; a torn last batch (a killed writer) is left out."""
    import pyarrow as pa

    batches: list[pa.RecordBatch] = []
    if path.stat().st_size == 0:
        return batches
    try:
        reader = pa.ipc.open_stream(pa.memory_map(str(path)))
        while True:
            batches.append(reader.read_next_batch())
    except (StopIteration, pa.ArrowInvalid, OSError):
        return batches


def sorted_rows(streams: Sequence[Path], plan: pa.Table, reason: str) -> Iterator[pa.Table]:
    """The rows of all streams by index, ROW_GROUP_ROWS of the plan at a time."""
    import pyarrow as pa

    schema = arrow_schema()
    batches = [batch for path in streams for batch in read_stream(path) if batch.num_rows]
    indices = [batch.column("index").to_numpy() for batch in batches]
    for start in range(0, max(plan.num_rows, 1), ROW_GROUP_ROWS):
        planned = plan.slice(start, ROW_GROUP_ROWS)
        stop = start + planned.num_rows
        parts = [
            batch.filter(pa.array((index >= start) & (index < stop)))
            for batch, index in zip(batches, indices, strict=True)
            if index.max() >= start and index.min() < stop
        ]
        written = pa.Table.from_batches(parts, schema)
        present, first = np.unique(written.column("index").to_numpy(), return_index=True)
        missing = np.setdiff1d(planned.column("index").to_numpy(), present)
        unsent = _unsent_rows(planned.take(pa.array(missing - start)), reason)
        rows = pa.concat_tables([written.take(pa.array(first)), unsent])
        yield rows.sort_by("index").combine_chunks()


def _unsent_rows(planned: pa.Table, reason: str) -> pa.Table:
    import pyarrow as pa

    given = {
        "index": planned.column("index"),
        "session": planned.column("session"),
        "turn": planned.column("turn"),
        "class": planned.column("class"),
        "scheduled_ns": planned.column("arrival_ns"),
        "prompt_tokens_planned": planned.column("prompt_tokens"),
        "output_tokens_planned": planned.column("output_tokens"),
    }
    constant: dict[str, Any] = {
        "prompt_tokens_source": "unknown",
        "output_tokens_source": "unknown",
        "outcome": str(Outcome.UNSENT),
        "error": reason,
        "worker": -1,
    }
    n = planned.num_rows
    columns = []
    for column in arrow_schema():
        if column.name in given:
            columns.append(given[column.name])
        elif pa.types.is_list(column.type):
            columns.append(pa.array([[]] * n, column.type))
        else:
            columns.append(pa.array([constant.get(column.name)] * n, column.type))
    return pa.Table.from_arrays(columns, schema=arrow_schema())
