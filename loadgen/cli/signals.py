"""Ctrl-C, SIGTERM and SIGHUP in a run: the first asks it to stop and keep its rows, the second insists."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import typer

from loadgen.errors import EXIT_INTERRUPTED, EXIT_TERMINATED


class Interruption:
    """A context in which SIGINT, SIGTERM and SIGHUP set `stop` in place of ending the process.

    SIGHUP stays ignored where it was: by nohup.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.exit_code: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
                continue
            self._previous[signum] = signal.signal(signum, self._on_signal)
        return self

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self.exit_code is not None:
            raise KeyboardInterrupt
        self.exit_code = EXIT_INTERRUPTED if signum == signal.SIGINT else EXIT_TERMINATED
        self.stop.set()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        if isinstance(exc, KeyboardInterrupt) and self.exit_code is not None:
            raise typer.Exit(self.exit_code) from None  # the first signal says what this was
