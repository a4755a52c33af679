"""Starts the real server process for tests and stops it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

NANO = ("--model", "nano", "--kv-tokens", "8192", "--check-invariants", "--drain-timeout", "5")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    process: subprocess.Popen[bytes]
    port: int
    about: dict[str, Any]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=30)


@contextmanager
def running_server(*args: str) -> Iterator[RunningServer]:
    """Start a server on a free port, wait until it is ready, and leave no process behind."""
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", "reference_engine.server", "--port", "0", "--ready-fd", str(write_fd)]
    process = subprocess.Popen([*command, *NANO, *args], pass_fds=[write_fd], stderr=subprocess.DEVNULL)
    os.close(write_fd)
    try:
        with os.fdopen(read_fd, "rb") as ready:
            about = json.loads(ready.readline())
        yield RunningServer(process=process, port=about["port"], about=about)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=30)
