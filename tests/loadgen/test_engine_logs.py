from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.engine_logs import rebase_engine_logs


def test_logs_are_brought_into_the_time_of_the_run_once(tmp_path: Path) -> None:
    steps = pa.table({"step": [0, 1], "start_ns": [90, 150], "end_ns": [100, 160]})
    requests = pa.table({"server_request_id": ["a"], "finished_ns": pa.array([None], pa.int64())})
    pq.write_table(steps.replace_schema_metadata({"schema_version": "1"}), tmp_path / "engine_steps.parquet")
    pq.write_table(requests, tmp_path / "engine_requests.parquet")
    for _ in range(2):
        rebase_engine_logs(tmp_path, 100)
        moved = pq.read_table(tmp_path / "engine_steps.parquet")
        assert moved["start_ns"].to_pylist() == [-10, 50]
        assert moved["end_ns"].to_pylist() == [0, 60]
        assert moved["step"].to_pylist() == [0, 1]
        assert moved.schema.metadata[b"schema_version"] == b"1"
        assert pq.read_table(tmp_path / "engine_requests.parquet")["finished_ns"].to_pylist() == [None]


def test_a_folder_without_logs_is_left_alone(tmp_path: Path) -> None:
    rebase_engine_logs(tmp_path, 100)
    assert list(tmp_path.iterdir()) == []
