"""Prompts: exact length, purity, no shared block unless asked, shared blocks where asked."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workloads import PromptMaker
from workloads.prompts import universal_words


@given(
    seed=st.integers(0, 2**40),
    nonce=st.integers(0, 2**63),
    index=st.integers(0, 10**9),
    n=st.integers(0, 300),
)
def test_exactly_n_words_of_the_list(seed: int, nonce: int, index: int, n: int) -> None:
    text = PromptMaker(seed, nonce).text(index, n)
    words = text.split(" ") if text else []
    assert len(words) == n
    assert set(words) <= set(universal_words())
    assert text == PromptMaker(seed, nonce).text(index, n)


def test_no_two_prompts_share_a_block() -> None:
    prompts = [PromptMaker(1, nonce).text(i, 64).split() for nonce in (1, 2) for i in range(500)]
    blocks = {tuple(words[start : start + 16]) for words in prompts for start in range(0, 64, 16)}
    assert len(blocks) == 1000 * 4


def test_blocks_are_shared_by_their_ids() -> None:
    maker = PromptMaker(1, 1)
    one = maker.text(0, 100, np.array([7, 8]), 32).split()
    two = maker.text(1, 90, np.array([7, 9]), 32).split()
    assert (len(one), len(two)) == (100, 90)
    assert one[:32] == two[:32]
    assert one[32:64] != two[32:64]
    assert one[64:90] != two[64:90]
    assert len(maker.text(2, 40, np.array([7, 8]), 32).split()) == 40


def test_the_words_are_distinct_plain_words() -> None:
    words = universal_words()
    assert len(set(words)) == 2048
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)


def test_token_ids_are_ordinary_ones_and_share_what_the_blocks_share() -> None:
    maker = PromptMaker(1, 1)
    ids = [maker.token_ids(i, 50) for i in range(20)]
    assert all(len(each) == 50 and min(each) >= 1000 and max(each) < 2024 for each in ids)
    assert len({tuple(each[:16]) for each in ids}) == 20
    one, two = (maker.token_ids(i, 50, np.array([7]), 32) for i in (1, 2))
    assert one[:32] == two[:32]
    assert one[32:] != two[32:]
