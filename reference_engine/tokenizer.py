"""Text to token ids and back, as the server needs it; and the tokenizer of models that have none.

That one has a token per word of a fixed list, and bytes for everything else. Every id that the model can emit
is a distinct printable word (or EOS), so one output token is one non-empty chunk of text, and N words of the
list joined by single spaces are exactly N tokens. Text outside the list costs one token per UTF-8 byte.
Prompts use all words, answers the first 512: over more, the head would cost a small model more than a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Protocol

WORDS: tuple[str, ...] = tuple(
    files("reference_engine").joinpath("words_2048.txt").read_text(encoding="ascii").split()
)

EOS_ID = 0
FIRST_WORD_ID = 1
BOS_ID = FIRST_WORD_ID + len(WORDS)
TURN_START_ID = BOS_ID + 1
TURN_END_ID = BOS_ID + 2
FIRST_BYTE_ID = BOS_ID + 3
NUM_IDS = FIRST_BYTE_ID + 256
NUM_OUTPUT_IDS = 1 + 512  # EOS and the first words

_ID_OF_WORD = {word: i for i, word in enumerate(WORDS, FIRST_WORD_ID)}
_OUTPUT_TEXTS = ("", *(f" {word}" for word in WORDS[: NUM_OUTPUT_IDS - 1]))


class PromptError(ValueError):
    """A prompt that cannot be turned into tokens, and why."""


class Tokenizer(Protocol):
    def encode(self, text: str, *, is_whole: bool = True) -> list[int]:
        """Encode a text; a whole prompt with the tokens that the model expects around it, such as BOS."""
        ...

    def encode_chat(self, turns: Iterable[tuple[str, str]]) -> list[int]:
        """Encode (role, content) turns and open the assistant's turn; raises PromptError."""
        ...

    def detokenizer(self) -> Callable[[int], str]:
        """Return what takes an answer's tokens one by one and returns the text that each adds."""
        ...


class WordTokenizer:
    """One token per word; `is_bos_enabled` puts BOS before a prompt."""

    def __init__(self, *, is_bos_enabled: bool) -> None:
        self._before = [BOS_ID] if is_bos_enabled else []

    def encode(self, text: str, *, is_whole: bool = True) -> list[int]:
        """Encode; a word owns the space before it, so pieces of text add up exactly."""
        ids = list(self._before) if is_whole else []
        for i, piece in enumerate(text.split(" ")):
            word_id = _ID_OF_WORD.get(piece)
            if word_id is not None:
                ids.append(word_id)
            elif piece or i:  # an empty first piece is the space that the first word owns
                ids.extend(FIRST_BYTE_ID + byte for byte in (f" {piece}" if i else piece).encode())
        return ids

    def encode_chat(self, turns: Iterable[tuple[str, str]]) -> list[int]:
        """Encode turns; adds a constant number of ids per turn."""
        ids = list(self._before)
        for role, content in turns:
            ids.append(TURN_START_ID)
            ids += self.encode(role, is_whole=False) + self.encode(content, is_whole=False)
            ids.append(TURN_END_ID)
        return [*ids, TURN_START_ID, *self.encode("assistant", is_whole=False)]

    def detokenizer(self) -> Callable[[int], str]:
        return _OUTPUT_TEXTS.__getitem__
