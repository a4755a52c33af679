"""One `bench run` against a known server: its rows, the server's log, and what the run cost.

The client is the command itself in a process of its own, as a user starts it; only its processor is chosen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.golden.judge import JUDGED_COLUMNS, ClientErrors, judge
from loadgen.golden.process import ServerProcess
from loadgen.store import load

SERVER_CPU, CLIENT_CPU = 0, 1
BENCH = (sys.executable, "-c", "from loadgen.cli import main; main()", "run")
WATCH_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """A finished run. worker: the account of its load process. errors: None where no log is kept."""

    summary: dict[str, Any]
    worker: dict[str, Any]
    errors: ClientErrors | None
    start_s: float | None
    peak_pss_mb: float

    @property
    def reads_per_event(self) -> float:
        """Reads beside those of head and tail, per token event."""
        worker = self.worker
        return float((worker["num_reads"] - 2 * worker["num_rows"]) / max(worker["num_events"], 1))

    def metric_ms(self, name: str, statistic: str = "p99") -> float | None:
        """A statistic of a metric in milliseconds; None where it is undefined."""
        value = self.summary["metrics"].get(name, {}).get(statistic)
        return None if value is None else float(value) * 1e3

    def verdict(self) -> str:
        """`valid`, or the codes of the reasons."""
        verdict = self.summary["verdict"]
        codes = ", ".join(reason["code"] for reason in verdict["reasons"])
        return f"invalid: {codes}" if codes else str(verdict["status"])


def run_bench(server: ServerProcess, *flags: str, is_logged: bool = True) -> Driven:
    """Measure the server with `bench run` and the flags, one load process, on the client's processor."""
    with tempfile.TemporaryDirectory() as out:
        begun_ns = time.monotonic_ns()
        with start_bench(server, out, "--workers", "1", *flags) as process:
            peak = PeakMemory(process.pid)
            output, _ = process.communicate()
            peak_mb = peak.stop()
        run = load(Path(json.loads(output)["folder"]))
        errors, start_s = None, None
        if is_logged:
            log = server.take_log()
            run_id, epoch_ns = run.path.name, run.manifest["drive"]["epoch_ns"]
            errors = judge(run.rows.read(JUDGED_COLUMNS), log, run_id=run_id, epoch_ns=epoch_ns)
            first_ns = min(log.arrived_ns[row] for name, row in log.row_of.items() if name.startswith(run_id))
            start_s = float(first_ns - begun_ns) / 1e9
        (worker,) = run.manifest["drive"]["workers"]
        return Driven(
            summary=run.summary or {}, worker=worker, errors=errors, start_s=start_s, peak_pss_mb=peak_mb
        )


def start_bench(
    server: ServerProcess, out: str, *flags: str, cpus: Collection[int] = (CLIENT_CPU,)
) -> subprocess.Popen[bytes]:
    """Start `bench run` on these processors; its folder comes under `out`, its summary on stdout."""
    command = [*BENCH, "--target", server.url, "--out", out, "--quiet", "--json", *flags]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, preexec_fn=partial(os.sched_setaffinity, 0, cpus)
    )


class PeakMemory:
    """Watches the memory of a process and its children (PSS: shared pages counted once)."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak_kb = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> float:
        """Return the peak in MB."""
        self._is_over.set()
        self._thread.join()
        return self._peak_kb / 1e3

    def _watch(self) -> None:
        while not self._is_over.wait(WATCH_S):
            self._peak_kb = max(self._peak_kb, sum(map(memory_kb, [self._pid, *_descendants(self._pid)])))


def _descendants(pid: int) -> Sequence[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(child) for child in text.split()]
    return [*children, *(grandchild for child in children for grandchild in _descendants(child))]


def memory_kb(pid: int, kind: str = "Pss") -> int:
    """Return the memory of a process, 0 once it is gone. kind: as in /proc/PID/smaps_rollup."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(text.partition(f"\n{kind}:")[2].split(None, 1)[0])
