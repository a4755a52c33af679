from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from reference_engine.config import EngineConfig
from reference_engine.steplog import (
    NUM_VALUES,
    REQUESTS_FILE,
    STEP_COLUMNS,
    STEPS_FILE,
    StepLog,
    requests_table,
    write_logs,
)
from tests.reference_engine.stub import make_sequence, run_to_end, stub_engine

CONFIG = EngineConfig(block_tokens=4, kv_tokens=64, max_batch=4, chunk_tokens=8, max_model_len=64)


def test_the_ring_keeps_the_latest_steps_in_order() -> None:
    log = StepLog(capacity=4)
    for i in range(6):
        log.add(*[10 * i] * len(STEP_COLUMNS))
    assert log.steps()[:, 0].tolist() == [2, 3, 4, 5]
    assert log.steps()[:, 1].tolist() == [20, 30, 40, 50]


def test_the_log_accounts_for_every_token_and_block(tmp_path: Path) -> None:
    engine = stub_engine(CONFIG)
    sequences = [make_sequence(range(1, 12), max_tokens=6, arrived_ns=0) for _ in range(5)]
    run_to_end(engine, sequences)
    write_logs(engine.log, tmp_path / "new", {"block_tokens": "4"})
    steps = pq.read_table(tmp_path / "new" / STEPS_FILE)
    assert steps.column_names == [*STEP_COLUMNS, "blocked"]
    assert steps.schema.metadata[b"block_tokens"] == b"4"
    rows = steps.to_pandas()
    assert rows.prefill_tokens.sum() == 5 * 11
    assert rows.decode_seqs.sum() == 5 * 5  # the first token of an answer is the prefill's
    assert (rows.kv_used + rows.kv_cached + rows.kv_free == CONFIG.num_blocks).all()
    assert (rows.end_ns > rows.start_ns).all()
    assert (rows.start_ns.to_numpy()[1:] >= rows.end_ns.to_numpy()[:-1]).all()
    requests = pq.read_table(tmp_path / "new" / REQUESTS_FILE).to_pandas()
    assert requests.server_request_id.tolist() == [s.request_id for s in sequences]
    assert (requests.output_tokens == 6).all()
    assert (requests.first_scheduled_ns < requests.first_token_ns).all()
    assert (requests.first_token_ns < requests.finished_ns).all()
    assert set(requests.first_token_ns) <= set(rows.end_ns)


def test_a_request_never_scheduled_has_no_instants_but_its_own() -> None:
    engine, sequence = stub_engine(CONFIG), make_sequence([1], max_tokens=6)
    engine.add(sequence)
    engine.cancel(sequence)
    (row,) = requests_table(list(engine.log.requests), {}).to_pylist()
    assert row["first_scheduled_ns"] is None
    assert row["first_token_ns"] is None
    assert row["finish_reason"] == "cancelled"


def test_no_requests_make_an_empty_table() -> None:
    assert requests_table([], {}).num_rows == 0
    assert np.array(StepLog().steps()).shape == (0, NUM_VALUES)
