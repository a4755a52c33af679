"""What a run's manifest says about how it is to be measured and how it went; everything else comes from its
rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.measure.slo import Objective, parse_slo


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """What the user asked: flags that change how the rows are read, never the rows.

    warmup_s: None finds it. named: percentiles that an objective or an assertion rests on, as objectives.
    """

    warmup_s: float | None = None
    objectives: tuple[Objective, ...] = ()
    named: tuple[Objective, ...] = ()
    max_send_lag_s: float | None = None
    concurrency: int | None = None
    max_in_flight: int | None = None

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> MeasureOptions:
        """Read the options from manifest.json; flags that it does not hold have their defaults."""
        flags = {name: entry["value"] for name, entry in (manifest.get("config") or {}).items()}
        warmup = flags.get("warmup")
        objectives = tuple(parse_slo(text) for text in flags.get("slo") or ())
        return cls(
            warmup_s=None if warmup in (None, "auto") else float(warmup),
            objectives=objectives,
            named=tuple(objective for objective in objectives if objective.percentile is not None),
            max_send_lag_s=flags.get("max_send_lag"),
            concurrency=flags.get("concurrency"),
            max_in_flight=flags.get("max_in_flight"),
        )

    @property
    def is_open_loop(self) -> bool:
        """Nothing but the schedule decides when a request leaves."""
        return self.concurrency is None and self.max_in_flight is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """How the run went, as its load processes and its target said.

    scheduling, cpu_s, wait_s: of the load processes; the most that one ran, and was ready and did not run.
    drive_s: from the start to the end of the last of them.
    fitted_lengths: how prompt lengths were fitted, where the target's tokenizer splits the words.
    """

    status: str = "complete"
    is_target_alive: bool = True
    worker_errors: tuple[str, ...] = ()
    num_clock_steps: int = 0
    clock_drift_ns: float = 0.0
    clock_stepped_ns: float = 0.0
    cpu_pressure_percent: float | None = None
    scheduling: str | None = None
    cpu_s: float | None = None
    wait_s: float | None = None
    drive_s: float | None = None
    fitted_lengths: str | None = None

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> RunFacts:
        """Read the facts from manifest.json."""
        target = manifest.get("target") or {}
        drive = manifest.get("drive") or {}
        workers = drive.get("workers") or []
        by_wall_clock = [worker for worker in workers if worker.get("has_kernel_stamps", True)]
        return cls(
            status=manifest["status"],
            is_target_alive=target.get("alive_at_end", True),
            worker_errors=tuple(drive.get("worker_errors") or ()),
            num_clock_steps=int(_most(by_wall_clock, "num_clock_steps") or 0),
            clock_drift_ns=_most(by_wall_clock, "clock_drift_ns") or 0,
            clock_stepped_ns=_most(by_wall_clock, "clock_stepped_ns") or 0,
            cpu_pressure_percent=manifest.get("cpu_pressure_percent"),
            scheduling=", ".join(sorted({w["scheduling"] for w in workers if "scheduling" in w})) or None,
            cpu_s=_most(workers, "cpu_s"),
            wait_s=_most(workers, "wait_s"),
            drive_s=(drive["ended_ns"] - drive["epoch_ns"]) / 1e9 if "ended_ns" in drive else None,
            fitted_lengths=target.get("fitted_lengths"),
        )


def _most(workers: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The largest size of a fact over the load processes; None where none tells it."""
    return max((abs(worker[name]) for worker in workers if worker.get(name) is not None), default=None)
