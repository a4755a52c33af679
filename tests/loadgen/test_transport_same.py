"""Both transports give the same answers: outcome, tokens, status and words."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from loadgen.records import RequestRecord
from loadgen.transport.base import End
from tests.loadgen.scripted import HEAD, LAST_CHUNK, chunk, reset, serving, stream, token
from tests.loadgen.sending import give_up, record_of, sender

ERROR = b'{"error": {"message": "too long", "code": 400}}'


def whole(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


USAGE = b'"usage": {"prompt_tokens": 2, "completion_tokens": 3}'
BODY = b'{"choices": [{"text": "a b c", "finish_reason": "length"}], ' + USAGE + b"}"
EVENT_ERROR = b'data: {"error": {"message": "out of memory"}}\n\n'
ANSWERS: dict[str, tuple[list[bytes], str]] = {
    "stream": ([stream(3)], "ok"),
    "a write an event": ([HEAD, chunk(token()), chunk(token(finish_reason="length")), LAST_CHUNK], "ok"),
    "pings": ([HEAD, chunk(b": ping\n\n"), chunk(token(finish_reason="length")), LAST_CHUNK], "ok"),
    "not streamed": ([whole("200 OK", BODY)], "ok"),
    "without finish": ([HEAD, chunk(token()), LAST_CHUNK], "truncated"),
    "error event": ([HEAD, chunk(token()), chunk(EVENT_ERROR), LAST_CHUNK], "error_event"),
    "bad request": ([whole("400 Bad Request", ERROR)], "http_status"),
    "busy": ([whole("429 Too Many Requests", ERROR, "Retry-After: 7")], "http_status"),
    "redirect": ([whole("307 Temporary Redirect", ERROR, "Location: http://127.0.0.1:9/x")], "http_status"),
    "not json": ([HEAD, chunk(b"data: {nonsense\n\n"), LAST_CHUNK], "malformed"),
    "not http": ([b"220 smtp.example ESMTP\r\n\r\n"], "malformed"),
}


def ask(name: str, url: str) -> RequestRecord:
    with sender(name, url) as it:
        return record_of(it.ask())


def facts(row: RequestRecord) -> tuple[object, ...]:
    return row.outcome, row.http_status, len(row.chunk_ns), row.output_tokens, row.output_tokens_source


@pytest.mark.parametrize(("pieces", "outcome"), ANSWERS.values(), ids=ANSWERS.keys())
def test_the_same_answer_is_the_same_row(pieces: list[bytes], outcome: str) -> None:
    def answer(sock: socket.socket, _: bytes) -> bool:
        for piece in pieces:
            sock.sendall(piece)
            time.sleep(0.002)
        return not pieces[0].startswith(b"220")

    with serving(answer) as server:
        rows = [ask(name, server.url) for name in ("raw", "httpx")]
    assert [row.outcome for row in rows] == [outcome] * 2
    assert facts(rows[0]) == facts(rows[1])
    assert outcome == "malformed" or rows[0].error == rows[1].error
    for row in rows:
        assert row.sent_ns is not None
        assert row.written_ns is not None
        assert row.headers_ns is None or row.sent_ns <= row.written_ns <= row.headers_ns
    requests = [request.partition(b"\r\n\r\n")[2] for request in server.requests]
    assert requests[0] == requests[1]


def closes(sock: socket.socket, _: bytes) -> bool:
    sock.sendall(HEAD + chunk(token()))
    return False


def closes_at_once(*_: object) -> bool:
    return False


def resets(sock: socket.socket, _: bytes) -> bool:
    sock.sendall(HEAD + chunk(token()))
    time.sleep(0.02)
    reset(sock)
    return False


@pytest.mark.parametrize(
    ("answer", "outcome"), [(closes, "truncated"), (closes_at_once, "reset"), (resets, "reset")]
)
def test_the_same_break_is_the_same_outcome(
    answer: Callable[[socket.socket, bytes], bool], outcome: str
) -> None:
    with serving(answer) as server:
        rows = [ask(name, server.url) for name in ("raw", "httpx")]
    assert [(row.outcome, len(row.chunk_ns)) for row in rows] == [(outcome, len(rows[0].chunk_ns))] * 2


def test_nobody_there_is_the_same_outcome_in_the_same_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    rows = [ask(name, url) for name in ("raw", "httpx")]
    assert {row.outcome for row in rows} == {"connect_failed"}
    assert all("ECONNREFUSED" in str(row.error) for row in rows)


@pytest.mark.parametrize("name", ["raw", "httpx"])
def test_connections_are_reused_or_fresh(name: str) -> None:
    def answer(sock: socket.socket, _: bytes) -> bool:
        sock.sendall(stream(1))
        return True

    with serving(answer) as server:
        for is_fresh, expected in ((False, [False, True]), (True, [False, False])):
            with sender(name, server.url, fresh_connections=is_fresh) as it:
                found = []
                for _ in range(2):
                    found.append(it.ask().reused)
                    it.rest()
            assert found == expected
            assert it.transport.counts.num_connections == expected.count(False)


@pytest.mark.parametrize("name", ["raw", "httpx"])
def test_a_live_request_is_given_up_and_its_connection_closed(name: str) -> None:
    seen_end = []

    def answer(sock: socket.socket, _: bytes) -> bool:
        sock.sendall(HEAD + chunk(token()))
        sock.settimeout(5)
        seen_end.append(sock.recv(1))
        return False

    with serving(answer) as server, sender(name, server.url) as it:
        exchange = it.send()
        it.wait_until(lambda: bool(b"".join(exchange.chunks).count(b"data:")))
        give_up(it, exchange, End.STALLED)
        assert it.finished == [exchange]
        it.wait_until(lambda: bool(seen_end))
    assert record_of(exchange).outcome == "stalled"
    assert seen_end == [b""]


@pytest.mark.parametrize("name", ["raw", "httpx"])
def test_nothing_limits_what_is_in_flight(name: str) -> None:
    def never(sock: socket.socket, _: bytes) -> bool:
        sock.settimeout(10)
        sock.recv(1)
        return False

    with serving(never) as server, sender(name, server.url) as it:
        exchanges = [it.send() for _ in range(150)]
        it.wait_until(lambda: len(server.requests) == 150)
        for exchange in exchanges:
            give_up(it, exchange)
    assert len(it.finished) == 150
