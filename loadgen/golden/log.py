"""What the golden server writes down of each answer, and the arrays in which it hands that over."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

EVENT_INSTANTS = ("due_ns", "before_ns", "after_ns")


@dataclass(slots=True, eq=False)
class StreamLog:
    """One answer: when the write of token event i was due; `before_ns[i]` and `after_ns[i]` enclose it."""

    request_id: bytes
    arrived_ns: int
    due_ns: array[int] = field(default_factory=lambda: array("q"))
    before_ns: array[int] = field(default_factory=lambda: array("q"))
    after_ns: array[int] = field(default_factory=lambda: array("q"))


def log_arrays(log: list[StreamLog]) -> dict[str, Any]:
    """Return the log as flat arrays: one value per request, and EVENT_INSTANTS one per event."""
    return {
        "request_id": np.array([entry.request_id for entry in log], dtype=np.bytes_),
        "arrived_ns": np.array([entry.arrived_ns for entry in log], dtype=np.int64),
        "num_events": np.array([len(entry.before_ns) for entry in log], dtype=np.int64),
        **{name: _joined([getattr(entry, name) for entry in log]) for name in EVENT_INSTANTS},
    }


def _joined(arrays: list[array[int]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *(np.frombuffer(a, dtype=np.int64) for a in arrays)])
