"""Framing of responses: by hand, against h11 and httptools, and under every split of the bytes."""

from __future__ import annotations

import time
from itertools import combinations

import h11
import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.http1 import (
    MAX_CHUNK_LINE_BYTES,
    MAX_HEAD_BYTES,
    HttpSyntaxError,
    IncompleteHeadError,
    Response,
    ResponseFramer,
    parse_response,
)
from tests.loadgen.wire import NAMES, load_transcript, split_at

OK_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
OK_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
RICH = (
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"
    b"Transfer-Encoding: gzip, chunked\r\n\r\n"
    b'3;name="a;b"\r\nabc\r\n0A ;x\r\n0123456789\r\n00\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n'
)


def body_of(response: Response) -> bytes:
    return b"".join(piece for piece, _ in response.body)


def test_content_length() -> None:
    response = parse_response([OK_LENGTH])
    assert (response.status, response.reason, body_of(response)) == (200, "OK", b"hello")
    assert response.headers == {"content-length": "5"}
    assert response.is_complete
    assert response.keep_alive


def test_chunked_with_extensions_trailers_and_interim_responses() -> None:
    response = parse_response([RICH])
    assert (response.status, body_of(response)) == (200, b"abc0123456789")
    assert response.is_complete
    assert "link" not in response.headers
    assert "x-sum" not in response.headers


@pytest.mark.parametrize("stream", [OK_LENGTH, OK_CHUNKED, RICH], ids=["length", "chunked", "rich"])
def test_every_split_in_two_and_three_frames_alike(stream: bytes) -> None:
    whole = parse_response([stream])
    places = range(len(stream) + 1)
    for cuts in [*combinations(places, 1), *list(combinations(places, 2))[:: 1 + len(stream) // 60]]:
        chunks = split_at(stream, cuts)
        response = parse_response(chunks)
        assert (response.status, response.headers, body_of(response)) == (200, whole.headers, body_of(whole))
        assert response.is_complete
        assert response.keep_alive
        framer = ResponseFramer()
        assert [framer.feed(chunk) for chunk in chunks if chunk][-1]


@pytest.mark.parametrize("end", range(1, len(RICH)))
def test_no_prefix_is_complete(end: int) -> None:
    assert not ResponseFramer().feed(RICH[:end])


def test_a_body_piece_names_its_chunk_and_the_head_its_own() -> None:
    chunks = [OK_CHUNKED[:10], OK_CHUNKED[10:-15], OK_CHUNKED[-15:-12], OK_CHUNKED[-12:]]
    response = parse_response(chunks)
    assert response.head_chunk == 1
    assert [index for _, index in response.body] == sorted(index for _, index in response.body)
    assert all(piece in chunks[index] for piece, index in response.body)


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Upgrade, Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", True),
    ],
)
def test_keep_alive(head: bytes, keep_alive: bool) -> None:
    assert parse_response([head + b"Content-Length: 0\r\n\r\n"]).keep_alive is keep_alive


def test_bytes_behind_a_response_forbid_reuse() -> None:
    assert not parse_response([OK_LENGTH + b"x"]).keep_alive
    framer = ResponseFramer()
    framer.feed(OK_LENGTH)
    assert framer.keep_alive
    framer.feed(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert not framer.keep_alive


def test_an_incomplete_response_is_not_reusable() -> None:
    framer = ResponseFramer()
    framer.feed(OK_LENGTH[:-1])
    assert not framer.keep_alive


def test_without_length_the_body_goes_on_until_the_connection_closes() -> None:
    response = parse_response([b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo"])
    assert body_of(response) == b"hello"
    assert response.is_until_close
    assert not response.is_complete
    assert not response.keep_alive


def test_a_coding_that_is_not_chunked_last_goes_on_until_close() -> None:
    assert parse_response([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n5"]).is_until_close


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_statuses_without_body(status: bytes) -> None:
    response = parse_response([b"HTTP/1.1 " + status + b"\r\nContent-Length: 9\r\n\r\n"])
    assert response.is_complete
    assert response.body == []


def test_chunked_wins_over_content_length() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert body_of(parse_response([head + b"5\r\nhello\r\n0\r\n\r\n"])) == b"hello"


@pytest.mark.parametrize(
    "stream",
    [
        b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
        b"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length:5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX-Long: a\r\n\t b\r\nContent-Length:\t5 \r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
        b"HTTP/1.1 200 \xe9t\xe9\r\nContent-Length: 5\r\nX: \xff\r\n\r\nhello",
    ],
    ids=["no reason", "bare LF", "stray CRLF, list", "repeated", "folded", "bare LF chunks", "latin-1"],
)
def test_lenient_where_servers_are(stream: bytes) -> None:
    response = parse_response([stream[i : i + 3] for i in range(0, len(stream), 3)])
    assert body_of(response) == b"hello"
    assert response.is_complete


def test_a_folded_value_is_one_value() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Long: a\r\n\t b\r\nContent-Length: 0\r\n\r\n"
    assert parse_response([head]).headers["x-long"] == "a b"


@pytest.mark.parametrize(
    "stream",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTQ",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad name: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded first: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\nX:" + b" " * MAX_HEAD_BYTES,
    ],
)
def test_a_wrong_head_is_an_error_that_quotes_what_was_seen(stream: bytes) -> None:
    with pytest.raises(HttpSyntaxError, match=r"came|content-length|head over") as caught:
        parse_response([stream])
    assert not isinstance(caught.value, IncompleteHeadError)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "rest",
    [
        b"xyz\r\n",
        b"5\r\nhelloX\r\n",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"5_0\r\nhello\r\n",
        b"\r\n",
        b"F" * 16 + b"\r\n",
        b"5;" + b"a" * MAX_CHUNK_LINE_BYTES,
        b"0\r\nno trailer\r\n",
        b"0\r\nX: " + b"a" * MAX_HEAD_BYTES,
    ],
)
def test_framing_that_breaks_later_keeps_what_came_before(rest: bytes) -> None:
    stream = OK_CHUNKED[:-5] + rest
    response = parse_response([stream])
    assert response.syntax_error
    assert body_of(response).startswith(b"hello")
    assert not response.is_complete
    with pytest.raises(HttpSyntaxError):
        ResponseFramer().feed(stream)


def test_a_head_that_does_not_end_is_incomplete() -> None:
    for end in range(len(OK_LENGTH) - 5):
        with pytest.raises(IncompleteHeadError):
            parse_response([OK_LENGTH[:end]])


def test_no_input_costs_more_than_linear_time() -> None:
    spaces = b"HTTP/1.1 200 OK\r\n" + b"X:" + b" " * 60_000 + b"\r\n\r\n"
    semicolons = OK_CHUNKED[:-5] + b"5" + b";" * 4000 + b"\r\nhello\r\n0\r\n\r\n"
    stray = b"\r\n" * 100_000 + OK_LENGTH
    start = time.perf_counter()
    for stream in (spaces, semicolons, stray):
        parse_response([stream])
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_on_the_wire_gives_its_body_back(name: str) -> None:
    transcript = load_transcript(name)
    wire = transcript.wire()
    response = parse_response([wire[i : i + 7] for i in range(0, len(wire), 7)])
    if transcript.is_chunked and not transcript.is_cut:
        assert body_of(response) == transcript.body
        assert response.is_complete
    assert response.status == int(transcript.head[9:12])


# --- oracles -------------------------------------------------------------------------------------------

NAMES_ST = st.text("abcdefgh-XYZ09", min_size=1, max_size=12).map(lambda name: f"x-{name}".encode())
VALUES_ST = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20).map(str.encode)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """A valid response with a body by length or in chunks, perhaps with interim heads and trailers."""
    body = draw(st.binary(max_size=200))
    headers = draw(st.lists(st.tuples(NAMES_ST, VALUES_ST), max_size=5))
    head = b"".join(b"%b: %b\r\n" % pair for pair in headers)
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    status = draw(st.sampled_from([b"200 OK", b"404 Not Found", b"503 Service Unavailable", b"200 "]))
    start = interim + b"HTTP/1.1 " + status + b"\r\n" + head
    if draw(st.booleans()):
        return start + b"Content-Length: %d\r\n\r\n" % len(body) + body
    cuts = draw(st.lists(st.integers(0, len(body)), max_size=5))
    extension = draw(st.sampled_from([b"", b";a=b", b";q"]))
    chunks = b"".join(
        b"%X%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in split_at(body, cuts) if piece
    )
    trailers = draw(st.sampled_from([b"", b"X-Sum: 1\r\n"]))
    return start + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"


def read_with_h11(stream: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    connection = h11.Connection(our_role=h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(stream)
    status, headers, body = 0, [], b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Response):
            status = event.status_code
            headers = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return status, headers, body


class _HttptoolsReader:
    def __init__(self) -> None:
        self.status, self.body, self.is_complete = 0, b"", False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = self.status >= 200


@settings(max_examples=400, deadline=None)
@given(responses(), st.data())
def test_valid_responses_agree_with_h11_and_httptools(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    chunks = split_at(stream, cuts)
    response = parse_response(chunks)
    status, headers, body = read_with_h11(stream)
    other = _HttptoolsReader()
    for chunk in chunks:
        other.feed(chunk)
    assert (response.status, body_of(response), response.is_complete) == (status, body, True)
    assert (other.status, other.body, other.is_complete) == (status, body, True)
    for name, value in headers:
        assert value in response.headers[name]


@settings(max_examples=400, deadline=None)
@given(responses(), st.data())
def test_damaged_responses_end_alike_under_any_split(stream: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(stream) - 1))
    damaged = (
        stream[:place] + data.draw(st.binary(max_size=4)) + stream[place + data.draw(st.integers(0, 3)) :]
    )
    cuts = data.draw(st.lists(st.integers(0, len(damaged)), max_size=12))

    def outcome(chunks: list[bytes]) -> tuple[object, ...]:
        try:
            response = parse_response(chunks)
        except HttpSyntaxError as exc:
            return (type(exc),)
        return response.status, body_of(response), response.is_complete, response.syntax_error is not None

    assert outcome(split_at(damaged, cuts)) == outcome([damaged])
