"""Named random streams: every purpose draws from a stream of its own.

A stream is named by its path (`arrivals`, `clients/batch/lengths/input`). Its generator depends on the seed
and on that name alone, so that a new client or a changed knob leaves every other draw as it was.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of one seed, below `scope`."""

    seed: int
    scope: str = ""

    def child(self, name: str) -> Streams:
        return Streams(self.seed, f"{self.scope}{name}/")

    def generator(self, name: str) -> np.random.Generator:
        """Start the named stream from its beginning: the same name gives the same draws again."""
        digest = hashlib.sha256((self.scope + name).encode()).digest()
        key = tuple(int(word) for word in np.frombuffer(digest[:16], dtype="<u4"))
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=key)))
