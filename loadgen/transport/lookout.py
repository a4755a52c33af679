"""What a loop knows of the time before it reads: by when nothing had come.

What a poll does not report was not there when it looked, so that all that a later read brings came after. A
poll that had found nothing and then slept was woken by the first of what it brings: that came no earlier than
the wake-up, less what this process is known to have waited for a processor meanwhile (Linux accounts for it),
less what a wake-up takes beside that, which every read with a kernel stamp measures.
"""

from __future__ import annotations

import os

from loadgen.clock import now_ns

SCHEDSTAT = "/proc/self/schedstat"  # of the main thread: ns on a processor, ns in wait for one, times run
FIRST_SLACK_NS = 200_000
UNKNOWN_SLACK_NS = 1 << 62
LEAST_SLACK_NS = 50_000
SHARE_WITHIN_SLACK = 0.999
NOTES_BETWEEN = 64


class Lookout:
    """Keeps the two bounds of a poll: `since_ns` for what it reports, `looked_ns` for what it does not."""

    def __init__(self) -> None:
        self._fd = _open_schedstat()
        self._waited_ns = self._read_waited_ns()
        self._woke_ns = 0  # less the wait for a processor; 0 where no sleep has just ended
        self._counts = [0] * 64  # of wake-ups, by the bit length of what they took beside the wait
        self._num_notes = 0
        # where no waits are told, the slack has to hold them, and is learned before it is trusted
        self.slack_ns = FIRST_SLACK_NS if self._fd is not None else UNKNOWN_SLACK_NS
        self.since_ns = self.looked_ns = now_ns()

    def __repr__(self) -> str:
        return f"<Lookout slack={self.slack_ns} ns, {self._num_notes} wake-ups>"

    def looked(self, asked_ns: int, *, is_whole: bool = True) -> None:
        """A poll begun at `asked_ns` that did not sleep is over; is_whole: it reported all that was there."""
        self.since_ns = self.looked_ns
        if is_whole:
            self.looked_ns = asked_ns
        self._woke_ns = 0

    def woke(self, asked_ns: int) -> None:
        """A poll has slept and is over; nothing was there at `asked_ns`."""
        self._woke_ns = now_ns()
        waited_ns = self._read_waited_ns()
        self._woke_ns -= waited_ns - self._waited_ns
        self._waited_ns = waited_ns
        self.since_ns = self.looked_ns = max(asked_ns, self._woke_ns - self.slack_ns)

    def learn(self, stamp_ns: int) -> None:
        """Take from the kernel's stamp of the first read after a sleep what the wake-up took."""
        if not self._woke_ns:
            return
        self._counts[max(self._woke_ns - stamp_ns, 0).bit_length()] += 1
        self._woke_ns = 0
        self._num_notes += 1
        if self._num_notes % NOTES_BETWEEN == 0:
            num_left = self._num_notes * (1 - SHARE_WITHIN_SLACK)
            bits = len(self._counts)
            while bits and num_left >= 0:
                bits -= 1
                num_left -= self._counts[bits]
            self.slack_ns = max(1 << bits, LEAST_SLACK_NS)

    def _read_waited_ns(self) -> int:
        return 0 if self._fd is None else int(os.pread(self._fd, 64, 0).split()[1])

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _open_schedstat() -> int | None:
    """The file in which Linux accounts for this process's waits; None where there is none."""
    try:
        fd = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    if len(os.pread(fd, 64, 0).split()) == 3:
        return fd
    os.close(fd)
    return None
