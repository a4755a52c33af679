from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reference_engine import tokenizer
from reference_engine.tokenizer import WORDS, decode, encode, encode_chat, text_of


def test_words_are_distinct_and_printable() -> None:
    assert len(WORDS) == len(set(WORDS)) == 2048
    assert all(word.isalpha() and word.isascii() for word in WORDS)


@given(st.lists(st.sampled_from(WORDS), max_size=50))
def test_n_words_are_n_tokens(words: list[str]) -> None:
    ids = encode(" ".join(words))
    assert len(ids) == len(words)
    assert decode(ids) == "".join(f" {word}" for word in words)


@given(st.lists(st.sampled_from(WORDS), min_size=1), st.lists(st.sampled_from(WORDS), min_size=1))
def test_segments_add_up_when_joined_by_a_space(left: list[str], right: list[str]) -> None:
    a, b = " ".join(left), " ".join(right)
    assert encode(f"{a} {b}") == encode(a) + encode(b)


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_any_text_comes_back_apart_from_one_leading_space(text: str) -> None:
    assert decode(encode(text)).removeprefix(" ") == text.removeprefix(" ")


def test_every_output_id_but_eos_is_a_distinct_word() -> None:
    texts = [text_of(i) for i in range(tokenizer.NUM_OUTPUT_IDS) if i != tokenizer.EOS_ID]
    assert len(set(texts)) == 512
    assert all(text.startswith(" ") and text[1:] in WORDS for text in texts)
    assert text_of(tokenizer.EOS_ID) == ""


def test_an_answer_reads_as_words_again() -> None:
    ids = [5, 6, 7]
    assert encode("".join(map(text_of, ids))) == ids


def test_chat_adds_a_constant_number_of_tokens() -> None:
    lengths = {n: len(encode_chat([("user", " ".join(WORDS[:n]))])) for n in (1, 10, 1000)}
    assert {length - n for n, length in lengths.items()} == {lengths[1] - 1}
