"""The run folder: the one interface between commands, on disk and read back.

Decides where each file of a run lies and that a folder left by a crash can still be read. Decides nothing
about what the figures mean. Layout and schemas: docs/run-folder.md.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.errors import RunFolderError
from loadgen.records import arrow_schema, column_names
from loadgen.row_stream import ROW_GROUP_ROWS, RowWriter, sorted_rows, stream_path, stream_paths

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from workloads.plan import Plan

__all__ = ["RequestRows", "RowWriter", "Run", "RunFolder", "load", "stream_path", "write_json"]

MANIFEST_SCHEMA_VERSION = 1
PLAN_SCHEMA_VERSION = 1
SUMMARY_SCHEMA_VERSION = 1
STATUSES = ("running", "complete", "interrupted", "failed")

NEVER_SENT = "no row was written: the run ended before this request was sent"
LOST_IN_CRASH = "no row was written: the run broke off before this request ended (it may have been in flight)"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write strict JSON in one step: readers see the old file or the new one, whole.

    Raises ValueError for NaN and Infinity: undefined is null, and whoever computed it must say so.
    """
    text = json.dumps(value, indent=2, allow_nan=False, default=_plain, ensure_ascii=False)
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", errors="replace") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write what takes the place of `path` once it is whole; RunFolderError says why not."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as exc:
        with suppress(OSError):
            temporary.unlink()
        raise RunFolderError(cannot_write(path, exc)) from exc


def cannot_write(path: Path, exc: OSError) -> str:
    """Say why a file of a run could not be written, and what to do."""
    if not path.parent.exists():
        return f"{path.parent} was removed while it was written: what it held is lost"
    why = os.strerror(exc.errno) if exc.errno else str(exc)
    return f"cannot write {path}: {why}; what was written before is kept; choose a place with room with --out"


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


NAME = re.compile(r"(?!\.)[\w.-]{1,100}")


def new_folder(out: Path, name: str) -> Path:
    """Make `<out>/<UTC time>-<name>/`, a new one; RunFolderError says why where it cannot be."""
    if not name or name.startswith(".") or not all(c.isalnum() or c in "._-" for c in name):
        raise RunFolderError(
            f"--name {name!r} cannot be part of a folder name: use letters, digits, '.', '_', '-'"
        )
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}"
    for attempt in range(1, 1000):
        path = out / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as exc:
            raise RunFolderError(
                f"cannot write a run folder under {out}: {exc.strerror}; choose a place with --out"
            ) from exc
        return path
    raise RunFolderError(f"cannot write a run folder under {out}: {stem} exists a thousand times")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run folder being written; its name is the run's id."""

    path: Path

    @classmethod
    def create(cls, out: Path, name: str) -> RunFolder:
        """Make the folder of a run: `<out>/<UTC time>-<name>/`."""
        folder = cls(new_folder(out, name))
        folder.write_manifest({})
        return folder

    @property
    def run_id(self) -> str:
        """The folder's name; requests carry it in X-Request-Id."""
        return self.path.name

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace manifest.json; `status` is one of STATUSES (running where it is left out)."""
        versioned = {"schema_version": MANIFEST_SCHEMA_VERSION, "status": "running", **manifest}
        assert versioned["status"] in STATUSES, versioned["status"]
        write_json(self.path / "manifest.json", versioned)

    def mark_failed(self) -> None:
        """Turn the status of a manifest that cannot be replaced, in place: that takes no room on a disk."""
        with suppress(OSError), open(self.path / "manifest.json", "r+b") as file:
            at = file.read().find(b'"status": "running"')
            if at >= 0:
                file.seek(at)
                file.write(b'"status": "failed" ')

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json."""
        write_json(self.path / "summary.json", summary)

    def write_plan(self, plan: Plan) -> None:
        """Write plan.parquet."""
        _write_parquet(self.path / "plan.parquet", [plan_table(plan)])

    def compact_requests(self, plan: Plan, *, reason: str = NEVER_SENT) -> int:
        """Turn the workers' streams into requests.parquet, sorted by index, and return the row count.

        A planned index without a row becomes an `unsent` row whose error is `reason`. The streams are removed
        only after the Parquet file is on disk.
        """
        streams = stream_paths(self.path)
        blocks = sorted_rows(streams, plan_table(plan), reason)
        num_rows = _write_parquet(self.path / "requests.parquet", blocks)
        for path in streams:
            path.unlink()
        return num_rows


def plan_table(plan: Plan) -> pa.Table:
    """The plan as the table of plan.parquet; digest, block size and source stand in the metadata."""
    import pyarrow as pa

    classes = pa.array(plan.classes, pa.string())
    columns = {
        "index": pa.array(np.arange(len(plan), dtype=np.int64)),
        "arrival_ns": pa.array(plan.arrival_ns),
        "prompt_tokens": pa.array(plan.prompt_tokens),
        "output_tokens": pa.array(plan.output_tokens),
        "session": pa.array(plan.session),
        "turn": pa.array(plan.turn),
        "think_ns": pa.array(plan.think_ns),
        "text_id": pa.array(plan.text_id),
        "class": classes.take(pa.array(plan.class_id)),
        "prefix_blocks": pa.ListArray.from_arrays(
            pa.array(plan.prefix_offsets, pa.int32()), pa.array(plan.prefix_blocks, pa.int64())
        ),
    }
    metadata = {
        "schema_version": str(PLAN_SCHEMA_VERSION),
        "digest": plan.digest(),
        "block_tokens": str(plan.block_tokens),
        "source": json.dumps(plan.source, allow_nan=False, default=_plain),
    }
    return pa.table(columns).replace_schema_metadata(metadata)


def _write_parquet(path: Path, blocks: Iterator[pa.Table] | list[pa.Table]) -> int:
    import pyarrow.parquet as pq

    with replacing(path) as temporary:
        writer: pq.ParquetWriter | None = None
        num_rows = 0
        for block in blocks:
            if writer is None:
                writer = pq.ParquetWriter(temporary, block.schema, **_encodings(block.schema))
            writer.write_table(block, row_group_size=ROW_GROUP_ROWS)
            num_rows += block.num_rows
        assert writer is not None
        writer.close()
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
    return num_rows


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Delta-packed integers: stamps ascend, so that they take two or three bytes each instead of eight."""
    import pyarrow as pa

    text = [column.name for column in schema if pa.types.is_string(column.type)]
    delta = {
        f"{column.name}.list.element" if pa.types.is_list(column.type) else column.name: "DELTA_BINARY_PACKED"
        for column in schema
        if column.name.endswith("_ns")
    }
    return {"compression": "zstd", "compression_level": 1, "use_dictionary": text, "column_encoding": delta}


class RequestRows:
    """The rows of a run, read by column: a million requests with all their stamps need not fit in memory."""

    def __init__(self, source: Path | pa.Table) -> None:
        self._source = source

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The named columns (all of them by default) as one table; null where an older file lacks one."""
        if not isinstance(self._source, Path):
            return self._source if columns is None else self._source.select(columns)
        import pyarrow as pa
        import pyarrow.parquet as pq

        with _reading(self._source):
            there = set(pq.read_schema(self._source).names)
        wanted = column_names() if columns is None else columns
        table = _read_parquet(self._source, [name for name in wanted if name in there])
        for name in wanted:
            if name not in there:
                field = arrow_schema().field(name)
                table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        return table.select(wanted)

    def iter_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The named columns in pieces of at most ROW_GROUP_ROWS rows, in order of index."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if isinstance(self._source, Path):
            # pre_buffer would keep every group that was read until the last
            with _reading(self._source), pq.ParquetFile(self._source, pre_buffer=False) as file:
                yield from file.iter_batches(ROW_GROUP_ROWS, columns=list(columns))
            pa.default_memory_pool().release_unused()
        else:
            yield from self._source.select(columns).to_batches(ROW_GROUP_ROWS)


class Run:
    """A run folder, read. `requests`, `steps` and `plan` are read from disk when they are first asked for."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest

    def __repr__(self) -> str:
        return f"<Run {self.path.name} {self.manifest['status']}>"

    @property
    def summary(self) -> dict[str, Any] | None:
        """summary.json, or None where the run broke off before it was written."""
        path = self.path / "summary.json"
        if not path.exists():
            return None
        summary = _read_json(path)
        _check_version(path, summary, SUMMARY_SCHEMA_VERSION)
        return summary

    @cached_property
    def rows(self) -> RequestRows:
        """The rows by column; of a run that broke off, from its streams and its plan."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.path / "requests.parquet"
        if path.exists():
            with _reading(path):
                metadata = pq.read_schema(path).metadata
            _check_version(path, metadata, int(arrow_schema().metadata[b"schema_version"]))
            return RequestRows(path)
        if not (self.path / "plan.parquet").exists():
            raise RunFolderError(f"{self.path} holds no rows: the run broke off before its plan was written")
        tables = sorted_rows(stream_paths(self.path), self.plan_rows(), LOST_IN_CRASH)
        return RequestRows(pa.concat_tables(list(tables)))

    def plan_rows(self) -> pa.Table:
        """plan.parquet as an Arrow table with its metadata."""
        path = self.path / "plan.parquet"
        if not path.exists():
            raise RunFolderError(f"{self.path} has no plan.parquet")
        table = _read_parquet(path)
        _check_version(path, table.schema.metadata, PLAN_SCHEMA_VERSION)
        return table

    @cached_property
    def plan_source(self) -> dict[str, Any]:
        """What the plan was made from: the workload as asked for, and what a trace reader found."""
        source = self.plan_rows().schema.metadata.get(b"source", b"{}")
        return dict(json.loads(source))

    def step_rows(self) -> pa.Table | None:
        """engine_steps.parquet as an Arrow table with its metadata; None where the steps are not known."""
        return self._optional("engine_steps.parquet")

    def engine_request_rows(self) -> pa.Table | None:
        """engine_requests.parquet as an Arrow table; None where the engine kept no account of requests."""
        return self._optional("engine_requests.parquet")

    def server_rows(self) -> pa.Table | None:
        """server.parquet as an Arrow table (t_ns, name, value); None where the target was not watched."""
        return self._optional("server.parquet")

    def _optional(self, name: str) -> pa.Table | None:
        path = self.path / name
        return _read_parquet(path) if path.exists() else None

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per scheduled request; integers are pandas' nullable Int64 and Int32."""
        return _to_pandas(self.rows.read())

    @cached_property
    def plan(self) -> pd.DataFrame:
        return _to_pandas(self.plan_rows())

    @cached_property
    def steps(self) -> pd.DataFrame | None:
        table = self.step_rows()
        return None if table is None else _to_pandas(table)


def load(folder: Path | str) -> Run:
    """Open a run folder, also one that a crash left; RunFolderError where it is none or is too new."""
    path = Path(folder)
    manifest_path = path / "manifest.json"
    if not path.is_dir():
        raise RunFolderError(f"{path} is not a folder; a run is a folder such as runs/20260131T120000Z-run")
    if not manifest_path.exists():
        raise RunFolderError(f"{path} is not a run folder: it has no manifest.json")
    manifest = _read_json(manifest_path)
    _check_version(manifest_path, manifest, MANIFEST_SCHEMA_VERSION)
    if manifest.get("status") not in STATUSES:
        raise RunFolderError(
            f"{manifest_path}: status is {manifest.get('status')!r}, not one of {', '.join(STATUSES)}"
        )
    return Run(path, manifest)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes(), parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as exc:
        raise RunFolderError(f"cannot read {path}: {exc}") from exc
    if not isinstance(value, dict):
        raise RunFolderError(f"cannot read {path}: not a JSON object")
    return value


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A context in which `path` is read as Parquet; RunFolderError where it is damaged."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as exc:
        raise RunFolderError(f"{path} is damaged or not Parquet: {str(exc).splitlines()[0]}") from exc


def _read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    import pyarrow.parquet as pq

    with _reading(path):
        return pq.read_table(path, columns=None if columns is None else list(columns))


def _check_version(path: Path, facts: Mapping[Any, Any] | None, known: int) -> None:
    facts = facts or {}
    found = facts.get("schema_version", facts.get(b"schema_version"))
    if found is None:
        raise RunFolderError(f"{path} carries no schema_version: not written by bench")
    try:
        version = int(found)
    except (TypeError, ValueError):
        raise RunFolderError(f"{path} has no schema version that bench knows: {found!r}") from None
    if version > known:
        raise RunFolderError(
            f"{path} has schema version {version}, this bench reads up to {known}: update bench"
        )


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa

    nullable = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame: pd.DataFrame = table.to_pandas(types_mapper=nullable.get)
    return frame
