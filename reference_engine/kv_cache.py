"""Paged KV memory as book-keeping: which block belongs to whom. The bytes live in the executor.

A pool of equal blocks and, for each resident sequence, a row of block ids that attention reads through.
Blocks are taken when a sequence grows over a block's edge and returned all together. With sharing on, a full
block is known by its content (its tokens, and all tokens before it) and lent to whoever starts with the same
tokens; nobody writes to a full block, so nothing is ever copied. Unused blocks keep their content until they
are needed, the longest unused first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

ContentKey = tuple[int, tuple[int, ...]]  # what came before, as a content id; the block's own tokens
NOTHING_BEFORE = 0


class BlockPool:
    """Blocks 0 .. num_blocks-1, each free, cached (unused, content kept) or held by one or more rows."""

    __slots__ = ("_cached", "_free", "_key_of", "_known", "_next_content_id", "_num_holders", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_holders = [0] * num_blocks
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._known: dict[ContentKey, tuple[int, int]] = {}
        self._key_of: dict[int, ContentKey] = {}
        self._next_content_id = NOTHING_BEFORE + 1

    @property
    def num_free(self) -> int:
        """Blocks that can be taken, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def num_holders_of(self, block_id: int) -> int:
        return self._num_holders[block_id]

    def take(self) -> int:
        """Take a block for new content; forgets the longest unused content where no block is blank."""
        if self._free:
            block_id = self._free.pop()
        else:
            block_id, _ = self._cached.popitem(last=False)
            del self._known[self._key_of.pop(block_id)]
        self._num_holders[block_id] = 1
        return block_id

    def give(self, block_id: int) -> None:
        """Give up one hold on a block."""
        self._num_holders[block_id] -= 1
        if self._num_holders[block_id]:
            return
        if block_id in self._key_of:
            self._cached[block_id] = None
        else:
            self._free.append(block_id)

    def take_many(self, num_blocks: int) -> list[int]:
        """Take blocks as `take` would one after the other; there must be as many."""
        if num_blocks == 1 or num_blocks > len(self._free):
            return [self.take() for _ in range(num_blocks)]
        blocks = self._free[: -num_blocks - 1 : -1]
        del self._free[-num_blocks:]
        for block_id in blocks:
            self._num_holders[block_id] = 1
        return blocks

    def give_many(self, blocks: list[int]) -> None:
        """Give up one hold on each."""
        num_holders, key_of, free = self._num_holders, self._key_of, self._free
        if not key_of:  # nothing is shared
            free += blocks
            for block_id in blocks:
                num_holders[block_id] = 0
            return
        for block_id in blocks:
            if num_holders[block_id] > 1 or block_id in key_of:
                self.give(block_id)
            else:
                num_holders[block_id] = 0
                free.append(block_id)

    def find(self, key: ContentKey) -> tuple[int, int] | None:
        """Return the block with this content and its content id."""
        return self._known.get(key)

    def share(self, block_id: int) -> None:
        """Take a further hold on a block that has content."""
        if not self._num_holders[block_id]:
            del self._cached[block_id]
        self._num_holders[block_id] += 1

    def learn(self, key: ContentKey, block_id: int) -> int:
        """Make a full block findable; return its content id (of the twin that was there first, if any)."""
        if (known := self._known.get(key)) is not None:
            return known[1]
        content_id = self._next_content_id
        self._next_content_id += 1
        self._known[key] = block_id, content_id
        self._key_of[block_id] = key
        return content_id


class BlockTables:
    """One row of block ids per resident sequence, over one pool.

    tables: int64 [rows, max_blocks]; the first `num_blocks_of(slot)` entries of a row are valid.
    """

    __slots__ = ("_chains", "_free_slots", "_lengths", "block_tokens", "is_sharing", "pool", "tables")

    def __init__(
        self, pool: BlockPool, block_tokens: int, num_rows: int, max_tokens: int, *, is_sharing: bool = False
    ) -> None:
        self.pool = pool
        self.block_tokens = block_tokens
        self.is_sharing = is_sharing
        self.tables: NDArray[np.int64] = np.zeros((num_rows, -(-max_tokens // block_tokens)), np.int64)
        self._lengths = [0] * num_rows
        self._free_slots = list(range(num_rows - 1, -1, -1))
        # For each row, how many of its blocks are known by content, and the content id of the last one.
        self._chains = [(0, NOTHING_BEFORE)] * num_rows

    def open(self) -> int:
        """Take an empty row and return its number."""
        return self._free_slots.pop()

    def num_blocks_of(self, slot: int) -> int:
        return self._lengths[slot]

    def row(self, slot: int) -> list[int]:
        """Return the blocks of a row, in order."""
        blocks: list[int] = self.tables[slot, : self._lengths[slot]].tolist()
        return blocks

    def blocks_missing(self, slot: int, num_tokens: int) -> int:
        """Blocks to take so that the row covers `num_tokens`; 0 or less where it does."""
        return -(-num_tokens // self.block_tokens) - self._lengths[slot]

    def grow(self, slot: int, num_tokens: int) -> bool:
        """Make the row cover `num_tokens`; take all the blocks needed, or none and return False."""
        length = self._lengths[slot]
        if num_tokens <= length * self.block_tokens:
            return True
        needed = -(-num_tokens // self.block_tokens)
        if needed - length > self.pool.num_free:
            return False
        self.tables[slot, length:needed] = self.pool.take_many(needed - length)
        self._lengths[slot] = needed
        return True

    def extend(self, slot: int, num_tokens: int) -> bool:
        """Take one block where the row holds `num_tokens` and no room for another; there must be one."""
        length = self._lengths[slot]
        if num_tokens < length * self.block_tokens:
            return False
        self.tables[slot, length] = self.pool.take()
        self._lengths[slot] = length + 1
        return True

    def close(self, slot: int) -> None:
        """Return the row and its blocks."""
        # Last block first: the ends of sequences are then forgotten before their beginnings.
        self.pool.give_many(self.row(slot)[::-1])
        self._lengths[slot] = 0
        self._chains[slot] = (0, NOTHING_BEFORE)
        self._free_slots.append(slot)

    def adopt(self, slot: int, tokens: Seq[int]) -> int:
        """Begin an empty row with known blocks that hold the first tokens; return how many tokens they hold.

        At least one token is left to compute, since the next one follows from its logits.
        """
        if not self.is_sharing:
            return 0
        blocks, content_id = self._known_blocks(tokens)
        for block_id in blocks:
            self.pool.share(block_id)
        self.tables[slot, : len(blocks)] = blocks
        self._lengths[slot] = len(blocks)
        self._chains[slot] = (len(blocks), content_id)
        return len(blocks) * self.block_tokens

    def count_known(self, tokens: Seq[int]) -> int:
        """Return how many of the first tokens known blocks hold now."""
        return len(self._known_blocks(tokens)[0]) * self.block_tokens

    def _known_blocks(self, tokens: Seq[int]) -> tuple[list[int], int]:
        """Return the known blocks that hold the first tokens, and the content id of the last."""
        blocks: list[int] = []
        content_id, size = NOTHING_BEFORE, self.block_tokens
        for end in range(size, len(tokens), size) if self.is_sharing else ():
            known = self.pool.find((content_id, tuple(tokens[end - size : end])))
            if known is None:
                break
            block_id, content_id = known
            blocks.append(block_id)
        return blocks, content_id

    def learn(self, slot: int, tokens: Seq[int], num_computed: int) -> None:
        """Make the row's blocks that are full by now findable for others."""
        if not self.is_sharing:
            return
        num_known, content_id = self._chains[slot]
        size = self.block_tokens
        for i in range(num_known, num_computed // size):
            key = content_id, tuple(tokens[i * size : (i + 1) * size])
            content_id = self.pool.learn(key, int(self.tables[slot, i]))
        self._chains[slot] = (max(num_known, num_computed // size), content_id)

    def held(self) -> list[int]:
        """Return every block id in a row, shared ones as often as they are held, for checking."""
        return [b for slot in range(len(self._lengths)) for b in self.row(slot)]
