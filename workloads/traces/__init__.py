"""Recorded workloads: `read_trace` finds out the format by content and gives the canonical table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from workloads.errors import WorkloadError, unknown_name
from workloads.traces.cells import NS_PER_UNIT
from workloads.traces.columns import parse_columns
from workloads.traces.formats import FORMATS
from workloads.traces.source import Head, look
from workloads.traces.table import BadRows, Format, TraceTable, read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What the user says about a file: columns instead of detection, another unit or block size, bad rows."""

    columns: str | None = None
    time_unit: str | None = None
    block_tokens: int | None = None
    bad_rows: BadRows = "error"

    def check(self) -> None:
        if self.columns is not None:
            parse_columns(self.columns)
        if self.time_unit not in (None, "datetime", *NS_PER_UNIT):
            raise unknown_name("time unit", str(self.time_unit), ["datetime", *NS_PER_UNIT])


def detect(head: Head) -> Format:
    """Tell the format by its column names or keys, never by the file's name."""
    for form in FORMATS:
        if form.matches(head):
            return form
    if has_client_models(head):
        raise WorkloadError(
            f"{head.path} holds ServeGen's client models, not requests: make a workload of it with "
            "`bench workload fit`"
        )
    known = ", ".join(dict.fromkeys(form.name for form in FORMATS))
    columns = ", ".join(head.columns[:12])
    raise WorkloadError(
        f"{head.path} is in no format known here ({known}); its columns are {columns}: name them with "
        "--trace-columns time=NAME,input=NAME,output=NAME and --time-unit"
    )


def has_client_models(head: Head) -> bool:
    """Tell ServeGen's files: rates by client and window, with a header, or as published without one."""
    is_published = len(head.columns) == 6 and head.columns[4] in ("Gamma", "Weibull")
    return head.kind == "csv" and (
        {"client", "window_start_s", "rate_rps"} <= set(head.columns) or is_published
    )


def read_trace(path: Path, options: ReadOptions | None = None) -> TraceTable:
    """Read a file; raises WorkloadError that names file, line and column."""
    options = options or ReadOptions()
    head = look(path)
    form = detect(head) if options.columns is None else parse_columns(options.columns)
    if options.time_unit is not None:
        form = replace(form, unit=options.time_unit)
    if options.block_tokens is not None:
        form = replace(form, block_tokens=options.block_tokens)
    return read_table(head, form, options.bad_rows)


__all__ = [
    "FORMATS",
    "BadRows",
    "Format",
    "Head",
    "ReadOptions",
    "TraceTable",
    "detect",
    "look",
    "read_trace",
]
