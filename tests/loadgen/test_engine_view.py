"""How full the engine was, how much it flapped and computed again: from steps whose figures are known."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadgen.measure.columns import Window
from loadgen.measure.engine import describe_engine
from tests.loadgen.rows import make_record, make_run

SECOND = 1_000_000_000
STEPS = {
    "start_ns": [0, SECOND, 4 * SECOND, 100 * SECOND],
    "end_ns": [SECOND, 4 * SECOND, 5 * SECOND, 101 * SECOND],
    "decode_seqs": [1, 2, 2, 50],
    "prefill_seqs": [0, 1, 0, 50],
    "prefill_tokens": [0, 10, 0, 999],
    "kv_used": [10, 50, 20, 99],
    "kv_cached": [10, 0, 0, 0],
    "kv_free": [80, 50, 80, 1],
    "preempted": [0, 1, 0, 9],
}
REQUESTS = {"finished_ns": [2 * SECOND, 101 * SECOND], "recomputed_tokens": [3, 99]}


def test_means_are_over_time_and_inside_the_window(tmp_path: Path) -> None:
    run = make_run(tmp_path, [make_record(0, scheduled_s=0.0)])
    window = Window(start_ns=0, end_ns=10 * SECOND, method="", is_steady=True)
    assert describe_engine(run, window) == {}
    pq.write_table(pa.table(STEPS), run.path / "engine_steps.parquet")
    pq.write_table(pa.table(REQUESTS), run.path / "engine_requests.parquet")
    found = describe_engine(run, window)
    assert found["busy_fraction"] == 0.5
    assert found["batch_mean"] == pytest.approx((1 * 1 + 3 * 3 + 2 * 1) / 5)
    assert found["kv_used_fraction"] == pytest.approx((0.1 * 1 + 0.5 * 3 + 0.2 * 1) / 5)
    assert found["num_preemptions"] == 1
    assert found["recompute_fraction"] == pytest.approx(3 / (1 + 2 + 2 + 10))
    assert found["flapping_step"] == pytest.approx((2 / 1 + 1 / 3) / 2)
    assert found["flapping_cv"] == pytest.approx(
        0.408, abs=0.001
    )  # of 1, 3 and 2, by the second they began in
