"""Who is evicted when a resident needs a block and none is free; who may take a resident's place."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from reference_engine.sequence import Sequence


def latest_admitted(running: Seq[Sequence]) -> Sequence:
    return running[-1]


def latest_arrived(running: Seq[Sequence]) -> Sequence:
    return max(running, key=lambda r: (r.arrived_ns, r.handle))


def least_computed(running: Seq[Sequence]) -> Sequence:
    """The one that loses least."""
    return min(running, key=lambda r: (r.num_computed, -r.arrived_ns, -r.handle))


def fewest_emitted(running: Seq[Sequence]) -> Sequence:
    """SGLang's retract: fewest tokens out, then the longest prompt."""
    return min(running, key=lambda r: (r.num_emitted, -r.num_prompt, -r.handle))


def least_important(running: Seq[Sequence]) -> Sequence:
    """The highest priority number, then the latest arrival (vLLM: a low number is served first)."""
    return max(running, key=lambda r: (r.priority, r.arrived_ns, r.handle))


VICTIMS: dict[str, Callable[[Seq[Sequence]], Sequence]] = {
    "latest-admitted": latest_admitted,
    "latest-arrived": latest_arrived,
    "least-computed": least_computed,
    "fewest-emitted": fewest_emitted,
    "least-important": least_important,
}


def is_more_important(waiting: Sequence, resident: Sequence) -> bool:
    return waiting.priority < resident.priority


def is_nearer_its_end(waiting: Sequence, resident: Sequence) -> bool:
    return waiting.max_tokens - waiting.num_emitted < resident.max_tokens - resident.num_emitted
