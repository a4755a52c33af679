"""When the golden server writes: the due instant of each event of an answer, and which events share a write.

Events are due by TTFT and gap, with or without jitter; a server or a gateway that bundles writes several of
them at once, later than they were due. What is *written* is what any client can know of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

NUM_FACTORS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenConfig:
    """When the events of an answer are due, counted from the arrival of its request.

    in_steps: due instants wait for the next multiple of the gap, so that the tokens of all streams leave one
    behind the other as from an engine that works in steps; else each stream keeps a phase of its own.
    jitter: sigma of the lognormal factors, of median 1, on every TTFT and gap. events_per_write: so many
    events leave when the last of them is due. buffer_ns: an event and what comes so soon after it leave
    together, that much later. tail_ns: from the last token to usage and [DONE]; None for the same write.
    """

    ttft_ns: int = 20_000_000
    gap_ns: int = 10_000_000
    tokens_per_event: int = 1
    in_steps: bool = False
    jitter: float = 0.0
    seed: int = 0
    events_per_write: int = 1
    buffer_ns: int = 0
    tail_ns: int | None = 1_000_000


class Write(NamedTuple):
    """One write to come: when, how many events it holds, and when the event after them is due."""

    due_ns: int
    num_events: int
    following_ns: int


class Pace:
    """Draws the due instants; one for all the streams of a server."""

    def __init__(self, config: GoldenConfig) -> None:
        self.config = config
        normal = np.random.default_rng(config.seed).standard_normal(NUM_FACTORS if config.jitter else 1)
        self._factors: Iterator[float] = itertools.cycle(np.exp(config.jitter * normal).tolist())

    def first_due_ns(self, arrived_ns: int) -> int:
        """Return when the first event of an answer is due."""
        due_ns = arrived_ns + round(self.config.ttft_ns * next(self._factors))
        return due_ns + (-due_ns % self.config.gap_ns if self.config.in_steps else 0)

    def next_write(self, due_ns: int, num_left: int) -> Write:
        """Return the write that begins with the event due at `due_ns`, `num_left` being still to come."""
        most = min(num_left, self.config.events_per_write)
        flushed_ns = 0
        if self.config.buffer_ns:
            most, flushed_ns = num_left, due_ns + self.config.buffer_ns
        num_events, last_ns, following_ns = 1, due_ns, due_ns + self._gap_ns()
        while num_events < most and (not flushed_ns or following_ns <= flushed_ns):
            num_events, last_ns, following_ns = num_events + 1, following_ns, following_ns + self._gap_ns()
        return Write(flushed_ns or last_ns, num_events, following_ns)

    def _gap_ns(self) -> int:
        return round(self.config.gap_ns * next(self._factors))
