"""Rows made by hand for tests of what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import OUTCOMES, Columns
from loadgen.records import Outcome, RequestRecord, arrow_schema, to_row
from loadgen.store import RequestRows, RowWriter, Run, RunFolder, load, stream_path
from workloads.plan import Plan

MS = 1_000_000
SECOND = 1_000_000_000


def make_record(
    index: int,
    *,
    scheduled_s: float,
    token_ms: Sequence[float] = (100, 110, 130),
    tokens: Sequence[int | None] | None = None,
    lag_ms: float = 0.0,
    **changes: Any,
) -> RequestRecord:
    """A request with token events `token_ms` after it was due; sent `lag_ms` late, over with the last."""
    scheduled = round(scheduled_s * SECOND)
    stamps = [scheduled + round(ms * MS) for ms in token_ms]
    counts = list(tokens) if tokens is not None else [1] * len(stamps)
    known = [count for count in counts if count is not None]
    total = sum(known) if len(known) == len(counts) else None
    sent = scheduled + round(lag_ms * MS)
    values: dict[str, Any] = {
        "index": index,
        "scheduled_ns": scheduled,
        "sent_ns": sent,
        "first_token_ns": stamps[0] if stamps else None,
        "first_answer_ns": stamps[0] if stamps else None,
        "last_token_ns": stamps[-1] if stamps else None,
        "done_ns": stamps[-1] if stamps else sent,
        "prompt_tokens_planned": 10,
        "output_tokens_planned": total or 3,
        "prompt_tokens": 10,
        "output_tokens": total,
        "output_tokens_source": "usage" if total is not None else "unknown",
        "chunk_ns": stamps,
        "chunk_lower_ns": stamps,
        "chunk_tokens": counts,
        "stamp_source": "kernel",
        "recv_lag_ns": 20_000,
        "outcome": Outcome.OK,
    }
    return RequestRecord(**{**values, **changes})


def make_failure(index: int, *, scheduled_s: float, outcome: Outcome, ended_ms: float = 5.0) -> RequestRecord:
    """A request that was sent and failed without a token."""
    done = round(scheduled_s * SECOND) + round(ended_ms * MS)
    return make_record(index, scheduled_s=scheduled_s, token_ms=(), outcome=outcome, done_ns=done)


def make_rows(records: Sequence[RequestRecord]) -> RequestRows:
    """The rows in memory."""
    import pyarrow as pa

    return RequestRows(pa.Table.from_pylist([to_row(record) for record in records], schema=arrow_schema()))


def make_run(
    out: Path,
    records: Sequence[RequestRecord],
    *,
    workload: dict[str, Any] | None = None,
    manifest: dict[str, Any] | None = None,
    think_ns: Sequence[int] | None = None,
    blocks: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> Run:
    """A run folder that holds these rows, whole. think_ns, blocks (of 16 tokens, with their offsets): as in
    the plan; by default no row waits or shares anything.
    """
    scheduled = np.array([record.scheduled_ns for record in records], np.int64)
    plan = Plan.of(
        np.minimum.accumulate(scheduled[::-1])[::-1],
        np.array([record.prompt_tokens_planned for record in records], np.int32),
        np.array([record.output_tokens_planned for record in records], np.int32),
        {"workload": workload or {}},
    )
    plan = replace(
        plan,
        session=np.array([record.session for record in records], np.int64),
        turn=np.array([record.turn for record in records], np.int64),
        think_ns=plan.think_ns if think_ns is None else np.array(think_ns, np.int64),
    )
    if blocks is not None:
        plan = replace(plan, prefix_blocks=blocks[0], prefix_offsets=blocks[1], block_tokens=16)
    folder = RunFolder.create(out, "test")
    folder.write_plan(plan)
    writer = RowWriter(stream_path(folder.path, 0))
    for record in records:
        writer.append(record)
    writer.close()
    folder.compact_requests(plan)
    folder.write_manifest({"status": "complete", **(manifest or {})})
    return load(folder.path)


def make_columns(n: int, **changes: Any) -> Columns:
    """Columns of n healthy requests, one a second; changes replace whole columns (scalars are repeated)."""
    scheduled = np.arange(n) * 1e9
    values: dict[str, Any] = {
        "scheduled_ns": scheduled,
        "sent_ns": scheduled,
        "connected_ns": np.nan,
        "first_token_ns": scheduled + 1e8,
        "first_answer_ns": scheduled + 1e8,
        "last_token_ns": scheduled + 2e8,
        "done_ns": scheduled + 2e8,
        "recv_lag_ns": 0.0,
        "write_lag_ns": 0.0,
        "prompt_tokens_planned": 100.0,
        "output_tokens_planned": 20.0,
        "prompt_tokens": 100.0,
        "output_tokens": 20.0,
        "cached_tokens": np.nan,
        "outcome_code": OUTCOMES.index(Outcome.OK),
        "is_kernel_stamped": True,
    }
    types = {"outcome_code": np.int8, "is_kernel_stamped": np.bool_}
    merged = {**values, **changes}
    return Columns(
        **{
            name: np.array(np.broadcast_to(value, n), types.get(name, np.float64))
            for name, value in merged.items()
        }
    )


def codes(outcomes: Sequence[Outcome]) -> list[int]:
    """Outcomes as the codes of Columns.outcome_code."""
    return [OUTCOMES.index(outcome) for outcome in outcomes]
