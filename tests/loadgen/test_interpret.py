"""How a request ended and when its tokens came, one case of the wire at a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.endpoints import ENDPOINTS
from loadgen.endpoints.base import TokenEvents, with_fields
from loadgen.endpoints.openai import Completions
from loadgen.interpret import PlanRow, has_token_since, to_record
from loadgen.records import Outcome, to_row
from loadgen.transport.base import End, Exchange
from tests.loadgen.wire import (
    DONE,
    LAST_CHUNK,
    SENT_NS,
    STEP_NS,
    STREAM_HEAD,
    delta_event,
    event,
    exchange,
    frame,
    record,
    stream,
    text_event,
    usage_event,
)

PING = b": ping - 2026-11-29 13:17:03\n\n"
ROLE = delta_event('{"role":"assistant","content":""}')
WHOLE = [text_event("a"), text_event("b"), text_event("c", "length"), usage_event(5, 3), DONE]


def answer(head: bytes, body: bytes = b"", ended: End = End.COMPLETE) -> Exchange:
    """A response of one read with a body by length."""
    return exchange([b"%b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)], ended)


# --- when ----------------------------------------------------------------------------------------------


def test_a_whole_stream() -> None:
    row = record(stream(WHOLE), output_tokens=3)
    assert (row.outcome, row.http_status, row.error) == (Outcome.OK, 200, None)
    assert (row.prompt_tokens, row.output_tokens) == (5, 3)
    assert (row.prompt_tokens_source, row.output_tokens_source) == ("usage", "usage")
    assert (row.sent_ns, row.written_ns, row.headers_ns) == (SENT_NS, SENT_NS, STEP_NS)
    assert (row.first_event_ns, row.first_token_ns, row.last_token_ns) == (
        2 * STEP_NS,
        2 * STEP_NS,
        4 * STEP_NS,
    )
    assert row.done_ns == 7 * STEP_NS
    assert row.chunk_ns == row.chunk_lower_ns == [2 * STEP_NS, 3 * STEP_NS, 4 * STEP_NS]
    assert row.chunk_tokens == [1, 1, 1]
    assert set(to_row(row)) > {"index", "class", "outcome"}


def test_the_gaps_between_tokens_add_up_to_the_time_from_first_to_last() -> None:
    row = record(stream([ROLE, *WHOLE]), output_tokens=3)
    assert row.first_token_ns is not None
    assert row.last_token_ns is not None
    gaps = [b - a for a, b in zip(row.chunk_ns, row.chunk_ns[1:], strict=False)]
    assert len(gaps) == len(row.chunk_ns) - 1
    assert sum(gaps) == row.last_token_ns - row.first_token_ns


def test_a_role_event_is_an_event_and_no_token() -> None:
    for role in (
        '{"role":"assistant","content":null}',
        '{"role":"assistant"}',
        '{"role":"assistant","content":""}',
    ):
        row = record(
            stream([delta_event(role), delta_event('{"content":"x"}', "stop"), usage_event(5, 1)]), "chat"
        )
        assert row.first_event_ns == 2 * STEP_NS
        assert row.first_token_ns == 3 * STEP_NS


def test_a_reasoning_event_is_a_token() -> None:
    row = record(
        stream([ROLE, delta_event('{"reasoning":"hm"}'), delta_event('{"content":"x"}', "stop")]), "chat"
    )
    assert (row.first_token_ns, row.first_answer_ns) == (3 * STEP_NS, 4 * STEP_NS)


def test_usage_done_and_end_are_no_latency() -> None:
    row = record(stream([text_event("a", "stop"), PING, usage_event(5, 1), DONE]))
    assert row.last_token_ns == 2 * STEP_NS
    assert row.done_ns == 6 * STEP_NS


def test_a_read_of_several_events_stamps_the_last_and_bounds_the_others() -> None:
    events = [frame(text_event(letter)) for letter in "abcd"]
    end = frame(text_event("e", "stop")) + frame(usage_event(5, 5)) + LAST_CHUNK
    row = record(exchange([STREAM_HEAD, events[0], b"".join(events[1:]), end]))
    assert row.chunk_ns == [2 * STEP_NS, 3 * STEP_NS, 3 * STEP_NS, 3 * STEP_NS, 4 * STEP_NS]
    looked = [3 * STEP_NS - STEP_NS // 10] * 2, 4 * STEP_NS - STEP_NS // 10
    assert row.chunk_lower_ns == [2 * STEP_NS, *looked[0], 3 * STEP_NS, looked[1]]


def test_an_event_came_after_the_read_before_and_after_the_last_look() -> None:
    events = [frame(text_event(letter)) for letter in "abc"]
    end = events[2] + frame(text_event("d", "stop")) + LAST_CHUNK
    exchanged = exchange([STREAM_HEAD, b"".join(events[:2]), end])
    exchanged.since_ns = [0, STEP_NS // 2, 3 * STEP_NS - 7]  # the second was read late: that says less
    assert record(exchanged).chunk_lower_ns[0] == STEP_NS
    assert record(exchanged).chunk_lower_ns[2] == 3 * STEP_NS - 7


def test_a_stamp_of_our_own_is_bounded_by_the_last_look() -> None:
    exchanged = exchange(
        [STREAM_HEAD, frame(text_event("a")), frame(text_event("b", "stop"))], End.EOF, "user"
    )
    assert record(exchanged).chunk_lower_ns == [2 * STEP_NS - STEP_NS // 10, 3 * STEP_NS - STEP_NS // 10]


def test_an_event_in_the_first_read_is_bounded_by_the_send() -> None:
    exchanged = exchange([STREAM_HEAD + b"".join(map(frame, WHOLE)) + LAST_CHUNK])
    exchanged.since_ns = [0]
    row = record(exchanged, output_tokens=3)
    assert row.chunk_lower_ns == [SENT_NS] * 3
    assert row.chunk_ns == [STEP_NS] * 3


def test_an_event_with_the_beginning_of_the_next_behind_it_is_bounded() -> None:
    second = frame(text_event("b", "stop"))
    row = record(exchange([STREAM_HEAD, frame(text_event("a")) + second[:20], second[20:] + LAST_CHUNK]))
    assert row.chunk_lower_ns == [2 * STEP_NS - STEP_NS // 10, 3 * STEP_NS]


def test_two_reads_that_share_a_kernel_stamp_are_bounded_but_for_the_last() -> None:
    exchanged = stream([text_event("a"), text_event("b", "stop"), usage_event(5, 2)])
    exchanged.stamps[1] = exchanged.stamps[2]
    row = record(exchanged)
    assert row.chunk_ns == [3 * STEP_NS, 3 * STEP_NS]
    assert row.chunk_lower_ns == [2 * STEP_NS - STEP_NS // 10, 3 * STEP_NS]


def test_the_receive_lag_is_known_with_kernel_stamps_only() -> None:
    exchanged = stream(WHOLE)
    exchanged.reads_ns[3] = exchanged.stamps[3] + 70_000
    exchanged.stamp_source = "user"
    assert record(exchanged).recv_lag_ns is None
    exchanged.stamp_source = "kernel"
    row = record(exchanged)
    assert (row.recv_lag_ns, row.stamp_source) == (70_000, "kernel")


def test_instants_count_from_the_start_of_the_run() -> None:
    row = to_record(
        stream(WHOLE),
        ENDPOINTS["completions"],
        epoch_ns=100,
        row=PlanRow(index=7, prompt_tokens=5, output_tokens=3),
    )
    assert row.scheduled_ns == -100
    assert row.first_token_ns == 2 * STEP_NS - 100


def test_an_answer_that_was_not_streamed_ends_with_its_body() -> None:
    usage = b'{"prompt_tokens":5,"completion_tokens":3}'
    body = b'{"choices":[{"text":"abc","finish_reason":"length"}],"usage":%b}' % usage
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    row = record(exchange([head, body[:9], body[9:]]), output_tokens=3)
    assert (row.outcome, row.output_tokens, row.chunk_ns) == (Outcome.OK, 3, [])
    assert (row.headers_ns, row.first_token_ns, row.last_token_ns) == (STEP_NS, None, 3 * STEP_NS)
    cut = record(exchange([head, body[:9]], End.EOF))
    assert (cut.outcome, cut.last_token_ns) == (Outcome.TRUNCATED, None)


def test_an_answer_until_the_connection_closes() -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    row = record(exchange([head, *WHOLE], End.EOF), output_tokens=3)
    assert (row.outcome, row.chunk_tokens, row.error) == (Outcome.OK, [1, 1, 1], None)
    assert row.done_ns == 7 * STEP_NS
    body = b'{"choices":[{"text":"abc","finish_reason":"length"}]}'
    plain = record(exchange([b"HTTP/1.0 200 OK\r\n\r\n", body], End.EOF))
    assert (plain.outcome, plain.last_token_ns) == (Outcome.OK, 2 * STEP_NS)


def test_a_transport_that_unpacks_http_itself_gives_the_same_row() -> None:
    framed = record(stream(WHOLE), output_tokens=3)
    unpacked = stream(WHOLE)
    unpacked.framed, unpacked.status, unpacked.headers = False, 200, {"content-type": "text/event-stream"}
    unpacked.headers_ns = unpacked.stamps[0]
    unpacked.chunks = [b"", *WHOLE, b""]
    assert record(unpacked, output_tokens=3) == framed


# --- how it ended --------------------------------------------------------------------------------------


def test_a_missing_done_is_no_failure() -> None:
    assert record(stream(WHOLE[:-1])).outcome is Outcome.OK
    assert record(stream(WHOLE[:-1], End.EOF)).outcome is Outcome.OK


def test_an_end_without_a_finish_reason_is_truncated_even_with_done() -> None:
    for ended in (End.COMPLETE, End.EOF):
        row = record(stream([text_event("a"), text_event("b"), DONE], ended))
        assert row.outcome is Outcome.TRUNCATED
        assert row.error is not None
        assert "2 token events, then [DONE]" in row.error
        assert len(row.chunk_ns) == 2


def test_the_number_of_tokens_asked_for_makes_up_for_a_missing_finish_reason() -> None:
    events = [text_event("a"), text_event("b"), usage_event(5, 2)]
    assert record(stream(events), output_tokens=2).outcome is Outcome.OK
    assert record(stream(events), output_tokens=3).outcome is Outcome.TRUNCATED


def test_an_event_without_its_empty_line_was_not_sent() -> None:
    last = text_event("b", "stop")
    row = record(stream([text_event("a"), last[:-1]], End.EOF))
    assert row.outcome is Outcome.TRUNCATED
    assert row.error is not None
    assert "cut within an event" in row.error
    assert len(row.chunk_ns) == 1


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (End.EOF, Outcome.TRUNCATED),
        (End.RESET, Outcome.RESET),
        (End.STALLED, Outcome.STALLED),
        (End.FIRST_TOKEN_TIMEOUT, Outcome.TIMEOUT),
        (End.TOTAL_TIMEOUT, Outcome.TIMEOUT),
        (End.CANCELLED, Outcome.CANCELLED),
        (End.MALFORMED, Outcome.MALFORMED),
    ],
)
def test_ends_of_a_stream_that_is_not_whole_and_of_one_that_is(ended: End, outcome: Outcome) -> None:
    partial = record(stream([text_event("a")], ended))
    assert (partial.outcome, partial.done_ns) == (outcome, 3 * STEP_NS)
    assert partial.first_token_ns == partial.last_token_ns == 2 * STEP_NS
    assert partial.output_tokens is None
    assert partial.error
    whole = record(stream(WHOLE, ended))
    assert whole.outcome is Outcome.OK
    assert (whole.error is None) is (ended is End.EOF)


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (End.UNSENT, Outcome.UNSENT),
        (End.CONNECT_FAILED, Outcome.CONNECT_FAILED),
        (End.CONNECT_TIMEOUT, Outcome.CONNECT_TIMEOUT),
        (End.RESET, Outcome.RESET),
        (End.EOF, Outcome.RESET),
        (End.FIRST_TOKEN_TIMEOUT, Outcome.TIMEOUT),
        (End.CANCELLED, Outcome.CANCELLED),
    ],
)
def test_ends_before_any_byte(ended: End, outcome: Outcome) -> None:
    exchanged = exchange([], ended)
    row = record(exchanged)
    assert row.outcome is outcome
    assert row.error
    assert (row.done_ns is None) is (ended is End.UNSENT)
    assert (row.http_status, row.first_token_ns, row.chunk_ns, row.stamp_source) == (None, None, [], None)
    exchanged.error = "errno 111"
    assert record(exchanged).error == "errno 111"


def test_a_head_that_was_cut_is_no_answer() -> None:
    assert record(exchange([STREAM_HEAD[:30]], End.EOF)).outcome is Outcome.RESET
    assert record(exchange([STREAM_HEAD[:30]], End.FIRST_TOKEN_TIMEOUT)).outcome is Outcome.TIMEOUT


def test_pings_for_ever_are_no_tokens() -> None:
    row = record(stream([PING] * 4, End.FIRST_TOKEN_TIMEOUT))
    assert (row.outcome, row.first_event_ns, row.first_token_ns) == (Outcome.TIMEOUT, None, None)


def test_an_answer_without_text_has_no_first_token_and_is_ok() -> None:
    row = record(stream([ROLE, delta_event("{}", "length"), usage_event(5, 0)]), "chat")
    assert (row.outcome, row.first_token_ns, row.last_token_ns, row.output_tokens) == (
        Outcome.OK,
        None,
        None,
        0,
    )


@pytest.mark.parametrize(
    "broken",
    [
        event('{"error":{"message":"input longer than context","code":400}}'),
        b'event: error\ndata: {"message":"input longer than context"}\n\n',
        b"event: error\ndata: input longer than context\n\n",
        event('{"object":"error","message":"input longer than context"}'),
    ],
)
def test_an_error_event_is_a_failure_wherever_it_stands(broken: bytes) -> None:
    for events in ([broken], [text_event("a"), broken, DONE], [*WHOLE[:-1], broken]):
        row = record(stream(events), output_tokens=3)
        assert (row.outcome, row.http_status) == (Outcome.ERROR_EVENT, 200)
        assert row.error == "input longer than context"


def test_an_error_in_a_200_that_is_not_streamed() -> None:
    row = record(answer(b"HTTP/1.1 200 OK", b'{"error":{"message":"oom"}}'))
    assert (row.outcome, row.error) == (Outcome.ERROR_EVENT, "oom")


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_finish_reason_that_says_it_failed(reason: str) -> None:
    assert record(stream([text_event("a", reason), DONE])).outcome is Outcome.ERROR_EVENT


@pytest.mark.parametrize(
    ("head", "body", "words"),
    [
        (b"HTTP/1.1 404 Not Found", b'{"error":{"message":"no model `x`"}}', "no model `x`"),
        (b"HTTP/1.1 422 Unprocessable", b'{"detail":"Unexpected fields"}', "Unexpected fields"),
        (b"HTTP/1.1 429 Too Many\r\nRetry-After: 3", b'{"error":"slow down"}', "slow down (Retry-After: 3)"),
        (b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /v2", b"", "307 Temporary Redirect (Location: /v2)"),
        (b"HTTP/1.1 502 Bad Gateway", b"<h1>bad</h1>", "<h1>bad</h1>"),
        (b"HTTP/1.1 503", b"", "503"),
        (b"HTTP/1.1 201 Created", b"{}", "{}"),
    ],
)
def test_another_status_than_200_ends_in_the_server_s_words(head: bytes, body: bytes, words: str) -> None:
    row = record(answer(head, body))
    assert (row.outcome, row.error) == (Outcome.HTTP_STATUS, words)
    assert row.http_status == int(head[9:12])
    assert row.done_ns == STEP_NS


def test_long_words_are_cut_and_keep_what_to_do() -> None:
    row = record(answer(b"HTTP/1.1 503 No\r\nRetry-After: 30", b"x" * 100_000))
    assert row.error is not None
    assert len(row.error) == 500
    assert row.error.endswith("(Retry-After: 30)")


def test_a_status_without_body() -> None:
    row = record(exchange([b"HTTP/1.1 204 No Content\r\n\r\n"]))
    assert (row.outcome, row.http_status) == (Outcome.HTTP_STATUS, 204)


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([b"SSH-2.0-OpenSSH\r\n"], "status line"),
        ([STREAM_HEAD, frame(text_event("a")), b"zz\r\n"], "chunk size"),
        ([STREAM_HEAD, frame(text_event("a")), frame(event("{oops"))], "not JSON"),
        (
            [STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"), frame(b"\x1f\x8b")],
            "gzip",
        ),
        (
            [b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 7\r\n\r\n<h1>hi</h1>"],
            "text/html",
        ),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{oop"], "not JSON"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + b'{"a": 1.}'], "not JSON"),
    ],
)
def test_malformed(chunks: list[bytes], words: str) -> None:
    row = record(exchange(chunks))
    assert row.outcome is Outcome.MALFORMED
    assert row.error is not None
    assert words in row.error


def test_what_came_before_malformed_bytes_is_kept() -> None:
    row = record(exchange([STREAM_HEAD, frame(text_event("a")), frame(text_event("b")), b"zz\r\n"]))
    assert (row.outcome, len(row.chunk_ns)) == (Outcome.MALFORMED, 2)


def test_events_of_other_kinds_are_passed_over() -> None:
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    row = record(stream([ping, *WHOLE[:1], ping, *WHOLE[1:]]), output_tokens=3)
    assert (row.outcome, row.chunk_tokens) == (Outcome.OK, [1, 1, 1])


def test_the_server_s_request_id_is_kept() -> None:
    row = record(answer(b"HTTP/1.1 500 No\r\nX-Request-Id: abc", b""))
    assert row.server_request_id == "abc"


# --- how many ------------------------------------------------------------------------------------------


def test_output_tokens_are_never_those_asked_for() -> None:
    row = record(stream([text_event("a"), text_event("", "stop")]), output_tokens=512)
    assert (row.outcome, row.output_tokens, row.output_tokens_source) == (Outcome.OK, None, "unknown")
    assert (row.prompt_tokens, row.prompt_tokens_source) == (None, "unknown")


def test_several_tokens_an_event() -> None:
    events = [text_event("abcd"), text_event("efgh", "length"), usage_event(5, 8)]
    assert record(stream(events)).chunk_tokens == [None, None]
    rising = [
        event(
            f'{{"choices":[{{"text":"abcd","finish_reason":{finish}}}],"usage":{{"completion_tokens":{n}}}}}'
        )
        for n, finish in ((4, "null"), (8, '"length"'))
    ]
    assert record(stream(rising)).chunk_tokens == [4, 4]


def test_what_preflight_knows_of_a_server_without_usage() -> None:
    events = [text_event("a"), text_event(""), text_event("c"), text_event("", "length"), DONE]
    row = record(
        stream(events), with_fields(Completions(), token_events=TokenEvents.CONTENT), output_tokens=3
    )
    assert (row.chunk_tokens, row.output_tokens, row.output_tokens_source) == ([1, 1, 1], 3, "count")


# --- the timers' question ------------------------------------------------------------------------------


def has_token(chunks: list[bytes], start: int = 0) -> bool:
    return has_token_since(chunks, start, ENDPOINTS["completions"])


def test_only_a_token_resets_a_timer() -> None:
    assert not has_token([STREAM_HEAD, frame(PING), frame(PING)])
    assert not has_token([STREAM_HEAD, frame(usage_event(5, 1)), frame(DONE)])
    assert not has_token_since([STREAM_HEAD, frame(ROLE)], 0, ENDPOINTS["chat"])
    assert not has_token([STREAM_HEAD, frame(event('{"error":{"message":"x"}}'))])
    assert has_token([STREAM_HEAD, frame(PING), frame(text_event("a"))])


def test_a_timer_looks_at_what_came_since_and_not_before() -> None:
    chunks = [STREAM_HEAD, frame(text_event("a")), frame(PING)]
    assert has_token(chunks, 1)
    assert not has_token(chunks, 2)
    assert not has_token(chunks, 3)


def test_a_token_cut_between_reads_came_with_its_end() -> None:
    whole = frame(text_event("a"))
    for cut in range(1, len(whole)):
        chunks = [STREAM_HEAD, frame(PING) + whole[:cut], whole[cut:] + frame(PING)]
        assert has_token(chunks[:2]) is (b"}\n" in chunks[1])
        assert has_token(chunks, 1)
        if b"}\n" not in chunks[1]:
            assert has_token(chunks, 2)


def test_framing_inside_a_data_line_counts_as_a_token() -> None:
    whole = text_event("abc")
    assert has_token([STREAM_HEAD, frame(whole[:20]) + frame(whole[20:])])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([PING, DONE, b"data: \n\n", b"data:{", b"\n", b"\r\n", b"7\r\n", b"\xff"]), max_size=9
    )
)
def test_a_timer_survives_any_bytes(chunks: list[bytes]) -> None:
    for start in range(len(chunks) + 1):
        assert has_token(chunks, start) in (True, False)


# --- any bytes -----------------------------------------------------------------------------------------

PARTS = st.sampled_from(
    [STREAM_HEAD, *map(frame, WHOLE), frame(ROLE), frame(PING), LAST_CHUNK, *WHOLE, b"\r\n"]
)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(PARTS | st.binary(max_size=20), max_size=8),
    st.sampled_from(End),
    st.sampled_from(["chat", "completions"]),
    st.booleans(),
)
def test_any_bytes_become_a_consistent_row(chunks: list[bytes], ended: End, api: str, has_head: bool) -> None:
    row = record(exchange([STREAM_HEAD, *chunks] if has_head else chunks, ended), api)
    assert len(row.chunk_ns) == len(row.chunk_lower_ns) == len(row.chunk_tokens)
    assert row.chunk_ns == sorted(row.chunk_ns)
    assert all(lower <= stamp for lower, stamp in zip(row.chunk_lower_ns, row.chunk_ns, strict=True))
    assert (row.first_token_ns is None) is (not row.chunk_ns)
    assert row.outcome is Outcome.OK or row.error
    assert row.error is None or 0 < len(row.error) <= 500
    assert row.outcome is not Outcome.OK or row.http_status == 200
