"""Whatever breaks on our side after the load began, the folder says so and the exit code is 3."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.drive import DriveConfig
from loadgen.drive.config import DriveResult
from loadgen.errors import EXIT_INVALID, BrokenOffError, RunFolderError, UsageError
from loadgen.measurement import conclude, record
from loadgen.store import RunFolder, load
from workloads.plan import Plan

PLAN = Plan.of(np.arange(5) * 10**8, np.full(5, 5, np.int32), np.full(5, 2, np.int32))


def result(**changes: Any) -> DriveResult:
    values: dict[str, Any] = {
        "epoch_ns": 0,
        "epoch_wall": "2026-01-31T12:00:00+00:00",
        "ended_ns": 10**9,
        "num_rows": 5,
        "interrupted": False,
        "load_model": "open loop",
    }
    return DriveResult(**{**values, **changes})


def recorded(
    out: Path, monkeypatch: pytest.MonkeyPatch, drive: Callable[..., DriveResult]
) -> tuple[RunFolder, Callable[[], Any]]:
    monkeypatch.setattr("loadgen.measurement.drive", drive)
    folder = RunFolder.create(out, "test")
    config = DriveConfig(url="http://127.0.0.1:9", model="m", seed=1, nonce=1, run_id=folder.run_id)
    return folder, lambda: record(
        PLAN,
        config,
        folder,
        manifest={},
        on_progress=lambda _: None,
        stop=threading.Event(),
        is_target_alive=lambda: True,
    )


def reasons(folder: RunFolder) -> list[str]:
    summary = conclude(folder).summary
    assert summary is not None
    return [reason["code"] for reason in summary["verdict"]["reasons"]]


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({}, "complete", []),
        ({"interrupted": True}, "interrupted", ["interrupted"]),
        ({"worker_errors": ["load process 0 died (signal 9)"]}, "failed", ["failed"]),
    ],
)
def test_the_status_says_who_ended_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], status: str, code: list[str]
) -> None:
    folder, go = recorded(tmp_path, monkeypatch, lambda *_, **__: result(**changes))
    go()
    assert load(folder.path).manifest["status"] == status
    assert reasons(folder) == [*code, "no_answers"]


def test_what_the_limits_refuse_stays_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> DriveResult:
        raise UsageError("too few descriptors")

    _, go = recorded(tmp_path, monkeypatch, refuse)
    with pytest.raises(UsageError, match="too few descriptors"):
        go()


@pytest.mark.parametrize("also_the_manifest", [False, True])
def test_rows_that_cannot_be_kept_break_the_run_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also_the_manifest: bool
) -> None:
    folder, go = recorded(tmp_path, monkeypatch, lambda *_, **__: result())

    def full(*_: object, **__: object) -> int:
        if also_the_manifest:
            monkeypatch.setattr(RunFolder, "write_manifest", full)
        raise RunFolderError("no space left on device")

    monkeypatch.setattr(RunFolder, "compact_requests", full)
    with pytest.raises(BrokenOffError, match="no space left") as broke:
        go()
    assert broke.value.exit_code == EXIT_INVALID
    monkeypatch.undo()
    assert load(folder.path).manifest["status"] == "failed"
    assert reasons(folder) == ["failed", "no_answers"]


def test_a_folder_that_is_removed_meanwhile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(*_: object, **__: object) -> DriveResult:
        for path in folder.path.iterdir():
            path.unlink()
        folder.path.rmdir()
        return result()

    folder, go = recorded(tmp_path, monkeypatch, remove)
    with pytest.raises(BrokenOffError, match="was removed while it was written"):
        go()
    with pytest.raises(BrokenOffError, match="is not a folder"):
        conclude(folder)
