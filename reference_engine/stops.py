"""Ends an answer where its text contains a stop string.

Text that may be the beginning of a stop string is held back until it is known not to be, so that a client
never sees a part of one.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq


class StopScanner:
    """Takes an answer's text piece by piece and lets through what stands before the first stop string."""

    __slots__ = ("_held", "_stops", "has_stopped")

    def __init__(self, stops: Seq[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_stopped = False

    def feed(self, piece: str) -> str:
        """Return the text that is safe to show now."""
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.has_stopped = True
            self._held = ""
            return text[: min(found)]
        num_held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def flush(self) -> str:
        """Return what was held back, at the end of an answer without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` with which `stop` begins."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
