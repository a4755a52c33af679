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

    def text(self, index: int, num_words: int) -> str:
        """Make the prompt of request `index`: exactly `num_words` one-token words."""
        return self._join(self._draw(f"request {index}", num_words))

    def text_with_blocks(
        self, index: int, num_words: int, blocks: NDArray[np.int64], block_tokens: int
    ) -> str:
        """Make a prompt whose leading blocks of `block_tokens` words are the same wherever an id recurs."""
        shared = [self._draw(f"block {block}", block_tokens) for block in blocks.tolist()]
        num_shared = min(num_words, len(shared) * block_tokens)
        own = self._draw(f"request {index}", num_words - num_shared)
        return self._join(np.concatenate([*shared, own])[:num_words] if shared else own)

    def token_ids(self, index: int, num_tokens: int, vocabulary_size: int) -> list[int]:
        """Make a prompt of token ids below vocabulary_size, for an API that takes them as they are."""
        key = f"{self._seed} {self._nonce} ids {index}".encode()
        drawn = np.frombuffer(hashlib.shake_128(key).digest(4 * num_tokens), dtype="<u4")
        ids: list[int] = (drawn % np.uint32(vocabulary_size)).tolist()
        return ids

    def _draw(self, purpose: str, num_words: int) -> NDArray[np.uint16]:
        key = f"{self._seed} {self._nonce} {purpose}".encode()
        drawn = np.frombuffer(hashlib.shake_128(key).digest(2 * num_words), dtype="<u2")
        return drawn & np.uint16(2047)

    def _join(self, ids: NDArray[np.uint16]) -> str:
        words = list(map(self._words.__getitem__, ids.tolist()))
        words[:1] = self._words[: len(words[:1])]
        return " ".join(words)
