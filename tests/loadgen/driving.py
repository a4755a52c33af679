"""Drives a plan in a test and returns its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from loadgen.drive import DriveConfig, DriveResult, Progress, drive
from loadgen.store import RunFolder, load
from workloads.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """What a drive left: its result, its rows by index, and the reports on the way."""

    run_id: str
    result: DriveResult
    rows: pd.DataFrame
    progress: list[Progress]

    @property
    def outcomes(self) -> dict[str, int]:
        return {str(name): int(n) for name, n in self.rows["outcome"].value_counts().items()}


def even_plan(num_requests: int, gap_ms: float, output_tokens: int = 4) -> Plan:
    """Requests at a constant gap, each with a prompt of its own length."""
    return Plan.of(
        (np.arange(num_requests) * gap_ms * 1e6).astype(np.int64),
        np.arange(3, num_requests + 3, dtype=np.int32),
        np.full(num_requests, output_tokens, np.int32),
    )


def run_drive(
    plan: Plan,
    folder: Path,
    url: str,
    *,
    stop: threading.Event | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **changes: object,
) -> Driven:
    """Drive and compact, as `bench run` does."""
    run = RunFolder.create(folder, "test")
    run.write_plan(plan)
    given: dict[str, object] = {"url": url, "model": "m", "seed": 1, "nonce": 2, "run_id": run.run_id}
    progress: list[Progress] = []

    def note(now: Progress) -> None:
        progress.append(now)
        on_progress(now)

    config = DriveConfig(**(given | changes))  # type: ignore[arg-type]
    result = drive(plan, config, folder=run.path, on_progress=note, stop=stop or threading.Event())
    run.compact_requests(plan)
    run.write_manifest({"status": "complete"})
    return Driven(run_id=run.run_id, result=result, rows=load(run.path).requests, progress=progress)
