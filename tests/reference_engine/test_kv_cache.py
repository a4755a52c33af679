from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reference_engine.kv_cache import BlockPool, BlockTables

NUM_BLOCKS, BLOCK_TOKENS, NUM_ROWS, MAX_TOKENS = 12, 4, 5, 40


class BlockTablesMachine(RuleBasedStateMachine):
    """Opens, fills, shares and closes rows at random, beside a memory that is really written to.

    Blocks are conserved, nobody writes to a block that another row holds, and what a row adopts is what it
    would have written itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tables = BlockTables(BlockPool(NUM_BLOCKS), BLOCK_TOKENS, NUM_ROWS, MAX_TOKENS, is_sharing=True)
        self.memory = [[-1] * BLOCK_TOKENS for _ in range(NUM_BLOCKS)]
        self.rows: dict[int, tuple[list[int], int]] = {}  # slot -> tokens, how many of them are computed

    @rule(
        stem=st.sampled_from((1, 2)),
        num_stem=st.integers(1, 20),
        rest=st.lists(st.integers(1, 2), max_size=9),
    )
    def open(self, stem: int, num_stem: int, rest: list[int]) -> None:
        if len(self.rows) == NUM_ROWS:
            return
        slot, tokens = self.tables.open(), [stem] * num_stem + rest
        assert slot not in self.rows
        expected = self.tables.count_known(tokens)
        num_adopted = self.tables.adopt(slot, tokens)
        assert num_adopted == expected < len(tokens)
        held = [token for block in self.tables.row(slot) for token in self.memory[block]]
        assert held == tokens[:num_adopted]
        self.rows[slot] = tokens, num_adopted

    @rule(slot=st.integers(0, NUM_ROWS - 1), num_tokens=st.integers(1, 12))
    def compute(self, slot: int, num_tokens: int) -> None:
        if slot not in self.rows:
            return
        tokens, num_computed = self.rows[slot]
        end = min(num_computed + num_tokens, len(tokens))
        missing, num_free = self.tables.blocks_missing(slot, end), self.tables.pool.num_free
        before = self.tables.row(slot)
        assert self.tables.grow(slot, end) is (missing <= num_free)
        if missing > num_free:
            assert (self.tables.row(slot), self.tables.pool.num_free) == (before, num_free)
            return
        row = self.tables.row(slot)
        assert row[: len(before)] == before
        for at in range(num_computed, end):
            block = row[at // BLOCK_TOKENS]
            assert self.tables.pool.num_holders_of(block) == 1
            self.memory[block][at % BLOCK_TOKENS] = tokens[at]
        self.tables.learn(slot, tokens, end)
        self.rows[slot] = tokens, end

    @rule(slot=st.integers(0, NUM_ROWS - 1))
    def close(self, slot: int) -> None:
        if slot in self.rows:
            self.tables.close(slot)
            del self.rows[slot]

    @invariant()
    def blocks_are_conserved(self) -> None:
        held, pool = self.tables.held(), self.tables.pool
        assert pool.num_used == len(set(held))
        assert pool.num_free == NUM_BLOCKS - len(set(held)) >= pool.num_cached
        assert all(pool.num_holders_of(block) == held.count(block) for block in range(NUM_BLOCKS))


TestBlockTables = BlockTablesMachine.TestCase
TestBlockTables.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def filled(tables: BlockTables, tokens: list[int]) -> int:
    """Open a row, compute all of `tokens`, and return it."""
    slot = tables.open()
    tables.adopt(slot, tokens)
    assert tables.grow(slot, len(tokens))
    tables.learn(slot, tokens, len(tokens))
    return slot


def sharing_tables() -> BlockTables:
    return BlockTables(BlockPool(NUM_BLOCKS), BLOCK_TOKENS, NUM_ROWS, MAX_TOKENS, is_sharing=True)


def test_equal_beginnings_are_held_once() -> None:
    tables = sharing_tables()
    a = filled(tables, [*range(1, 13), 70])
    b = filled(tables, [*range(1, 13), 80])
    assert tables.row(a)[:3] == tables.row(b)[:3]
    assert tables.pool.num_used == 3 + 2


def test_the_same_block_after_another_beginning_is_not_the_same() -> None:
    tables = sharing_tables()
    filled(tables, [1, 1, 1, 1, 5, 5, 5, 5, 9])
    assert tables.count_known([2, 2, 2, 2, 5, 5, 5, 5, 9]) == 0


def test_unused_content_is_kept_until_its_block_is_needed_oldest_first() -> None:
    tables = sharing_tables()
    for first in (1, 2):
        tables.close(filled(tables, [first] * 8 + [9]))
    assert tables.pool.num_cached == 4
    tables.grow(tables.open(), 4 * (NUM_BLOCKS - 3))  # leaves room for three: the oldest end is forgotten
    assert tables.count_known([1] * 9) == 4
    assert tables.count_known([2] * 9) == 8


def test_without_sharing_nothing_is_known() -> None:
    tables = BlockTables(BlockPool(NUM_BLOCKS), BLOCK_TOKENS, NUM_ROWS, MAX_TOKENS)
    tables.close(filled(tables, [1] * 9))
    assert tables.count_known([1] * 9) == 0
    assert tables.pool.num_cached == 0
