"""Who is evicted when a resident needs a block and none is free."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from reference_engine.sequence import Sequence


def latest_admitted(running: Seq[Sequence]) -> Sequence:
    return running[-1]
