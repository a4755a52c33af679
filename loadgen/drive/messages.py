"""What a load process is told, and what it says meanwhile: the values that cross the pipe."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from loadgen.drive.config import DriveConfig, WorkerStats
from loadgen.drive.dispatch import Share
from loadgen.drive.ledger import Tally
from loadgen.transport.sockets import Target

HELD_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
)  # blocked in a load process until it has handlers


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one load process is to do."""

    share: Share
    config: DriveConfig
    targets: tuple[Target, ...]
    folder: Path
    limit: int | None
    concurrency: int | None
    cpu: int | None


@dataclass(frozen=True, slots=True)
class Ready:
    """First requests are rendered and the loop can start."""


@dataclass(frozen=True, slots=True)
class Start:
    epoch_ns: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End what is in flight as cancelled, send nothing more, write every row.

    epoch_ns: the start of the run, which a process that never started does not know.
    """

    epoch_ns: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    num_sent: int
    num_in_flight: int
    tally: Tally


@dataclass(frozen=True, slots=True)
class Done:
    stats: WorkerStats
