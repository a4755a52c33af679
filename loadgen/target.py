"""The life cycle of what is measured: a server that `bench` starts, waits for, watches and stops.

The reference engine says that it is ready by one JSON line on a pipe (`{"port": ..., "model": ...}`), any
other server by answering at a URL; its output goes to a file. It lives in a session of its own, so that a
Ctrl-C meant for the load generator does not stop it before the requests in flight are accounted for, and
so that it can be stopped with its children.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from loadgen.errors import TargetError

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
ASK_TIMEOUT_S = 2.0
ASK_TRIES = 3
NOBODY = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH)
CHILDREN_TIMEOUT_S = 3.0
POLL_S = 0.2


def is_gone(url: str, *, headers: Mapping[str, str], verify: bool, trust_env: bool) -> bool:
    """Ask a target by the way that its requests took; say whether nobody is there, each time of three.

    Whoever accepts a connection, is slow, breaks off or answers with an error is there, and so is whoever
    this machine cannot ask for want of a descriptor or a port.
    """
    import httpx

    way: dict[str, Any] = {"headers": headers, "verify": verify, "trust_env": trust_env}
    for attempt in range(ASK_TRIES):
        time.sleep(POLL_S * bool(attempt))
        try:
            with httpx.Client(**way, timeout=ASK_TIMEOUT_S) as client, client.stream("GET", url):
                return False
        except (httpx.HTTPError, OSError) as exc:
            if not isinstance(exc, httpx.ConnectError) or _errno(exc) not in NOBODY:
                return False
    return True


def _errno(exc: BaseException) -> int | None:
    """The number of the system's error that an exception goes back to."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return cause.errno
        cause = cause.__cause__ or cause.__context__
    return None


class ServerProcess:
    """A server started for one measurement; a context manager that stops it whatever happens."""

    def __init__(self, command: Sequence[str], *, log: Path, cpus: Iterable[int] | None = None) -> None:
        """command: contains `{ready_fd}` where the number of the pipe belongs, if it is to use one.

        cpus: the processors that the server starts on; a child that asks for others gets them.
        """
        self._log = log
        read_fd, write_fd = os.pipe()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [part.replace("{ready_fd}", str(write_fd)) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[write_fd],
                start_new_session=True,
            )
        os.close(write_fd)
        if cpus is not None:
            os.sched_setaffinity(self._process.pid, cpus)
        self._ready_fd = read_fd
        self.facts: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://{self.facts.get('host', '127.0.0.1')}:{self.facts['port']}"

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(
        self, timeout_s: float = READY_TIMEOUT_S, *, stop: threading.Event | None = None
    ) -> dict[str, Any]:
        """Block until the server has said that it is ready; return what it said of itself.

        Raises KeyboardInterrupt where `stop` is set before that.
        """
        deadline = time.monotonic() + timeout_s
        said = b""
        while not said.endswith(b"\n"):
            readable, _, _ = select.select([self._ready_fd], [], [], POLL_S)
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            if not readable and time.monotonic() < deadline:
                continue
            if not readable:
                raise TargetError(
                    f"the server was not ready after {timeout_s:.0f} s; its last words: {self.last_words()}"
                )
            more = os.read(self._ready_fd, 65536)
            if not more:
                self._process.wait(timeout=STOP_TIMEOUT_S)
                raise self._ended_early()
            said += more
        self.facts = json.loads(said)
        return self.facts

    def wait_answers(
        self,
        url: str,
        timeout_s: float,
        *,
        headers: Mapping[str, str] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Block until a GET of `url` is answered with a status below 400, or `stop` is set."""
        import httpx

        deadline = time.monotonic() + timeout_s
        with httpx.Client(headers=headers, timeout=2.0, verify=False, trust_env=False) as client:
            while stop is None or not stop.is_set():
                if not self.is_alive():
                    raise self._ended_early()
                try:
                    if client.get(url).status_code < 400:
                        return
                except httpx.HTTPError:
                    pass
                if time.monotonic() > deadline:
                    said = self.last_words()
                    raise TargetError(f"{url} was not ready after {timeout_s:g} s; its last words: {said}")
                time.sleep(POLL_S)

    def _ended_early(self) -> TargetError:
        code = self._process.returncode
        return TargetError(f"the server ended with code {code} before it was ready: {self.last_words()}")

    def last_words(self) -> str:
        """Return the last line that the server printed, for a message."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "(it printed nothing)"

    def stop(self) -> int:
        """Ask the server to stop, insist after a while, end what it leaves behind, return its exit code."""
        if self.is_alive():
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._end_children()
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1
        return self._process.returncode

    def _end_children(self) -> None:
        """Processes of its group that outlived it: asked first, then killed."""
        deadline = time.monotonic() + CHILDREN_TIMEOUT_S
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                time.sleep(0.02)
                os.killpg(self._process.pid, 0)
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # none left (macOS: none but zombies)
            pass

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()
