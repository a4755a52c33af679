"""HTTP/1.1 on one connection: requests in, answers out, one at a time.

Parsing is httptools'; what a request means is the frontend's. A reader that lets its answer pile up is cut
off before the pile costs memory: the engine never waits for a reader.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol, cast

import httptools

from reference_engine.answers import LAST_CHUNK
from reference_engine.api import ApiError

MAX_BODY_BYTES = 8 << 20
MAX_UNREAD_BYTES = 1 << 20
MAX_REQUESTS_AHEAD = 64


@dataclass(slots=True)
class HttpRequest:
    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True


class Handler(Protocol):
    """What a connection asks of the server behind it."""

    def handle(self, request: HttpRequest, connection: Connection) -> None: ...

    def on_lost(self, connection: Connection) -> None: ...


def head(status: int, headers: dict[str, str]) -> bytes:
    """Return the status line and headers of an answer."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class Connection(asyncio.Protocol):
    """Reads requests and writes answers; requests sent ahead wait for the answer before them."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._incoming = HttpRequest()
        self._url = b""
        self._queue: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        self._is_dispatching = False
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._handler.on_lost(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(ApiError(400, "protocol upgrades are not supported"))
        except httptools.HttpParserError as error:
            self._refuse(ApiError(400, f"not an HTTP request: {error}"))

    def _refuse(self, error: ApiError) -> None:
        """Answer what cannot be understood and close: the stream has no known next request."""
        self._current = HttpRequest(keep_alive=False)
        self.respond(error.status, error.body())

    # The next five are called by the parser.

    def on_message_begin(self) -> None:
        self._incoming = HttpRequest()
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url  # comes in pieces where a read cuts it

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._incoming.path = httptools.parse_url(self._url).path.decode("latin-1")
        self._incoming.method = self._parser.get_method().decode("ascii")
        self._incoming.keep_alive = self._parser.should_keep_alive()
        if self._incoming.headers.get("expect", "").lower() == "100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        if len(self._incoming.body) + len(data) > MAX_BODY_BYTES:
            if self._transport is not None and not self._transport.is_closing():
                self._refuse(ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes"))
            return
        self._incoming.body += data

    def on_message_complete(self) -> None:
        self._queue.append(self._incoming)
        if len(self._queue) > MAX_REQUESTS_AHEAD and self._transport is not None:
            self._transport.abort()
        self._next()

    def _next(self) -> None:
        # A handler that answers at once comes back here through finish(): go round instead of deeper.
        if self._is_dispatching:
            return
        self._is_dispatching = True
        while self._current is None and self._queue and self._transport and not self._transport.is_closing():
            self._current = self._queue.popleft()
            self._handler.handle(self._current, self)
        self._is_dispatching = False

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Write a whole answer and go on with the next request."""
        about = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
        self._write(head(status, self._with_keep_alive(about)) + body)
        self.finish()

    def start_stream(self, headers: dict[str, str]) -> bytes:
        """Return the head of a chunked event stream, to be written with its first event."""
        about = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        return head(200, self._with_keep_alive({**about, "transfer-encoding": "chunked", **headers}))

    def _with_keep_alive(self, headers: dict[str, str]) -> dict[str, str]:
        is_kept = self._current is not None and self._current.keep_alive
        return headers if is_kept else {**headers, "connection": "close"}

    def write_stream(self, data: bytes) -> bool:
        """Write a part of a stream; False where the reader was too slow and has been cut off."""
        self._write(data)
        if not self._is_paused or self._transport is None:
            return True
        if self._transport.get_write_buffer_size() <= MAX_UNREAD_BYTES:
            return True
        self._transport.abort()
        return False

    def end_stream(self, data: bytes) -> None:
        """Write the last part of a stream and go on with the next request."""
        self._write(data + LAST_CHUNK)
        self.finish()

    def finish(self) -> None:
        is_kept = self._current is not None and self._current.keep_alive
        self._current = None
        if not is_kept:
            self.close()
        else:
            self._next()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
