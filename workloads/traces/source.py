"""Opens a recorded workload and looks at its first row; says nothing about what the columns mean.

Plain or gzip, by the first two bytes; UTF-8 with or without a byte order mark; any line ending; CSV with a
header, JSON lines, one JSON array, or Parquet, by content. Every fault of the file itself is a
WorkloadError.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from workloads.errors import WorkloadError

Kind = Literal["csv", "jsonl", "json", "parquet"]
Cells = list[list[Any]]
CHUNK_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the first row shows: the column names, and the row itself (text cells in CSV)."""

    path: Path
    kind: Kind
    columns: tuple[str, ...]
    first: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some rows, by column; `lines` are the line numbers in the file, or the row's number where there are
    no lines.
    """

    lines: list[int]
    cells: dict[str, list[Any]]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the faults of a file into one line that names it."""
    try:
        yield
    except FileNotFoundError:
        raise WorkloadError(f"{path} does not exist") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as exc:
        raise WorkloadError(f"{path} is a damaged gzip file ({exc}); fetch it again") from exc
    except UnicodeDecodeError as exc:
        raise WorkloadError(f"{path} is not UTF-8 text (byte {exc.object[exc.start]:#04x})") from exc
    except csv.Error as exc:
        raise WorkloadError(f"{path} is not readable as CSV: {exc}") from exc
    except OSError as exc:
        raise WorkloadError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _open_text(path: Path) -> IO[str]:
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    if is_gzip:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=None)
    return path.open(encoding="utf-8-sig", newline=None)


def look(path: Path) -> Head:
    """Read the beginning of the file; a file without a single row is an error."""
    with reading(path):
        with path.open("rb") as file:
            if file.read(4) == b"PAR1":
                return _look_parquet(path)
        with _open_text(path) as text:
            line = next((line for line in text if line.strip()), "").strip()
            if not line:
                raise WorkloadError(f"{path} is empty")
            if line[0] not in "{[":
                columns = tuple(name.strip() for name in next(csv.reader([line])))
                row = next((row for row in csv.reader(text) if any(row)), [])
                return Head(
                    path=path, kind="csv", columns=columns, first=dict(zip(columns, row, strict=False))
                )
            kind: Kind = "jsonl" if line[0] == "{" and _is_object(line) else "json"
            first = _decode(path, 1, line) if kind == "jsonl" else next(_json_rows(path))[1]
        return Head(path=path, kind=kind, columns=tuple(first), first=first)


def chunks(head: Head, columns: tuple[str, ...]) -> Iterator[Chunk]:
    """Read the file again from its start, the named columns only; a missing JSON key is None."""
    with reading(head.path):
        if head.kind == "parquet":
            yield from _parquet_chunks(head.path, columns)
        elif head.kind == "csv":
            yield from _csv_chunks(head.path, head.columns, columns)
        else:
            rows = _jsonl_rows(head.path) if head.kind == "jsonl" else _json_rows(head.path)
            yield from _object_chunks(rows, columns)


def objects(head: Head) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of a JSON file whole, each with its line (its number in an array)."""
    with reading(head.path):
        yield from _jsonl_rows(head.path) if head.kind == "jsonl" else _json_rows(head.path)


def _csv_chunks(path: Path, header: tuple[str, ...], columns: tuple[str, ...]) -> Iterator[Chunk]:
    picks = [header.index(name) for name in columns]
    with _open_text(path) as text:
        reader = csv.reader(text)
        next(row for row in reader if any(cell.strip() for cell in row))
        lines: list[int] = []
        rows: Cells = []
        for row in reader:
            if not any(row):
                continue
            if len(row) < len(header):
                row += [""] * (len(header) - len(row))
            lines.append(reader.line_num)
            rows.append([row[pick] for pick in picks])
            if len(rows) == CHUNK_ROWS:
                yield _chunk(lines, rows, columns)
                lines, rows = [], []
        yield _chunk(lines, rows, columns)


def _object_chunks(rows: Iterator[tuple[int, dict[str, Any]]], columns: tuple[str, ...]) -> Iterator[Chunk]:
    lines: list[int] = []
    cells: Cells = []
    for line, row in rows:
        lines.append(line)
        cells.append([row.get(name) for name in columns])
        if len(cells) == CHUNK_ROWS:
            yield _chunk(lines, cells, columns)
            lines, cells = [], []
    yield _chunk(lines, cells, columns)


def _chunk(lines: list[int], rows: Cells, columns: tuple[str, ...]) -> Chunk:
    by_column = list(zip(*rows, strict=True)) or [()] * len(columns)
    return Chunk(
        lines=lines, cells={name: list(cells) for name, cells in zip(columns, by_column, strict=True)}
    )


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open_text(path) as text:
        for number, line in enumerate(text, start=1):
            if line.strip():
                yield number, _decode(path, number, line)


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open_text(path) as text:
        try:
            value = msgspec.json.decode(text.read())
        except msgspec.DecodeError as exc:
            raise WorkloadError(f"{path} is not valid JSON: {exc}") from exc
    rows = value if isinstance(value, list) else [value]
    if not rows:
        raise WorkloadError(f"{path} is an empty JSON array")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise WorkloadError(f"{path}, entry {number} is not a JSON object")
        yield number, row


def _decode(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(line)
    except msgspec.DecodeError as exc:
        raise WorkloadError(f"{path}, line {number} is not valid JSON: {exc}") from exc
    if not isinstance(row, dict):
        raise WorkloadError(f"{path}, line {number} is not a JSON object")
    return row


def _is_object(line: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except msgspec.DecodeError:
        # Either a JSON text over several lines, or a broken first line of JSON lines.
        return line.endswith("}")


def _look_parquet(path: Path) -> Head:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    columns = tuple(file.schema_arrow.names)
    first = next((batch.to_pylist()[0] for batch in file.iter_batches(1)), None)
    if first is None:
        raise WorkloadError(f"{path} has no rows")
    return Head(path=path, kind="parquet", columns=columns, first=first)


def _parquet_chunks(path: Path, columns: tuple[str, ...]) -> Iterator[Chunk]:
    import pyarrow.parquet as pq

    start = 1
    for batch in pq.ParquetFile(path).iter_batches(CHUNK_ROWS, columns=list(dict.fromkeys(columns))):
        lines = list(range(start, start + batch.num_rows))
        start += batch.num_rows
        yield Chunk(lines=lines, cells={name: batch.column(name).to_pylist() for name in columns})
