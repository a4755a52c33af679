"""The one clock: CLOCK_MONOTONIC nanoseconds, an alarm at an instant of it, its pairing with real time.

Everything is paced and measured on CLOCK_MONOTONIC. The kernel stamps received packets with CLOCK_REALTIME;
such a stamp is brought over by an offset read in a sandwich (monotonic, real, monotonic; the narrowest of
several wins, as LoadGen does it) and read again at intervals. Both clocks are slewed alike, so that the
offset moves only when somebody sets the wall clock. What to wait for, and when, is decided elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable

SANDWICH_TRIES = 9
STEP_NS = 200_000  # a change of the offset beyond this is a step of the wall clock, not noise
SPIN_NS = 100_000  # ring this much early and spin: a sleeping core takes some 70 us to wake

ReadClock = Callable[[], int]


def now_ns() -> int:
    """CLOCK_MONOTONIC now; the same clock in every process of this machine."""
    return time.monotonic_ns()


def real_ns() -> int:
    """The wall clock now."""
    return time.time_ns()


class RealtimeOffset:
    """What to add to a CLOCK_REALTIME stamp to get the CLOCK_MONOTONIC instant, and how far it moved.

    stepped_ns: what the steps sum to, whichever way each went.
    """

    def __init__(self, monotonic: ReadClock = now_ns, real: ReadClock = real_ns) -> None:
        self._monotonic = monotonic
        self._real = real
        self.ns, self.width_ns = self._sandwich()
        self.max_drift_ns = 0
        self.num_steps = 0
        self.stepped_ns = 0

    def remeasure(self) -> None:
        """Read the offset again; what is converted later uses it, what was converted before stays."""
        offset_ns, self.width_ns = self._sandwich()
        drift_ns = abs(offset_ns - self.ns)
        self.max_drift_ns = max(self.max_drift_ns, drift_ns)
        if drift_ns > STEP_NS + self.width_ns:
            self.num_steps += 1
            self.stepped_ns += drift_ns
        self.ns = offset_ns

    def _sandwich(self) -> tuple[int, int]:
        best_ns, best_width_ns = 0, sys.maxsize
        for _ in range(SANDWICH_TRIES):
            before = self._monotonic()
            real = self._real()
            after = self._monotonic()
            if after - before < best_width_ns:
                best_ns, best_width_ns = (before + after) // 2 - real, after - before
        return best_ns, best_width_ns


class _TimeSpec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("it_interval", _TimeSpec), ("it_value", _TimeSpec))


CLOCK_MONOTONIC = 1
TFD_TIMER_ABSTIME = 1


class TimerAlarm:
    """A Linux timerfd: readable from an instant on, so that one wait covers sockets and the clock.

    Through libc, for Python has no os.timerfd before 3.13.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _TimerSpec()
        self._spec_ref = ctypes.byref(self._spec)

    def set(self, at_ns: int) -> None:
        """Ring at `at_ns`; at once where that has passed. Replaces what was set before."""
        value = self._spec.it_value
        value.tv_sec, value.tv_nsec = divmod(max(at_ns, 1), 1_000_000_000)
        self._libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, self._spec_ref, None)

    def clear(self) -> None:
        """Take note that it rang."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self.fd)


def open_alarm() -> TimerAlarm | None:
    """An alarm where the system has one; None means: wait with a timeout and spin the rest."""
    try:
        return TimerAlarm()
    except (AttributeError, OSError, TypeError):
        return None
