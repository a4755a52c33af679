"""The plan: which request is due when, how long its prompt and its answer are.

A plan is a value: columns of equal length, read-only, sorted by arrival. The same workload and the same
seed give the same bytes on every machine, whatever the number of load processes; `digest()` names them.
Nothing here sleeps, sends or reads a clock.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

INT32_MAX = 2**31 - 1
ROW_COLUMNS = (
    "arrival_ns", "prompt_tokens", "output_tokens", "session", "turn", "think_ns", "text_id", "class_id"
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """One row per request, in the order of arrival.

    arrival_ns: int64 offsets from the start of the run, ascending.
    prompt_tokens, output_tokens: int32, at least 1.
    session, turn: int64, -1 where the request belongs to no session.
    think_ns: int64. -1: the request is due at arrival_ns, come what may. 0 or more: it belongs to a session
        that waits; it is due that long after the answer of the turn before it has ended, and arrival_ns is
        only the earliest instant at which that could be.
    text_id: int64 number of the text that is sent, in a file of prompts; -1 where the prompt is drawn.
    class_id: int32 index into `classes` (the workload class or client that sent the request).
    prefix_blocks: int64 ids of the prompt's leading blocks of `block_tokens` tokens, all rows one after the
        other; row i owns prefix_blocks[prefix_offsets[i]:prefix_offsets[i + 1]]. Empty where nothing is
        shared.
    source: what the plan was made from (resolved workload, what a trace reader found), JSON-able; not
        digested.
    """

    arrival_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    session: NDArray[np.int64]
    turn: NDArray[np.int64]
    think_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    text_id: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    class_id: NDArray[np.int32]
    classes: tuple[str, ...] = ("default",)
    prefix_blocks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    prefix_offsets: NDArray[np.int64]
    block_tokens: int = 0
    source: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.arrival_ns)
        for name in ("think_ns", "text_id"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(n, -1, np.int64))
        for name in ROW_COLUMNS:
            assert len(getattr(self, name)) == n, f"{name} has another length than arrival_ns"
        assert len(self.prefix_offsets) == n + 1
        assert n == 0 or bool(np.all(np.diff(self.arrival_ns) >= 0)), "arrivals must ascend"
        assert n == 0 or int(min(self.prompt_tokens.min(), self.output_tokens.min())) >= 1
        for column in self._columns():
            column.setflags(write=False)

    @classmethod
    def of(
        cls,
        arrival_ns: NDArray[np.int64],
        prompt_tokens: NDArray[np.int32],
        output_tokens: NDArray[np.int32],
        source: dict[str, Any] | None = None,
    ) -> Plan:
        """Make a plan of independent requests: no sessions, one class, nothing shared."""
        n = len(arrival_ns)
        return cls(
            arrival_ns=np.asarray(arrival_ns, np.int64),
            prompt_tokens=np.asarray(prompt_tokens, np.int32),
            output_tokens=np.asarray(output_tokens, np.int32),
            session=np.full(n, -1, np.int64),
            turn=np.full(n, -1, np.int64),
            class_id=np.zeros(n, np.int32),
            prefix_offsets=np.zeros(n + 1, np.int64),
            source=source or {},
        )

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def _columns(self) -> list[NDArray[Any]]:
        names = ["arrival_ns", "prompt_tokens", "output_tokens", "session", "turn", "think_ns", "class_id"]
        texts = ["text_id"] if (self.text_id >= 0).any() else []
        return [getattr(self, name) for name in (*texts, *names, "prefix_blocks", "prefix_offsets")]

    def blocks_of(self, row: int) -> NDArray[np.int64]:
        """The ids of the blocks that a prompt begins with."""
        return self.prefix_blocks[self.prefix_offsets[row] : self.prefix_offsets[row + 1]]

    def part(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """The fields of a plan of these rows alone, in their order."""
        blocks, offsets = take_ragged(self.prefix_blocks, self.prefix_offsets, rows)
        return {
            **{name: getattr(self, name)[rows] for name in ROW_COLUMNS},
            "classes": self.classes,
            "prefix_blocks": blocks,
            "prefix_offsets": offsets,
            "block_tokens": self.block_tokens,
        }

    @property
    def span_s(self) -> float:
        """Seconds from the start of the run to the last arrival; 0 for an empty plan."""
        return float(self.arrival_ns[-1]) / 1e9 if len(self) else 0.0

    def digest(self) -> str:
        """Name this plan: sha256 over the bytes of its columns and the class names, 16 hex digits."""
        digest = hashlib.sha256(b"bench-plan-1")
        for column in self._columns():
            digest.update(str(column.dtype.str).encode())
            digest.update(np.ascontiguousarray(column).tobytes())
        digest.update("\x00".join(self.classes).encode())
        digest.update(str(self.block_tokens).encode())
        return digest.hexdigest()[:16]

    def with_source(self, **more: Any) -> Plan:
        """Copy with further facts about where the plan came from; the digest stays."""
        return replace(self, source={**self.source, **more})


def take_ragged(
    values: NDArray[np.int64], offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the values of these rows, one row after the other, and their offsets."""
    widths = np.diff(offsets)[rows]
    return values[write_out(offsets[rows], widths)], np.append(0, np.cumsum(widths))


def write_out(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Write runs out: counts[i] numbers from starts[i] on, one run after the other; in one array's memory."""
    starts, counts = starts[counts > 0], counts[counts > 0]
    numbers = np.ones(int(counts.sum()), np.int64)
    if len(starts):
        lasts = starts + counts - 1
        numbers[np.cumsum(counts) - counts] = starts - np.append(
            0, lasts[:-1]
        )  # the step from one run to the next
        np.cumsum(numbers, out=numbers)
    return numbers
