"""Who goes first where processes of ours share a processor: whatever sends and stamps, then all else.

A load process works for a few per cent of the time and must be there at once. While it sends it asks for
round robin real time at a low priority, for a better nice value where that is refused, and else for nothing.
It cannot freeze a machine: real time is asked for only where the kernel keeps a part of each processor for
ordinary work, and a process that does not sleep for UNBROKEN_US, or takes more than MAX_SHARE of its
processor (which may be the server's, too), falls back to ordinary scheduling by itself.
Linux only, but for the nice value.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LEAST = 19
RR_PRIORITY = 10  # of 99; what drives the hardware runs at 50
BETTER_NICE = -10
UNBROKEN_US = 500_000
MAX_SHARE = 0.3
LOOK_S = 0.5
REAL_TIME, NORMAL = f"rr {RR_PRIORITY}", "normal"
RLIMIT_RTTIME = 15  # Linux, asm-generic: us without sleep; Python names no constant for it
RT_RUNTIME = Path("/proc/sys/kernel/sched_rt_runtime_us")
SCHEDSTAT = Path("/proc/self/schedstat")
HOW_TO_PERMIT = (
    "to permit it: ulimit -r 10 (rtprio in /etc/security/limits.conf), or the capability CAP_SYS_NICE",
    "Docker: --cap-add SYS_NICE --ulimit rtprio=10; systemd: LimitRTPRIO=10 (or AmbientCapabilities)",
    "CI runners: sudo prlimit --rtprio=10 --pid $$ before bench, or options: --cap-add SYS_NICE",
    "refused all the same: the cgroup has no real-time budget (cpu.rt_runtime_us)",
)
FELL_BACK = f"{NORMAL} after {REAL_TIME}"
NOT_PERMITTED = "not permitted"
NO_THROTTLE = (
    "not asked for: it could freeze a processor (set the sysctl kernel.sched_rt_runtime_us to 950000)"
)


def step_back() -> None:
    """Let every load process go before this thread (Linux, where each thread has a priority of its own)."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, 0, LEAST)


class StepForward:
    """Within the block this process goes before others, as far as the system permits; main thread only.

    words: how it is scheduled: `rr 10`, `nice -10`, `normal`; FELL_BACK where it took too much.
    refusal: why real time was not granted; empty where it was, or was not wanted.
    """

    def __init__(self, *, is_wanted: bool = True) -> None:
        self._is_wanted = is_wanted
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._looked_s = time.monotonic(), time.process_time()
        self.refusal = ""
        self.words = f"nice {self._nice}" if self._nice else NORMAL

    def __enter__(self) -> StepForward:
        if not self._is_wanted:
            return self
        self.refusal = ask_for_real_time(self._fall_back)
        if not self.refusal:
            self.words = REAL_TIME
        elif self._nice > BETTER_NICE:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, BETTER_NICE)
                self.words = f"nice {BETTER_NICE}"
        return self

    def __exit__(self, *_: object) -> None:
        if self.words == REAL_TIME:
            leave_real_time()
        os.setpriority(os.PRIO_PROCESS, 0, self._nice)  # back to what it was is always permitted

    def look(self) -> None:
        """Fall back where more than MAX_SHARE of a processor went since the last look."""
        now_s, ran_s = time.monotonic(), time.process_time()
        before_s, ran_before_s = self._looked_s
        if self.words == REAL_TIME and now_s - before_s >= LOOK_S:
            self._looked_s = now_s, ran_s
            if ran_s - ran_before_s > MAX_SHARE * (now_s - before_s):
                self._fall_back()

    def _fall_back(self, *_: object) -> None:
        leave_real_time()
        self.words = FELL_BACK


def ask_for_real_time(on_unbroken: Callable[..., None]) -> str:
    """Return why it was not granted, nothing where it was.

    on_unbroken: called, as a handler of signals is, after UNBROKEN_US without sleep.
    """
    if sys.platform != "linux":
        return "not on this system"
    if not is_throttled():
        return NO_THROTTLE
    signal.signal(signal.SIGXCPU, on_unbroken)
    _, hard_us = resource.getrlimit(RLIMIT_RTTIME)
    soft_us = UNBROKEN_US if hard_us == resource.RLIM_INFINITY else min(UNBROKEN_US, hard_us // 2)
    try:
        resource.setrlimit(RLIMIT_RTTIME, (soft_us, hard_us))
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(RR_PRIORITY))
    except OSError:
        return NOT_PERMITTED
    return ""


def leave_real_time() -> None:
    """Go back to ordinary scheduling. The flag stays: to take it back needs a right that may be missing."""
    _, hard_us = resource.getrlimit(RLIMIT_RTTIME)
    resource.setrlimit(RLIMIT_RTTIME, (hard_us, hard_us))
    os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def is_throttled() -> bool:
    """Whether the kernel keeps a part of each processor for ordinary work."""
    try:
        return int(RT_RUNTIME.read_text()) >= 0
    except (OSError, ValueError):
        return False


def waited_ns() -> int | None:
    """How long this process has been ready to run and did not: None where the system does not tell."""
    try:
        return int(SCHEDSTAT.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
