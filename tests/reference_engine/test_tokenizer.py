from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reference_engine.tokenizer import BOS_ID, EOS_ID, FIRST_BYTE_ID, NUM_OUTPUT_IDS, WORDS, WordTokenizer

TOKENIZER = WordTokenizer(is_bos_enabled=True)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, is_whole=False)


def test_words_are_distinct_and_printable() -> None:
    assert len(WORDS) == len(set(WORDS)) == 2048
    assert all(word.isalpha() and word.isascii() for word in WORDS)


@given(st.lists(st.sampled_from(WORDS), max_size=50))
def test_n_words_are_n_tokens_after_bos(words: list[str]) -> None:
    assert len(encode(" ".join(words))) == len(words)
    assert TOKENIZER.encode(" ".join(words)) == [BOS_ID, *encode(" ".join(words))]


@given(st.lists(st.sampled_from(WORDS), min_size=1), st.lists(st.sampled_from(WORDS), min_size=1))
def test_segments_add_up_when_joined_by_a_space(left: list[str], right: list[str]) -> None:
    a, b = " ".join(left), " ".join(right)
    assert encode(f"{a} {b}") == encode(a) + encode(b)


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_no_text_is_lost_apart_from_one_leading_space(text: str) -> None:
    parts = [
        bytes([i - FIRST_BYTE_ID]) if i >= FIRST_BYTE_ID else f" {WORDS[i - 1]}".encode()
        for i in encode(text)
    ]
    assert b"".join(parts).decode().removeprefix(" ") == text.removeprefix(" ")


def test_every_output_id_but_eos_is_a_distinct_word() -> None:
    text_of = TOKENIZER.detokenizer()
    texts = [text_of(i) for i in range(NUM_OUTPUT_IDS) if i != EOS_ID]
    assert len(set(texts)) == 512
    assert all(text.startswith(" ") and text[1:] in WORDS for text in texts)
    assert text_of(EOS_ID) == ""
    assert encode("".join(texts)) == list(range(1, NUM_OUTPUT_IDS))


def test_chat_adds_a_constant_number_of_tokens() -> None:
    lengths = {n: len(TOKENIZER.encode_chat([("user", " ".join(WORDS[:n]))])) for n in (1, 10, 1000)}
    assert {length - n for n, length in lengths.items()} == {lengths[1] - 1}
