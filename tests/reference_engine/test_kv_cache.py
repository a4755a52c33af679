from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reference_engine.kv_cache import BlockPool, BlockTables

NUM_BLOCKS, BLOCK_TOKENS, NUM_ROWS, MAX_TOKENS = 12, 4, 5, 40


class BlockTablesMachine(RuleBasedStateMachine):
    """Opens, grows and closes rows at random; blocks are conserved, and no block is ever in two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = BlockTables(BlockPool(NUM_BLOCKS), BLOCK_TOKENS, NUM_ROWS, MAX_TOKENS)
        self.covered: dict[int, int] = {}

    @rule()
    def open(self) -> None:
        if len(self.covered) < NUM_ROWS:
            slot = self.tables.open()
            assert slot not in self.covered
            self.covered[slot] = 0

    @rule(pick=st.integers(0, NUM_ROWS - 1), num_tokens=st.integers(1, MAX_TOKENS))
    def grow(self, pick: int, num_tokens: int) -> None:
        if pick not in self.covered:
            return
        missing = self.tables.blocks_missing(pick, num_tokens)
        free_before = self.tables.pool.num_free
        before = self.row(pick)
        has_grown = self.tables.grow(pick, num_tokens)
        assert has_grown is (missing <= free_before)
        if has_grown:
            self.covered[pick] = max(self.covered[pick], num_tokens)
            assert self.row(pick)[: len(before)] == before
        else:
            assert self.tables.pool.num_free == free_before

    @rule(pick=st.integers(0, NUM_ROWS - 1))
    def close(self, pick: int) -> None:
        if pick in self.covered:
            self.tables.close(pick)
            del self.covered[pick]

    def row(self, slot: int) -> list[int]:
        row: list[int] = self.tables.tables[slot, : self.tables.num_blocks_of(slot)].tolist()
        return row

    @invariant()
    def blocks_are_conserved(self) -> None:
        held = self.tables.held()
        assert len(held) == len(set(held))
        assert self.tables.pool.num_free + len(held) == NUM_BLOCKS
        assert self.tables.pool.num_used == len(held)
        for slot, num_tokens in self.covered.items():
            assert self.tables.num_blocks_of(slot) == -(-num_tokens // BLOCK_TOKENS)


TestBlockTables = BlockTablesMachine.TestCase
TestBlockTables.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
