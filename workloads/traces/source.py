"""Opens a recorded workload and looks at its first row; says nothing about what the columns mean.

Plain or gzip, by the first two bytes; UTF-8 with or without a byte order mark; any line ending; CSV with a
header, JSON lines, one JSON array, or Parquet, by content. Every fault of the file itself is a
WorkloadError.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from workloads.errors import WorkloadError

Kind = Literal["csv", "jsonl", "json", "parquet"]
Object = dict[str, Any] | str
Row = tuple[int, list[Any] | str]
"""The number of a line (of a row, where there are no lines) and its cells, or what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the first row shows: the column names, and the row itself (text cells in CSV)."""

    path: Path
    kind: Kind
    columns: tuple[str, ...]
    first: dict[str, Any]


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
            first = _decode(line) if kind == "jsonl" else next(_json_rows(path))[1]
            if isinstance(first, str):
                raise WorkloadError(f"{path}, line 1 {first}")
        return Head(path=path, kind=kind, columns=tuple(first), first=first)


def rows(head: Head, columns: tuple[str, ...]) -> Iterator[Row]:
    """Read the file again from its start, the named columns only; a missing JSON key is None."""
    with reading(head.path):
        if head.kind == "parquet":
            yield from _parquet_rows(head.path, columns)
        elif head.kind == "csv":
            yield from _csv_rows(head, columns)
        else:
            for line, row in _json_objects(head):
                yield line, row if isinstance(row, str) else [row.get(name) for name in columns]


def objects(head: Head) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of a JSON file whole, each with its line (its number in an array)."""
    with reading(head.path):
        for line, row in _json_objects(head):
            if isinstance(row, str):
                raise WorkloadError(f"{head.path}, line {line} {row}")
            yield line, row


def _json_objects(head: Head) -> Iterator[tuple[int, Object]]:
    return _jsonl_rows(head.path) if head.kind == "jsonl" else _json_rows(head.path)


def _csv_rows(head: Head, columns: tuple[str, ...]) -> Iterator[Row]:
    picks = [head.columns.index(name) for name in columns]
    with _open_text(head.path) as text:
        reader = csv.reader(text)
        next(row for row in reader if any(cell.strip() for cell in row))
        for row in reader:
            if not any(row):
                continue
            if len(row) < len(head.columns):
                row += [""] * (len(head.columns) - len(row))
            yield reader.line_num, [row[pick] for pick in picks]


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Object]]:
    with _open_text(path) as text:
        for number, line in enumerate(text, start=1):
            if line.strip():
                yield number, _decode(line)


def _json_rows(path: Path) -> Iterator[tuple[int, Object]]:
    with _open_text(path) as text:
        try:
            value = msgspec.json.decode(text.read())
        except (msgspec.DecodeError, RecursionError) as exc:
            raise WorkloadError(f"{path} is not valid JSON: {exc}") from exc
    rows = value if isinstance(value, list) else [value]
    if not rows:
        raise WorkloadError(f"{path} is an empty JSON array")
    for number, row in enumerate(rows, start=1):
        yield number, row if isinstance(row, dict) else "is not a JSON object"


def _decode(line: str) -> Object:
    """Read one object; a text says what is wrong with the line."""
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as strict:
        try:
            # Python writes NaN and Infinity, which are no JSON: let the cell be refused, not the line.
            row = json.loads(line)
        except (ValueError, RecursionError):
            return f"is not valid JSON: {strict}"
    return row if isinstance(row, dict) else "is not a JSON object"


def _is_object(line: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, RecursionError):
        # Either a JSON text over several lines, or a broken first line of JSON lines.
        return line.endswith("}")


def _look_parquet(path: Path) -> Head:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as exc:
        raise WorkloadError(f"{path} is a damaged Parquet file ({exc})") from exc
    columns = tuple(file.schema_arrow.names)
    first = next((batch.to_pylist()[0] for batch in file.iter_batches(1)), None)
    if first is None:
        raise WorkloadError(f"{path} has no rows")
    return Head(path=path, kind="parquet", columns=columns, first=first)


def _parquet_rows(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    import pyarrow.parquet as pq

    number = 0
    for batch in pq.ParquetFile(path).iter_batches(columns=list(columns)):
        for cells in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            number += 1
            yield number, list(cells)
