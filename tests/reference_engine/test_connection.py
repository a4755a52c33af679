"""The HTTP connection on a fake transport: framing, limits, and slow readers."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from reference_engine.connection import (
    MAX_BODY_BYTES,
    MAX_REQUESTS_AHEAD,
    MAX_UNREAD_BYTES,
    Connection,
    HttpRequest,
)


class FakeTransport(asyncio.Transport):
    """Keeps what is written; `unread` plays the bytes that the reader has not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unread = 0
        self.state = "open"

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.state != "open"

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del default
        assert name == "socket"
        return SimpleNamespace(family=socket.AF_UNIX)


class Handler:
    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []
        self.answers_at_once = True
        self.num_lost = 0

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        self.requests.append(request)
        if self.answers_at_once:
            connection.respond(200, request.path.encode(), "text/plain")

    def on_lost(self, connection: Connection) -> None:
        del connection
        self.num_lost += 1


def connect() -> tuple[Handler, Connection, FakeTransport]:
    handler, transport = Handler(), FakeTransport()
    connection = Connection(handler)
    connection.connection_made(transport)
    return handler, connection, transport


def test_a_request_is_read_whole_under_any_split() -> None:
    data = b"POST /a?b=c HTTP/1.1\r\nX-Request-Id: 7\r\ncontent-length: 5\r\n\r\nhello"
    for cut in range(1, len(data)):
        handler, connection, transport = connect()
        connection.data_received(data[:cut])
        connection.data_received(data[cut:])
        (request,) = handler.requests
        assert (request.method, request.path) == ("POST", "/a")
        assert (request.headers["x-request-id"], bytes(request.body)) == ("7", b"hello")
        assert transport.written.startswith(b"HTTP/1.1 200 OK\r\n")
        assert transport.state == "open"


@pytest.mark.parametrize("head", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"])
def test_a_client_that_wants_to_close_is_closed(head: bytes) -> None:
    _, connection, transport = connect()
    connection.data_received(head)
    assert b"connection: close\r\n" in transport.written
    assert transport.state == "closed"


def test_many_requests_sent_ahead_need_no_deep_stack() -> None:
    handler, connection, transport = connect()
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n" * 5000)
    assert len(handler.requests) == 5000
    assert transport.state == "open"


def test_requests_ahead_of_a_slow_answer_are_bounded() -> None:
    handler, connection, transport = connect()
    handler.answers_at_once = False
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n" * (MAX_REQUESTS_AHEAD + 1))
    assert transport.state == "open"
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert transport.state == "aborted"
    assert len(handler.requests) == 1


def test_a_body_too_large_is_refused() -> None:
    handler, connection, transport = connect()
    connection.data_received(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1))
    for _ in range(MAX_BODY_BYTES // (1 << 20)):
        connection.data_received(bytes(1 << 20))
    assert transport.written == b""
    connection.data_received(b"x")
    assert transport.written.startswith(b"HTTP/1.1 413 ")
    assert transport.state == "closed"
    assert handler.requests == []


def test_a_reader_that_lets_a_stream_pile_up_is_cut_off() -> None:
    handler, connection, transport = connect()
    handler.answers_at_once = False
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    connection.pause_writing()
    transport.unread = MAX_UNREAD_BYTES
    assert connection.write_stream(b"x")
    transport.unread += 1
    assert not connection.write_stream(b"x")
    assert transport.state == "aborted"


def test_a_reader_that_catches_up_is_kept() -> None:
    handler, connection, transport = connect()
    handler.answers_at_once = False
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    connection.pause_writing()
    connection.resume_writing()
    transport.unread = MAX_UNREAD_BYTES + 1
    assert connection.write_stream(b"x")
    assert transport.state == "open"


def test_a_lost_connection_is_told_to_the_handler() -> None:
    handler, connection, _ = connect()
    connection.connection_lost(None)
    assert handler.num_lost == 1
    connection.respond(200, b"")  # nobody there: nothing happens


def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    _, connection, transport = connect()
    connection.data_received(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n")
    assert transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
