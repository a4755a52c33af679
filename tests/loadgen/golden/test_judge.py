"""Errors of rows that are right, late, or unknown to the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from loadgen.golden.judge import ClientErrors, judge, quantile_ms
from loadgen.golden.process import GoldenLog

EPOCH_NS = 1_000_000
LOG = GoldenLog(
    row_of={"run-0": 1, "run-1": 0},
    arrived_ns=np.array([2_000_000, 1_000_100]),
    offsets=np.array([0, 2, 5]),
    due_ns=np.array([2_000_500, 2_001_500, 1_000_600, 1_001_600, 1_002_600]),
    before_ns=np.array([2_000_510, 2_001_500, 1_000_600, 1_001_600, 1_002_650]),
    after_ns=np.array([2_000_530, 2_001_520, 1_000_620, 1_001_620, 1_002_670]),
)


def judged(*rows: dict[str, Any]) -> ClientErrors:
    table = pa.Table.from_pylist([{"outcome": "ok", "sent_ns": 50, **row} for row in rows])
    return judge(table, LOG, run_id="run", epoch_ns=EPOCH_NS)


def row(index: int, chunk_ns: list[int], **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "first_token_ns": chunk_ns[0],
        "chunk_ns": chunk_ns,
        "chunk_lower_ns": chunk_ns,
    } | more


def test_a_stamp_within_the_write_is_no_error() -> None:
    errors = judged(row(0, [610, 1_610, 2_660]))
    assert errors.stamp_ns.tolist() == [0, 0, 0]
    assert errors.gap_ns.tolist() == [0, 0]
    assert errors.ttft_ns.tolist() == [(610 - 50) - (1_000_600 - 1_000_100)]
    assert errors.lateness_ns.tolist() == [0, 0, 50]
    assert errors.alone_fraction == 1.0


def test_a_late_stamp_is_an_error_of_its_event_and_of_the_gaps_around_it() -> None:
    errors = judged(row(0, [610, 5_620, 2_640], chunk_lower_ns=[610, 610, 2_640]))
    assert errors.stamp_ns.tolist() == [0, 4_000, -10]
    assert errors.gap_ns.tolist() == [4_010, -4_030]
    assert errors.is_alone.tolist() == [True, False, True]
    assert quantile_ms(errors.stamp_ns, 1.0) == 0.004


def test_gaps_do_not_cross_requests_and_each_is_held_against_its_own_writes() -> None:
    errors = judged(row(0, [610, 1_610, 2_660]), row(1, [1_000_520, 1_001_510], sent_ns=1_000_000))
    assert errors.num_requests == 2
    assert errors.gap_ns.tolist() == [0, 0, 0]
    assert errors.stamp_ns.tolist() == [0] * 5
    assert errors.ttft_ns.tolist() == [60, 10]


def test_rows_that_cannot_be_compared_are_left_out() -> None:
    failed = row(0, [610, 1_610, 2_660], outcome="reset")
    cut = row(0, [610])
    unknown = row(7, [610, 1_610])
    errors = judged(failed, cut, unknown)
    assert errors.num_requests == 0
    assert quantile_ms(errors.ttft_ns, 0.99) is None
