from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reference_engine.stops import StopScanner


@given(
    text=st.text(alphabet="ab", max_size=30),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 6), max_size=12),
)
def test_what_is_let_through_is_the_text_before_the_first_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    scanner, shown, at = StopScanner(stops), "", 0
    for cut in [*cuts, len(text)]:
        shown += scanner.feed(text[at : at + cut])
        at += cut
        if scanner.has_stopped:
            break
    found = [text.find(stop) for stop in stops if stop in text]
    assert scanner.has_stopped is bool(found)
    if found:
        # A longer stop string may begin earlier, but is only known once it is complete.
        assert shown == text[: len(shown)]
        assert min(found) <= len(shown) <= max(found)
    else:
        assert shown + scanner.flush() == text


def test_a_possible_beginning_is_held_back_until_it_is_none() -> None:
    scanner = StopScanner(["aabc"])
    assert [scanner.feed(piece) for piece in ("x", "a", "ab", "y")] == ["x", "", "", "aaby"]
    assert scanner.flush() == ""
