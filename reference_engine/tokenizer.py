"""Text to token ids and back: one token per word of a fixed list, bytes for everything else.

Every id that the model can emit is a distinct printable word (or EOS), so one output token is one non-empty
chunk of text, and N words of the list joined by single spaces are exactly N tokens. Text outside the list
costs one token per UTF-8 byte, losslessly. Prompts use all words, answers the first 512: over more, the head
would cost a small model more than a layer does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

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
    return decode([token_id])


def decode(ids: Sequence[int]) -> str:
    """Return the text of the ids; every word carries its leading space, special ids have no text."""
    out = bytearray()
    for i in ids:
        if FIRST_WORD_ID <= i < BOS_ID:
            out += f" {WORDS[i - FIRST_WORD_ID]}".encode()
        elif i >= FIRST_BYTE_ID:
            out.append(i - FIRST_BYTE_ID)
    return out.decode("utf-8", errors="replace")
