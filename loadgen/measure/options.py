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

    fitted_lengths: how prompt lengths were fitted, where the target's tokenizer splits the words.
    """

    status: str = "complete"
    is_target_alive: bool = True
    worker_errors: tuple[str, ...] = ()
    num_clock_steps: int = 0
    clock_drift_ns: float = 0.0
    clock_stepped_ns: float = 0.0
    loop_lag_p99_s: float | None = None
    cpu_pressure_percent: float | None = None
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
            num_clock_steps=_largest(by_wall_clock, "num_clock_steps"),
            clock_drift_ns=_largest(by_wall_clock, "clock_drift_ns"),
            clock_stepped_ns=_largest(by_wall_clock, "clock_stepped_ns"),
            loop_lag_p99_s=_worst_lag_s(workers),
            cpu_pressure_percent=manifest.get("cpu_pressure_percent"),
            fitted_lengths=target.get("fitted_lengths"),
        )


def _largest(workers: Sequence[Mapping[str, Any]], name: str) -> int:
    return max((abs(worker.get(name, 0)) for worker in workers), default=0)


def _worst_lag_s(workers: Sequence[Mapping[str, Any]]) -> float | None:
    """The loop lag of the load process that had most; None where one does not know its own."""
    lags = [worker.get("loop_lag_p99_ns") for worker in workers if worker.get("num_sent")]
    known = [lag / 1e9 for lag in lags if lag is not None]
    return max(known) if known and len(known) == len(lags) else None
