"""The logs of a simulated run, in the files of a live one: written in pieces, so that memory stays flat.

A run of steady steps is kept as one entry and laid out into rows, one a step, when a piece is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reference_engine.account import Account
from reference_engine.cost import PS_PER_NS, CostModel
from reference_engine.executors.simulated import to_ns
from reference_engine.scheduler import Scheduler
from reference_engine.sequence import Sequence
from reference_engine.step import Constraint, Load, StepPlan
from reference_engine.steplog import (
    BLOCKED,
    REQUESTS_FILE,
    STEPS_FILE,
    RequestRow,
    requests_table,
    split_accounts,
    steps_table,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

PIECE_STEPS = 1 << 16
PIECE_REQUESTS = 1 << 14

State = tuple[int, int, int, int, int]
NUM_STATES = 5


class StepRows:
    """engine_steps.parquet of a simulated run; `path` None keeps the pieces for `table` (tests)."""

    def __init__(self, path: Path | None, cost: CostModel, metadata: dict[str, str]) -> None:
        self._path = path
        self._cost = cost
        self._metadata = metadata
        self._writer: pq.ParquetWriter | None = None
        self._num_written = 0
        self._runs: list[tuple[int, ...]] = []
        self._starts_ps: list[int] = []
        self._ends_ps: list[int] = []
        self._taken: list[int] = []

    def add(self, scheduler: Scheduler, plan: StepPlan, load: Load, start_ps: int, end_ps: int) -> None:
        """Append a step that the scheduler has just taken in."""
        blocked = BLOCKED[plan.blocked]
        self._runs.append((1, len(plan.preempted), blocked, 0, *self.state_of(scheduler), *load))
        self._starts_ps.append(start_ps)
        self._ends_ps.append(end_ps)
        self._taken.append(0)
        if len(self._ends_ps) >= PIECE_STEPS:
            self.flush()

    @staticmethod
    def state_of(scheduler: Scheduler) -> State:
        """Return the queues and the memory as they are: waiting, running, blocks used, cached and free."""
        state, pool = scheduler.state, scheduler.tables.pool
        cached, free = pool.num_cached, pool.num_free
        return len(state.waiting), len(state.running), pool.num_blocks - free, cached, free - cached

    def add_run(
        self,
        before: State,
        blocked: Constraint | None,
        load: Load,
        growth: int,
        start_ps: int,
        ends_ps: list[int],
        taken: list[int],
    ) -> None:
        """Append steady steps. growth: tokens read more in each; taken: blocks taken up to each."""
        if len(self._ends_ps) >= PIECE_STEPS:
            self.flush()
        self._runs.append((len(ends_ps), 0, BLOCKED[blocked], growth, *before, *load))
        self._starts_ps.append(start_ps)
        self._starts_ps += ends_ps[:-1]
        self._ends_ps += ends_ps
        self._taken += taken

    def correct_last(self, scheduler: Scheduler) -> None:
        """Put the state as it is now into the last step of a run, which ended some requests."""
        count, _, blocked, growth, *rest = self._runs[-1]
        load = Load(*rest[NUM_STATES:])
        self._runs[-1] = (count - 1, *self._runs[-1][1:])
        last = load._replace(decode_context=load.decode_context + growth * (count - 1))
        self._runs.append((1, 0, blocked, 0, *self.state_of(scheduler), *last))
        self._taken[-1] = 0

    def flush(self) -> pa.Table:
        """Write the steps since the last piece, and return them."""
        runs = np.array(self._runs, np.int64).reshape(-1, 4 + NUM_STATES + len(Load._fields))
        counts = runs[:, 0]
        at = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        _, preempted, blocked, growth, *rest = (np.repeat(column, counts) for column in runs.T)
        waiting, running, used, cached, blank, *loads = rest
        load = dict(zip(Load._fields, loads, strict=True))
        taken = np.array(self._taken, np.int64)
        from_cached = np.maximum(taken - blank, 0)
        rows = np.column_stack(
            [
                np.arange(self._num_written, self._num_written + len(at)),
                _to_ns(self._starts_ps),
                _to_ns(self._ends_ps),
                load["decode_seqs"],
                load["prefill_tokens"],
                used + taken,
                cached - from_cached,
                blank - (taken - from_cached),
                waiting,
                running,
                preempted,
                load["decode_context"] + growth * at,
                load["prefill_seqs"],
                load["prefill_pairs"],
                load["swap_blocks"],
                load["after_idle"],
                blocked,
            ]
        )
        self._num_written += len(at)
        for pending in (self._runs, self._starts_ps, self._ends_ps, self._taken):
            pending.clear()
        table = steps_table(rows, self._metadata, self._cost)
        if self._path is not None:
            self._write(table)
        return table

    def _write(self, table: pa.Table) -> None:
        import pyarrow.parquet as pq

        assert self._path is not None
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path,
                table.schema,
                use_dictionary=["blocked"],
                column_encoding=dict.fromkeys(table.column_names[:-1], "DELTA_BINARY_PACKED"),
                compression="zstd",
                compression_level=1,
            )
        self._writer.write_table(table)

    def close(self) -> None:
        """Write what is pending and end the file."""
        self.flush()
        if self._writer is not None:
            self._writer.close()


def _to_ns(instants_ps: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return (np.array(instants_ps, np.int64) + PS_PER_NS // 2) // PS_PER_NS


class RequestLog:
    """engine_requests.parquet of a simulated run."""

    def __init__(self, path: Path, metadata: dict[str, str]) -> None:
        self._path = path
        self._metadata = metadata
        self._rows: list[RequestRow] = []
        self._accounts: list[Account] = []
        self._writer: pq.ParquetWriter | None = None

    def append(self, sequence: Sequence, account: Account) -> None:
        """Take a request that was served to its end."""
        sequence.first_token_ns = to_ns(account.stamps[0])
        sequence.finished_ns = to_ns(account.stamps[-1])
        self._rows.append(RequestRow.of(sequence))
        self._accounts.append(account)
        if len(self._rows) >= PIECE_REQUESTS:
            self.flush()

    def flush(self) -> None:
        """Write the requests since the last piece."""
        import pyarrow.parquet as pq

        table = requests_table(
            self._rows, self._metadata, split_accounts(self._accounts, np.asarray, PS_PER_NS)
        )
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)
        self._rows.clear()
        self._accounts.clear()

    def close(self) -> None:
        """Write what is pending and end the file."""
        self.flush()
        assert self._writer is not None
        self._writer.close()


def open_logs(folder: Path, cost: CostModel, metadata: dict[str, str]) -> tuple[StepRows, RequestLog]:
    """Open both files in `folder`."""
    return (
        StepRows(folder / STEPS_FILE, cost, metadata),
        RequestLog(folder / REQUESTS_FILE, metadata),
    )
