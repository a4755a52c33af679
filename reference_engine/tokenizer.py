"""Text to token ids and back: one token per word of a fixed list, bytes for everything else.

Every id that the model can emit is a distinct printable word, so one output token is one non-empty chunk of
text, and N words of the list joined by single spaces are exactly N tokens. Text outside the list costs one
token per UTF-8 byte, losslessly. There is no vocabulary beyond that: the model's weights are random.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

WORDS: tuple[str, ...] = tuple(
    files("reference_engine").joinpath("words_2048.txt").read_text(encoding="ascii").split()
)

NUM_WORDS = len(WORDS)
EOS_ID = NUM_WORDS
BOS_ID = NUM_WORDS + 1
TURN_START_ID = NUM_WORDS + 2
TURN_END_ID = NUM_WORDS + 3
FIRST_BYTE_ID = NUM_WORDS + 4
NUM_IDS = FIRST_BYTE_ID + 256

_ID_OF_WORD = {word: i for i, word in enumerate(WORDS)}


def encode(text: str) -> list[int]:
    """Encode without BOS. A word owns the space before it, so pieces of text add up exactly."""
    ids: list[int] = []
    for i, piece in enumerate(text.split(" ")):
        word_id = _ID_OF_WORD.get(piece)
        if word_id is not None:
            ids.append(word_id)
        elif piece or i:  # an empty first piece is the space that the first word owns
            ids.extend(FIRST_BYTE_ID + byte for byte in (f" {piece}" if i else piece).encode())
    return ids


def encode_chat(messages: Iterable[tuple[str, str]]) -> list[int]:
    """Encode (role, content) turns and open the assistant's turn; adds a constant number of ids per turn."""
    ids: list[int] = []
    for role, content in messages:
        ids += [TURN_START_ID, *encode(role), *encode(content), TURN_END_ID]
    return [*ids, TURN_START_ID, *encode("assistant")]


def text_of(token_id: int) -> str:
    """Return the text that a streamed token appends; empty for the special ids."""
    if token_id < NUM_WORDS:
        return f" {WORDS[token_id]}"
    return decode([token_id])


def decode(ids: Sequence[int]) -> str:
    """Return the text of the ids; every word carries its leading space, special ids have no text."""
    out = bytearray()
    for i in ids:
        if i < NUM_WORDS:
            out += f" {WORDS[i]}".encode()
        elif i >= FIRST_BYTE_ID:
            out.append(i - FIRST_BYTE_ID)
    return out.decode("utf-8", errors="replace")
