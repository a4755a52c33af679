"""One measured run, from a plan to a judged folder: `record` drives and keeps, `conclude` reads and judges.

The two halves meet only in the run folder, so that a run whose target or whose load generator died is judged
by the same code as any other, and an old folder can be judged again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from loadgen.clock import now_ns
from loadgen.drive import DriveConfig, Progress, drive
from loadgen.engine_logs import rebase_engine_logs
from loadgen.environment import describe_environment, read_cpu_pressure
from loadgen.errors import BrokenOffError, RunFolderError
from loadgen.measure.summary import summarize
from loadgen.row_stream import WithoutPandas
from loadgen.store import LOST_IN_CRASH, Run, RunFolder, load
from loadgen.telemetry import Telemetry
from workloads.plan import Plan


class CpuPressure:
    """Per cent of the time since it was made in which some task of this machine waited for a processor."""

    def __init__(self) -> None:
        self._since_ns = now_ns()
        self._before = read_cpu_pressure()

    def percent(self) -> float | None:
        """None where the system does not say."""
        now = read_cpu_pressure()
        if now is None or self._before is None:
            return None
        elapsed_us = (now_ns() - self._since_ns) / 1e3
        return 100 * (now["total_us"] - self._before["total_us"]) / elapsed_us


@WithoutPandas()
def record(
    plan: Plan,
    config: DriveConfig,
    folder: RunFolder,
    *,
    manifest: dict[str, Any],
    on_progress: Callable[[Progress], None],
    stop: threading.Event,
    is_target_alive: Callable[[], bool],
    telemetry: Telemetry | None = None,
) -> dict[str, Any]:
    """Send the plan, keep every row, and write the manifest; return the manifest as written.

    Whatever happens in between, the folder ends with one row per planned request and a status:
    complete, interrupted (`stop` was set) or failed (a load process, the disk, the folder). Raises
    UsageError where the system's limits refuse the plan and nothing was sent, BrokenOffError where not
    everything could be kept.
    """
    facts: dict[str, Any] = {
        **manifest,
        "run_id": folder.run_id,
        "plan_digest": plan.digest(),
        "plan": {"num_requests": len(plan), "span_s": plan.span_s, **plan.source},
        "environment": describe_environment(),
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    folder.write_plan(plan)
    folder.write_manifest({**facts, "status": "running"})
    pressure = CpuPressure()
    status, reason = "failed", "the load generator broke before this request was sent"
    try:
        with telemetry or nullcontext():
            result = drive(plan, config, folder=folder.path, on_progress=on_progress, stop=stop)
        facts["drive"] = result.facts()
        if telemetry is not None:
            telemetry.save(folder.path / "server.parquet", result.epoch_ns)
            facts["telemetry"] = telemetry.facts()
        status = "interrupted" if result.interrupted else "complete"
        if result.interrupted:
            reason = "the run was stopped before this request was due"
        elif result.worker_errors:
            status, reason = "failed", LOST_IN_CRASH
    except RunFolderError as exc:
        raise BrokenOffError(str(exc)) from exc
    except KeyboardInterrupt:
        status, reason = "interrupted", LOST_IN_CRASH
        raise
    finally:
        facts["target"] = {**facts.get("target", {}), "alive_at_end": is_target_alive()}
        facts["cpu_pressure_percent"] = pressure.percent()
        facts["ended"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            folder.compact_requests(plan, reason=reason)
            folder.write_manifest({**facts, "status": status})
        except RunFolderError as exc:  # the rows stay in their streams, where `load` finds them
            folder.mark_failed()
            raise BrokenOffError(str(exc)) from exc
    return facts


@WithoutPandas()
def conclude(folder: RunFolder) -> Run:
    """Compute and judge what the folder holds, write summary.json, and return the run.

    Raises BrokenOffError where that cannot be read, or written.
    """
    try:
        run = load(folder.path)
        if epoch_ns := run.manifest.get("drive", {}).get("epoch_ns"):
            rebase_engine_logs(folder.path, epoch_ns)
        folder.write_summary(summarize(run))
    except RunFolderError as exc:
        raise BrokenOffError(str(exc)) from exc
    return run
