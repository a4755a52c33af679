"""The canonical form of a recorded workload: one row per request, whatever format it came in.

A format says which columns hold what, and in which unit; reading is the same for all. A bad cell is an
error that names file, line and column, or drops its row with a count, as the caller chose. Nothing is
dropped without a count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError
from workloads.plan import take_ragged
from workloads.traces.cells import Bad, counts, instants
from workloads.traces.source import Head, Row, rows

BadRows = Literal["error", "drop"]
BadCells = dict[int, tuple[str, str]]
"""Position in the chunk: the column and the reason."""
ReadRows = Callable[[Head, tuple[str, ...]], Iterator[Row]]
NO_DELAY = -1
CHUNK_ROWS = 65_536


Cells = dict[str, list[Any]]
"""Some rows of the file, by column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Which column of a public format holds what; one such value per reader.

    unit: of the arrival column: datetime, s, ms, us or ns. block_tokens: size of the blocks that `blocks`
        names.
    delay: a column with the think time after the answer before, in `unit`; such a row needs no arrival.
    parent: a column with the id (`row_id`) of the row that this one follows in a session.
    to_blocks: how a cell of `blocks` becomes a list of ids. read_rows: for a format that is not one
        request a row.
    """

    name: str
    unit: str
    matches: Callable[[Head], bool]
    input_tokens: str
    output_tokens: str
    arrival: str | None = None
    delay: str | None = None
    session: str | None = None
    row_id: str | None = None
    parent: str | None = None
    blocks: str | None = None
    block_tokens: int = 0
    to_blocks: Callable[[Any], list[int]] = list
    read_rows: ReadRows = rows
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTable:
    """Rows in the order of arrival; times in ns from the first row. Columns of equal length.

    arrival_ns: int64. For a row that waits for the answer before it, that of the row before. All 0 where the
        format has no times.
    session: int64 from 0, or -1. delay_ns: int64, or -1 where the arrival is absolute.
    blocks, block_offsets: ids of the prompt's leading blocks, row i owning blocks[offsets[i]:offsets[i + 1]].
    dropped: rows not kept, by reason; with them `num_read` is accounted for. notes: for the user, one line
        each.
    """

    path: Path
    format: Format
    line: NDArray[np.int64]
    arrival_ns: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    session: NDArray[np.int64]
    delay_ns: NDArray[np.int64]
    blocks: NDArray[np.int64]
    block_offsets: NDArray[np.int64]
    num_read: int
    dropped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.line)

    def take(self, rows: NDArray[np.int64]) -> TraceTable:
        """Give the rows at these positions, in that order; the counts stay as they are."""
        blocks, offsets = take_ragged(self.blocks, self.block_offsets, rows)
        columns = {name: getattr(self, name)[rows] for name in ROW_COLUMNS}
        return replace(self, **columns, blocks=blocks, block_offsets=offsets)

    def keep(self, mask: NDArray[np.bool_], reason: str) -> TraceTable:
        """Give the rows where mask holds, and count the others as dropped for this reason."""
        lost = int(len(self) - mask.sum())
        if not lost:
            return self
        kept = self.take(np.flatnonzero(mask))
        return replace(kept, dropped=kept.dropped | {reason: kept.dropped.get(reason, 0) + lost})


ROW_COLUMNS = ("line", "arrival_ns", "input_tokens", "output_tokens", "session", "delay_ns")


def read_table(head: Head, form: Format, bad_rows: BadRows) -> TraceTable:
    """Read every row of the file; sorted by arrival (stably), bad cells treated as `bad_rows` says."""
    reader = _Reader(head, form, bad_rows)
    found = form.read_rows(head, reader.columns)
    while chunk := list(islice(found, CHUNK_ROWS)):
        reader.add(chunk)
    return reader.table()


class _Reader:
    """Collects the chunks of one file."""

    def __init__(self, head: Head, form: Format, bad_rows: BadRows) -> None:
        self.head, self.form, self.bad_rows = head, form, bad_rows
        optional = (form.delay, form.session, form.row_id, form.parent, form.block_tokens and form.blocks)
        # Keys of JSON objects may come and go from row to row; columns of a table may not.
        is_table = head.kind in ("csv", "parquet")
        extra = [name for name in optional if name and (name in head.columns or not is_table)]
        needed = [name for name in (form.arrival, form.input_tokens, form.output_tokens) if name]
        missing = [name for name in needed if is_table and name not in head.columns]
        if missing:
            raise WorkloadError(
                f"{head.path} has no column {missing[0]!r}; its columns: {', '.join(head.columns)}"
            )
        self.columns = tuple(dict.fromkeys([*needed, *extra]))
        self.num_read = 0
        self.dropped: dict[str, int] = {}
        self.parts: dict[str, list[NDArray[np.int64]]] = {
            name: [] for name in (*ROW_COLUMNS, "widths", "blocks")
        }
        self.sessions: dict[str, int] = {}
        self.num_sessions = 0

    def add(self, found: list[Row]) -> None:
        self.num_read += len(found)
        whole = []
        for line, cells in found:
            if isinstance(cells, str):
                self._drop(f"{self.head.path}, line {line} {cells}", "not JSON")
            else:
                whole.append((line, cells))
        by_column = zip(*(cells for _, cells in whole), strict=True) if whole else [()] * len(self.columns)
        cells_of: Cells = dict(zip(self.columns, map(list, by_column), strict=True))
        lines, n, form = [line for line, _ in whole], len(whole), self.form
        bad: BadCells = {}
        values = {"line": np.array(lines, dtype=np.int64), "delay_ns": self._delays(cells_of, n, bad)}
        values["arrival_ns"] = np.zeros(n, np.int64)
        if form.arrival is not None:
            values["arrival_ns"], wrong = instants(cells_of[form.arrival], form.unit)
            _note(bad, form.arrival, {i: why for i, why in wrong.items() if values["delay_ns"][i] < 0})
        for name, column in (("input_tokens", form.input_tokens), ("output_tokens", form.output_tokens)):
            values[name], wrong = counts(cells_of[column])
            _note(bad, column, wrong)
        blocks = self._blocks(cells_of, n, bad)
        self._refuse(lines, cells_of, bad)
        values["session"] = self._sessions(cells_of, n)
        good = np.ones(n, bool)
        good[list(bad)] = False
        for name in ROW_COLUMNS:
            self.parts[name].append(values[name][good])
        kept = [blocks[i] for i in np.flatnonzero(good).tolist()]
        self.parts["widths"].append(np.array([len(row) for row in kept], dtype=np.int64))
        self.parts["blocks"] += kept

    def _delays(self, cells_of: Cells, n: int, bad: BadCells) -> NDArray[np.int64]:
        delay = np.full(n, NO_DELAY, np.int64)
        if self.form.delay in cells_of:
            cells = cells_of[self.form.delay]
            given = [i for i, cell in enumerate(cells) if cell not in (None, "")]
            delay[given], wrong = instants([cells[i] for i in given], self.form.unit)
            _note(bad, self.form.delay, {given[i]: why for i, why in wrong.items()})
        return delay

    def _refuse(self, lines: list[int], cells_of: Cells, bad: BadCells) -> None:
        kind = "line" if self.head.kind in ("csv", "jsonl") else "row"
        for i, (column, reason) in sorted(bad.items()):
            where = f"{self.head.path}, {kind} {lines[i]}, column {column}"
            self._drop(f"{where}: {_describe(cells_of[column][i], reason)}", f"{reason} {column}")

    def _drop(self, message: str, reason: str) -> None:
        if self.bad_rows == "error":
            raise WorkloadError(f"{message}; correct it, or drop bad rows with --bad-rows drop")
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def _sessions(self, cells_of: Cells, n: int) -> NDArray[np.int64]:
        """Number the sessions in the order they are met: by their own id, or along the parent links."""
        form = self.form
        if form.parent in cells_of and form.row_id in cells_of:
            ids = np.zeros(n, np.int64)
            rows, parents = cells_of[form.row_id], cells_of[form.parent]
            for i, (row, parent) in enumerate(zip(rows, parents, strict=True)):
                # A parent that is not in the file: this row starts a session of its own.
                ids[i] = self.sessions.get(str(parent), self.num_sessions)
                self.num_sessions = max(self.num_sessions, int(ids[i]) + 1)
                self.sessions[str(row)] = int(ids[i])
            return ids
        if form.session in cells_of:
            cells = cells_of[form.session]
            names = [None if cell in (None, "") else str(cell) for cell in cells]
            found = [
                -1 if name is None else self.sessions.setdefault(name, len(self.sessions)) for name in names
            ]
            return np.array(found, dtype=np.int64)
        return np.full(n, -1, np.int64)

    def _blocks(self, cells_of: Cells, n: int, bad: BadCells) -> list[NDArray[np.int64]]:
        """Read the block ids of each row; none where the format has none, or their size is not known."""
        none = np.zeros(0, np.int64)
        if self.form.blocks not in cells_of or not self.form.block_tokens:
            return [none] * n
        rows = []
        for i, cell in enumerate(cells_of[self.form.blocks]):
            try:
                rows.append(np.array(self.form.to_blocks(cell), dtype=np.int64) if cell else none)
            except (TypeError, ValueError, AttributeError, OverflowError):
                _note(bad, self.form.blocks, {i: "unparsable"})
                rows.append(none)
        return rows

    def table(self) -> TraceTable:
        joined = {name: np.concatenate([np.zeros(0, np.int64), *parts]) for name, parts in self.parts.items()}
        widths, blocks = joined.pop("widths"), joined.pop("blocks")
        joined["arrival_ns"] = _after_predecessor(joined)
        order = np.argsort(joined["arrival_ns"], kind="stable")
        moved = int(np.sum(np.diff(joined["arrival_ns"]) < 0))
        notes = (f"{moved} rows came before the row above them; sorted by time",) if moved else ()
        table = TraceTable(
            path=self.head.path,
            format=self.form,
            **joined,
            blocks=blocks,
            block_offsets=np.append(0, np.cumsum(widths)),
            num_read=self.num_read,
            dropped=dict(self.dropped),
            notes=notes + ((self.form.note,) if self.form.note else ()),
        ).take(order)
        if len(table):
            table.arrival_ns[:] -= table.arrival_ns[0]
        return table


def _after_predecessor(columns: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Put a row that waits for an answer where it can be at the earliest: its delay after the row before."""
    arrival = columns["arrival_ns"].copy()
    last: dict[int, int] = {}
    waiting = columns["delay_ns"] >= 0
    if not waiting.any():
        return arrival
    for i in np.flatnonzero(columns["session"] >= 0).tolist():
        session = int(columns["session"][i])
        if waiting[i]:
            arrival[i] = last.get(session, 0) + int(columns["delay_ns"][i])
        last[session] = int(arrival[i])
    return arrival


def _note(bad: BadCells, column: str | None, wrong: Bad) -> None:
    for i, reason in wrong.items():
        bad.setdefault(i, (column or "", reason))


def _describe(cell: object, reason: str) -> str:
    if reason == "empty":
        return "empty"
    return f"{str(cell)!r} is {'not readable' if reason == 'unparsable' else reason}"
