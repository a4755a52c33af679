"""Which events are tokens: stated, verified by the usage, or unknown; never guessed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.endpoints.base import ChunkFacts, TokenEvents, Usage
from loadgen.token_events import TokenCount, count_tokens

ROLE = ChunkFacts()
EMPTY = ChunkFacts(is_content_event=True)
EMPTY_FINISH = ChunkFacts(is_content_event=True, finish_reason="length")
FINISH = ChunkFacts(finish_reason="length")
STOP = ChunkFacts(finish_reason="stop")
DONE = ChunkFacts(is_done=True)


def text(completion_tokens: int | None = None, num_tokens: int | None = None) -> ChunkFacts:
    return ChunkFacts(
        num_tokens=num_tokens,
        is_token=True,
        is_content_event=True,
        usage=None if completion_tokens is None else Usage(3, completion_tokens),
    )


def usage(completion_tokens: int | None) -> ChunkFacts:
    return ChunkFacts(usage=Usage(3, completion_tokens))


def count(*facts: ChunkFacts, known: TokenEvents | None = None) -> TokenCount:
    return count_tokens(facts, known)


def test_as_many_texts_as_tokens_are_one_each() -> None:
    found = count(ROLE, text(), text(), FINISH, usage(2), DONE)
    assert (found.events, found.tokens, found.total, found.source) == ([1, 2], [1, 1], 2, "usage")
    assert found.rule is TokenEvents.TEXT


def test_empty_texts_count_where_the_usage_says_so() -> None:
    found = count(ROLE, text(), EMPTY, text(), FINISH, usage(3))
    assert (found.events, found.tokens, found.rule) == ([1, 2, 3], [1, 1, 1], TokenEvents.CONTENT)


def test_an_empty_finish_counts_where_the_usage_says_so() -> None:
    found = count(ROLE, EMPTY, text(), EMPTY_FINISH, usage(3))
    assert (found.events, found.tokens, found.rule) == ([1, 2, 3], [1, 1, 1], TokenEvents.FINISH)
    assert count(text(), text(), EMPTY_FINISH, usage(2)).events == [0, 1]


def test_several_tokens_an_event_stay_unknown() -> None:
    found = count(text(), text(), FINISH, usage(8))
    assert (found.events, found.tokens, found.total, found.source) == ([0, 1], [None, None], 8, "usage")


def test_a_single_event_holds_the_whole_usage() -> None:
    assert count(ROLE, text(), FINISH, usage(8)).tokens == [8]


def test_without_usage_nothing_is_invented() -> None:
    found = count(ROLE, text(), EMPTY, FINISH, DONE)
    assert (found.events, found.tokens, found.total, found.source) == ([1], [None], None, "unknown")
    assert count(text(), usage(None)).total is None
    assert count(text(), usage(1), usage(None)).total == 1


def test_what_preflight_knows_counts_where_no_usage_came() -> None:
    found = count(ROLE, text(), EMPTY, text(), known=TokenEvents.CONTENT)
    assert (found.events, found.tokens, found.total, found.source) == ([1, 2, 3], [1, 1, 1], 3, "count")


def test_a_usage_that_contradicts_what_is_known_wins() -> None:
    found = count(text(), EMPTY, FINISH, usage(7), known=TokenEvents.CONTENT)
    assert (found.events, found.tokens, found.total) == ([0, 1], [None, None], 7)


def test_an_end_of_text_token_without_an_event_of_its_own() -> None:
    found = count(text(), text(), STOP, usage(3), known=TokenEvents.TEXT)
    assert (found.events, found.tokens, found.total) == ([0, 1], [1, 1], 3)
    assert count(text(), text(), FINISH, usage(3), known=TokenEvents.TEXT).tokens == [None, None]
    assert count(text(), text(), STOP, usage(3)).tokens == [None, None]


def test_a_rising_usage_states_the_tokens_of_each_event() -> None:
    found = count(ROLE, text(1), text(5), EMPTY_FINISH, usage(5))
    assert (found.events, found.tokens, found.total, found.source) == ([1, 2], [1, 4], 5, "usage")


def test_an_event_without_text_that_raises_the_usage_bears_tokens() -> None:
    raised = ChunkFacts(is_content_event=True, usage=Usage(3, 3))
    assert count(text(1), raised, text(4), usage(4)).events == [0, 1, 2]
    assert count(text(1), raised, text(4), usage(4)).tokens == [1, 2, 1]


def test_usage_in_the_finish_event_alone_is_not_rising() -> None:
    finish = ChunkFacts(finish_reason="length", usage=Usage(3, 3))
    assert count(text(), text(), text(), finish).tokens == [1, 1, 1]
    last = ChunkFacts(is_token=True, is_content_event=True, finish_reason="length", usage=Usage(3, 5))
    assert count(text(), text(), last).tokens == [None, None, None]


def test_a_usage_that_falls_is_not_followed() -> None:
    assert count(text(3), text(2), usage(9)).tokens == [None, None]


def test_token_ids_state_the_tokens_of_each_event() -> None:
    found = count(text(num_tokens=2), text(num_tokens=3), FINISH)
    assert (found.tokens, found.total, found.source) == ([2, 3], 5, "count")
    assert count(text(num_tokens=2), text(), text(num_tokens=3), usage(9)).tokens == [2, 4, 3]
    assert count(text(num_tokens=2), text()).total is None


FACTS = st.builds(
    ChunkFacts,
    num_tokens=st.none() | st.integers(1, 5),
    is_token=st.booleans(),
    is_content_event=st.booleans(),
    finish_reason=st.sampled_from([None, "stop", "length"]),
    usage=st.none() | st.builds(Usage, st.none(), st.none() | st.integers(0, 9)),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(FACTS, max_size=8), st.none() | st.sampled_from(TokenEvents))
def test_counts_are_consistent_whatever_comes(facts: list[ChunkFacts], known: TokenEvents | None) -> None:
    found = count_tokens(facts, known)
    assert len(found.events) == len(found.tokens)
    assert found.events == sorted(set(found.events))
    assert all(tokens is None or tokens >= 0 for tokens in found.tokens)
    assert (found.total is None) == (found.source == "unknown")
    stated = sum(tokens for tokens in found.tokens if tokens is not None)
    assert found.total is None or stated <= found.total
