"""Starts one of the known servers as a process of its own, ends it, and reads the log of what it wrote.

The server ends when our end of its stdin closes, so that a killed client leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import BenchError
from loadgen.golden.log import EVENT_INSTANTS

Int64 = NDArray[np.int64]

GOLDEN = "loadgen.golden.server"
READY_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenLog:
    """What the golden server did. One value per request; EVENT_INSTANTS one per token event.

    Event j of request i stands at `offsets[i] + j`. Instants are CLOCK_MONOTONIC ns.
    """

    row_of: dict[str, int]
    arrived_ns: Int64
    offsets: Int64
    due_ns: Int64
    before_ns: Int64
    after_ns: Int64

    def events_of(self, request_id: str) -> Int64:
        """Return the positions of a request's token events in `before_ns` and `after_ns`."""
        row = self.row_of[request_id]
        return np.arange(self.offsets[row], self.offsets[row + 1])

    def lateness_ns(self) -> Int64:
        """Return how long after it was due each token event was written."""
        return self.before_ns - self.due_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A running known server."""

    host: str
    port: int
    pid: int

    @property
    def url(self) -> str:
        """The root of the server, to be given as a target."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def get(self, path: str) -> bytes:
        """Return the body of GET `path`."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=READY_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read()

    def take_log(self) -> GoldenLog:
        """Return the log of the golden server since the last call."""
        with np.load(io.BytesIO(self.get("/log"))) as arrays:
            ids = [request_id.decode() for request_id in arrays["request_id"]]
            return GoldenLog(
                row_of={request_id: row for row, request_id in enumerate(ids)},
                arrived_ns=arrays["arrived_ns"],
                offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(arrays["num_events"])]),
                **{name: arrays[name] for name in EVENT_INSTANTS},
            )


@contextlib.contextmanager
def start_server(module: str, *flags: str, host: str = "127.0.0.1") -> Iterator[ServerProcess]:
    """Run `python -m module flags` until the block ends; it is ready when the block begins.

    Raises BenchError where the server does not come up; what it had to say is on stderr.
    """
    command = [sys.executable, "-m", module, "--host", host, *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            is_ready, _, _ = select.select([process.stdout], [], [], READY_TIMEOUT_S)
            line = process.stdout.readline() if is_ready else b""
            if not line:
                raise BenchError(
                    f"{module} did not start within {READY_TIMEOUT_S:g} s; its words stand above"
                )
            yield ServerProcess(host=host, port=json.loads(line)["port"], pid=process.pid)
        finally:
            process.kill()
