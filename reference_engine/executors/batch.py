"""One step as flat arrays, before a device is chosen: what the executor makes and a forward pass takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All int64: of tokens, then of sequences, those with a single token first and in order of length.

    store_at: where each token's keys and values go. tables: the blocks of each sequence, a row as wide as the
    longest needs. starts, counts: tokens computed before, and in this step. emit_rows: tokens whose next one
    is wanted.
    """

    token_ids: Ints
    positions: Ints
    store_at: Ints
    tables: Ints
    starts: Ints
    counts: Ints
    emit_rows: Ints

    @property
    def is_decode(self) -> bool:
        """Whether each sequence computes one token and emits the next."""
        return len(self.token_ids) == len(self.starts) == len(self.emit_rows)

    def padded(self, size: int, scratch: int) -> Batch:
        """Return a decode batch of `size` rows: further ones have no context and are stored at `scratch`."""
        more = size - len(self.starts)
        return Batch(
            token_ids=_extended(self.token_ids, more, 0),
            positions=_extended(self.positions, more, 0),
            store_at=_extended(self.store_at, more, scratch),
            tables=np.pad(self.tables, ((0, more), (0, 0))),
            starts=_extended(self.starts, more, -1),  # and with its one token, none at all
            counts=_extended(self.counts, more, 1),
            emit_rows=np.arange(size),
        )


def blank_batch(num_sequences: int, count: int, at: int) -> Batch:
    """Return a step that warms kernels up: sequences of `count` tokens each, all of them stored at `at`."""
    num_tokens = num_sequences * count
    counts = np.full(num_sequences, count)
    return Batch(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=np.tile(np.arange(count), num_sequences),
        store_at=np.full(num_tokens, at),
        tables=np.zeros((num_sequences, count), np.int64),
        starts=np.zeros(num_sequences, np.int64),
        counts=counts,
        emit_rows=counts.cumsum() - 1,
    )


def _extended(array: Ints, num_more: int, value: int) -> Ints:
    return np.concatenate((array, np.full(num_more, value)))
