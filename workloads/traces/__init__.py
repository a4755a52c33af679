"""Recorded workloads: `read_trace` finds out the format by content and gives the canonical table."""

from __future__ import annotations

from pathlib import Path

from workloads.errors import WorkloadError
from workloads.traces.azure import AZURE
from workloads.traces.source import Head, look
from workloads.traces.table import BadRows, Format, TraceTable, read_table

FORMATS: tuple[Format, ...] = (AZURE,)


def detect(head: Head) -> Format:
    """Tell the format by its column names or keys, never by the file's name."""
    for form in FORMATS:
        if form.matches(head):
            return form
    known = ", ".join(form.name for form in FORMATS)
    raise WorkloadError(
        f"{head.path} is in no format known here ({known}); its columns are {', '.join(head.columns[:12])}: "
        "name them with --trace-columns time=NAME,input=NAME,output=NAME and --time-unit"
    )


def read_trace(path: Path, *, bad_rows: BadRows = "error") -> TraceTable:
    head = look(path)
    return read_table(head, detect(head), bad_rows)


__all__ = ["FORMATS", "BadRows", "Format", "Head", "TraceTable", "detect", "look", "read_table", "read_trace"]
