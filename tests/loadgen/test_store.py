"""Run folders: what is written can be read, whole or broken off, and what is no run says so."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import loadgen
from loadgen.errors import RunFolderError
from loadgen.records import Outcome, RequestRecord, arrow_schema
from loadgen.store import RowWriter, RunFolder, load, stream_path, write_json
from workloads.plan import Plan


def make_plan(n: int) -> Plan:
    return Plan.of(
        np.arange(n) * 1000, np.full(n, 5, np.int32), np.full(n, 3, np.int32), {"arrival": "constant"}
    )


def make_record(index: int, num_chunks: int = 3) -> RequestRecord:
    scheduled = index * 1000
    stamps = [scheduled + 500 + 10 * k for k in range(num_chunks)]
    return RequestRecord(
        index=index,
        scheduled_ns=scheduled,
        sent_ns=scheduled + 1,
        first_token_ns=stamps[0] if stamps else None,
        last_token_ns=stamps[-1] if stamps else None,
        prompt_tokens_planned=5,
        output_tokens_planned=3,
        output_tokens=num_chunks,
        output_tokens_source="usage",
        chunk_ns=stamps,
        chunk_lower_ns=stamps,
        chunk_tokens=[1] * num_chunks,
        outcome=Outcome.OK,
        error="x" * 900,
        worker=0,
    )


def make_folder(tmp_path: Path, plan: Plan, per_worker: list[list[int]]) -> RunFolder:
    folder = RunFolder.create(tmp_path / "runs", "test")
    folder.write_plan(plan)
    for worker, indices in enumerate(per_worker):
        writer = RowWriter(stream_path(folder.path, worker))
        for index in indices:
            writer.append(make_record(index))
        writer.close()
    return folder


def test_rows_of_all_workers_come_back_in_order_and_missing_ones_are_unsent(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, make_plan(7), [[4, 0, 2], [5, 1]])
    assert folder.compact_requests(make_plan(7), reason="stopped") == 7
    folder.write_manifest({"status": "complete"})
    frame = load(folder.path).requests
    assert frame["index"].tolist() == list(range(7))
    assert frame["outcome"].tolist() == ["ok", "ok", "ok", "unsent", "ok", "ok", "unsent"]
    assert frame["error"][3] == "stopped"
    assert len(frame["error"][0]) == 500
    assert frame["scheduled_ns"][3] == 3000
    assert frame["sent_ns"].isna().tolist() == [False, False, False, True, False, False, True]
    assert list(frame["chunk_ns"][0]) == [500, 510, 520]
    assert list(frame["chunk_ns"][3]) == []
    assert list(folder.path.glob("*.arrows")) == []
    assert list(folder.path.glob(".*.tmp")) == []


def test_parquet_has_the_schema_of_the_records(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    folder = make_folder(tmp_path, make_plan(2), [[0]])
    folder.compact_requests(make_plan(2))
    schema = pq.read_schema(folder.path / "requests.parquet")
    assert schema.remove_metadata().equals(arrow_schema().remove_metadata())
    assert schema.metadata[b"schema_version"] == b"1"


def test_plan_comes_back_with_its_digest(tmp_path: Path) -> None:
    plan = make_plan(3)
    folder = make_folder(tmp_path, plan, [])
    run = load(folder.path)
    assert run.plan["arrival_ns"].tolist() == [0, 1000, 2000]
    assert run.plan["class"].tolist() == ["default"] * 3
    metadata = run.plan_rows().schema.metadata
    assert metadata[b"digest"].decode() == plan.digest()
    assert json.loads(metadata[b"source"]) == {"arrival": "constant"}


def test_a_row_is_on_disk_when_its_batch_is_full_or_flushed(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrows"
    writer = RowWriter(path, batch_rows=2)
    sizes = [path.stat().st_size]
    for index in range(2):
        writer.append(make_record(index))
        sizes.append(path.stat().st_size)
    assert sizes[0] == sizes[1] < sizes[2]
    writer.append(make_record(2))
    writer.flush()
    assert path.stat().st_size > sizes[2]
    writer.close()


def test_a_killed_writer_loses_only_what_was_not_flushed(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "crash")
    folder.write_plan(make_plan(6))
    script = (
        "import os, sys; from pathlib import Path\n"
        "from loadgen.store import RowWriter; from tests.loadgen.test_store import make_record\n"
        "writer = RowWriter(Path(sys.argv[1]), batch_rows=2)\n"
        "for index in range(5): writer.append(make_record(index))\n"
        "os._exit(9)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(stream_path(folder.path, 0))], check=False, cwd=Path.cwd()
    )
    run = load(folder.path)
    assert not (run.path / "requests.parquet").exists()
    assert run.requests["outcome"].tolist() == ["ok"] * 4 + ["unsent"] * 2
    assert "may have been in flight" in run.requests["error"][5]


@pytest.mark.parametrize("cut", [1, 40, 300])
def test_a_torn_last_batch_is_left_out(tmp_path: Path, cut: int) -> None:
    folder = RunFolder.create(tmp_path, "torn")
    folder.write_plan(make_plan(4))
    path = stream_path(folder.path, 0)
    writer = RowWriter(path, batch_rows=1)
    for index in range(3):
        writer.append(make_record(index))
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - cut)
    outcomes = load(folder.path).requests["outcome"].tolist()
    writer.close()
    assert outcomes == ["ok", "ok", "unsent", "unsent"]


def test_streams_are_kept_when_compaction_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path, make_plan(2), [[0, 1]])

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(RunFolderError, match=r"cannot write .*requests\.parquet: No space"):
        folder.compact_requests(make_plan(2))
    assert not list(folder.path.glob(".*.tmp"))
    assert stream_path(folder.path, 0).exists()
    assert not (folder.path / "requests.parquet").exists()


def test_a_stream_that_cannot_be_written_ends_at_its_last_whole_batch(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, make_plan(3), [])
    folder.write_plan(make_plan(3))
    writer = RowWriter(stream_path(folder.path, 0), batch_rows=1)
    writer.append(make_record(0))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (stream_path(folder.path, 0).stat().st_size, limits[1]))
    try:
        with pytest.raises(RunFolderError, match=r"requests-0\.arrows: File too large"):
            writer.append(make_record(1))
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load(folder.path).requests["outcome"].tolist() == ["ok", "unsent", "unsent"]


def test_many_row_groups_keep_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.row_stream.ROW_GROUP_ROWS", 8)
    order = np.random.default_rng(1).permutation(50).tolist()
    folder = make_folder(tmp_path, make_plan(53), [order[:25], order[25:]])
    assert folder.compact_requests(make_plan(53)) == 53
    frame = load(folder.path).requests
    assert frame["index"].tolist() == list(range(53))
    assert frame["outcome"].tolist() == ["ok"] * 50 + ["unsent"] * 3


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path) -> None:
    folders = {RunFolder.create(tmp_path, "same").path for _ in range(5)}
    assert len(folders) == 5


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunFolderError, match=r"cannot write a run folder under .*; choose a place with --out"
    ):
        RunFolder.create(tmp_path / "file" / "runs", "x")
    with pytest.raises(RunFolderError, match="--name 'a/b'"):
        RunFolder.create(tmp_path, "a/b")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_is_strict_and_a_failed_write_leaves_the_old_file(tmp_path: Path, value: float) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"a": np.float64(1.5), "b": np.arange(2), "c": tmp_path})
    with pytest.raises(ValueError):
        write_json(path, {"a": value})
    assert json.loads(path.read_text())["b"] == [0, 1]


def test_load_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a folder"):
        load(tmp_path / "none")
    with pytest.raises(RunFolderError, match=r"has no manifest\.json"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(RunFolderError, match="cannot read"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"status": "complete"}')
    with pytest.raises(RunFolderError, match="no schema_version"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema_version": 99, "status": "complete"}')
    with pytest.raises(RunFolderError, match="schema version 99, this bench reads up to 1"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema_version": 1, "status": "complete"}')
    (tmp_path / "summary.json").write_text('{"schema_version": 99}')
    with pytest.raises(RunFolderError, match=r"summary.json has schema version 99"):
        _ = load(tmp_path).summary
    (tmp_path / "manifest.json").write_text('{"schema_version": "x", "status": "complete"}')
    with pytest.raises(RunFolderError, match="no schema version that bench knows: 'x'"):
        load(tmp_path)
    for text in ('{"schema_version": NaN}', '{"a":' * 100_000):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(RunFolderError, match="cannot read"):
            load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1xxxxPAR1", b"\0" * 4_000])
@pytest.mark.parametrize("name", ["requests", "plan", "server", "engine_steps", "engine_requests"])
def test_a_damaged_file_is_told(name: str, content: bytes, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, make_plan(3), [[0, 1, 2]])
    folder.compact_requests(make_plan(3))
    (folder.path / f"{name}.parquet").write_bytes(content)
    run = load(folder.path)
    read: dict[str, Callable[[], object]] = {
        "requests": lambda: run.requests,
        "plan": lambda: run.plan,
        "server": run.server_rows,
        "engine_steps": lambda: run.steps,
        "engine_requests": run.engine_request_rows,
    }
    with pytest.raises(RunFolderError, match=rf"{name}\.parquet is damaged or not Parquet"):
        read[name]()


def test_a_new_folder_is_running_and_holds_no_rows_yet(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "new")
    run = load(folder.path)
    assert run.manifest["status"] == "running"
    assert run.summary is None
    assert run.steps is None
    with pytest.raises(RunFolderError, match="before its plan was written"):
        _ = run.rows


def test_importing_loadgen_imports_neither_pandas_nor_pyarrow() -> None:
    script = (
        "import sys, loadgen, loadgen.store; loadgen.load; print({'pandas', 'pyarrow'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
    assert loadgen.load is load
