"""Prompt text of an exact length in tokens, for a model whose tokenizer is unknown.

The words are lower-case English words that are one token each, at the start and after a space, in every
tokenizer they were tried with (13 families), so that N words joined by single spaces are N tokens. What a
chat template or a BOS token adds is the target's affair and is not known here. The words are drawn by hash
(SHAKE-128) of seed, nonce and index: no two prompts share a block by chance, and no prefix cache of an
earlier run helps this one. Every prompt starts with the same word, since SentencePiece tokenizers count
the first word after a template's newline as one or two tokens, depending on the word.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DRAWN = ("words", "token-ids")  # prompts of our own making; anything else is a file of texts
Blocks = NDArray[np.int64]
NO_BLOCKS: Blocks = np.zeros(0, np.int64)
FIRST_ID, NUM_IDS = (
    1_000,
    1_024,
)  # ordinary tokens in any vocabulary: no bytes, nothing special


@cache
def universal_words() -> tuple[str, ...]:
    """Load the 2,048 words that are one token everywhere."""
    text = Path(__file__).with_name("universal_words_2048.txt").read_text("ascii")
    words = tuple(text.split())
    assert len(words) == 2048
    return words


class PromptMaker:
    """Makes the prompts of one run; a pure function of its arguments."""

    __slots__ = ("_nonce", "_seed", "_words")

    def __init__(self, seed: int, nonce: int) -> None:
        self._seed = seed
        self._nonce = nonce
        self._words = universal_words()

    def text(self, index: int, num_words: int, blocks: Blocks = NO_BLOCKS, block_words: int = 0) -> str:
        """Make the prompt of request `index`: exactly `num_words` one-token words.

        It begins with one block of `block_words` for each id, the same wherever an id recurs.
        """
        words = list(map(self._words.__getitem__, self._draw(index, num_words, blocks, block_words).tolist()))
        words[:1] = self._words[: len(words[:1])]
        return " ".join(words)

    def token_ids(
        self, index: int, num_tokens: int, blocks: Blocks = NO_BLOCKS, block_tokens: int = 0
    ) -> list[int]:
        """Make the same prompt of token ids, for an API that takes them as they are."""
        ids: list[int] = (FIRST_ID + self._draw(index, num_tokens, blocks, block_tokens) % NUM_IDS).tolist()
        return ids

    def _draw(self, index: int, num_words: int, blocks: Blocks, block_words: int) -> NDArray[np.uint16]:
        shared = [self._stream(f"block {block}", block_words) for block in blocks.tolist()]
        num_own = max(num_words - len(shared) * block_words, 0)
        return np.concatenate([*shared, self._stream(f"request {index}", num_own)])[:num_words]

    def _stream(self, purpose: str, num_words: int) -> NDArray[np.uint16]:
        key = f"{self._seed} {self._nonce} {purpose}".encode()
        drawn = np.frombuffer(hashlib.shake_128(key).digest(2 * num_words), dtype="<u2")
        return drawn & np.uint16(2047)
