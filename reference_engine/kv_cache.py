"""Paged KV memory as book-keeping: which block belongs to whom. The bytes live in the executor.

A pool of equal blocks and, for each resident sequence, a row of block ids that attention reads through.
Blocks are taken when a sequence grows over a block's edge and returned all together; nothing is copied.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class BlockPool:
    """Blocks 0 .. num_blocks-1, each free or held once."""

    __slots__ = ("_free", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def give(self, block_id: int) -> None:
        self._free.append(block_id)


class BlockTables:
    """One row of block ids per resident sequence, over one pool.

    tables: int64 [rows, max_blocks]; the first `num_blocks_of(slot)` entries of a row are valid.
    """

    __slots__ = ("_free_slots", "_lengths", "block_tokens", "pool", "tables")

    def __init__(self, pool: BlockPool, block_tokens: int, num_rows: int, max_tokens: int) -> None:
        self.pool = pool
        self.block_tokens = block_tokens
        self.tables: NDArray[np.int64] = np.zeros((num_rows, -(-max_tokens // block_tokens)), np.int64)
        self._lengths = [0] * num_rows
        self._free_slots = list(range(num_rows - 1, -1, -1))

    def open(self) -> int:
        """Take an empty row and return its number."""
        return self._free_slots.pop()

    def num_blocks_of(self, slot: int) -> int:
        return self._lengths[slot]

    def blocks_missing(self, slot: int, num_tokens: int) -> int:
        """Blocks to take so that the row covers `num_tokens`; 0 or less where it does."""
        return -(-num_tokens // self.block_tokens) - self._lengths[slot]

    def grow(self, slot: int, num_tokens: int) -> bool:
        """Make the row cover `num_tokens`; take all the blocks needed, or none and return False."""
        missing = self.blocks_missing(slot, num_tokens)
        if missing <= 0:
            return True
        if missing > self.pool.num_free:
            return False
        row, length = self.tables[slot], self._lengths[slot]
        for i in range(length, length + missing):
            row[i] = self.pool.take()
        self._lengths[slot] = length + missing
        return True

    def close(self, slot: int) -> None:
        """Return the row and its blocks."""
        for block_id in self.tables[slot, : self._lengths[slot]].tolist():
            self.pool.give(block_id)
        self._lengths[slot] = 0
        self._free_slots.append(slot)

    def held(self) -> list[int]:
        """Return every block id in a row, for checking."""
        return [b for slot, n in enumerate(self._lengths) for b in self.tables[slot, :n].tolist()]
