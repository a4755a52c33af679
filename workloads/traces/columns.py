"""Any other CSV, JSON lines, JSON array or Parquet file, its columns named by the user.

`time=NAME,input=NAME,output=NAME`, and where there are such: session, delay, blocks; id and parent for
sessions by links; rows=NAME where each object holds a list of requests (its other keys then belong to each
of them).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workloads.errors import WorkloadError
from workloads.traces.source import Head, Row, objects
from workloads.traces.table import Format, ReadRows

_FIELDS = {
    "time": "arrival",
    "input": "input_tokens",
    "output": "output_tokens",
    "session": "session",
    "delay": "delay",
    "blocks": "blocks",
    "id": "row_id",
    "parent": "parent",
}


def parse_columns(text: str) -> Format:
    """Read `time=ts,input=in,output=out` as a format; the unit is seconds until it is overridden."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, name = part.partition("=")
        if key.strip() not in (*_FIELDS, "rows") or not equals or not name.strip():
            known = ", ".join([*_FIELDS, "rows"])
            raise WorkloadError(f"cannot read {part!r} in the trace columns: write KEY=NAME; keys: {known}")
        given[key.strip()] = name.strip()
    rows = given.pop("rows", None)
    missing = {"input", "output"} - given.keys()
    if missing:
        raise WorkloadError(f"the trace columns {text!r} lack {min(missing)}=NAME")
    named: dict[str, Any] = {_FIELDS[key]: name for key, name in given.items()}
    if rows is not None:
        named["read_rows"] = _nested(rows)
    return Format(name="columns", unit="s", matches=lambda _: True, **named)


def _nested(key: str) -> ReadRows:
    def read(head: Head, columns: tuple[str, ...]) -> Iterator[Row]:
        for line, outer in objects(head):
            inner = outer.get(key)
            if not isinstance(inner, list):
                raise WorkloadError(f"{head.path}, entry {line}: {key!r} is not a list of requests")
            for request in inner:
                yield line, [request.get(name, outer.get(name)) for name in columns]

    return read
