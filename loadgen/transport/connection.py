"""One HTTP/1.1 connection: bytes out, bytes and stamps in, and where a response ends.

Decides by the framing alone whether a response is whole, and between two stamps of a live stream looks into
no read but one whose last bytes could end it. What carries the next request, and what a stamp is, is the
transport's affair.
"""

from __future__ import annotations

import os
import re
import socket
from enum import IntEnum
from typing import TYPE_CHECKING

from loadgen.clock import now_ns
from loadgen.http1 import MAX_HEAD_BYTES, HttpSyntaxError, ResponseFramer
from loadgen.transport.base import End, Exchange
from loadgen.transport.sockets import ANCILLARY_BYTES, POLL_BROKEN, POLL_IN, POLL_OUT, READ_BYTES, errno_name

if TYPE_CHECKING:
    from loadgen.transport.raw import Home, RawTransport

MAX_RESPONSE_BYTES = 64 << 20
BLANK_LINE = b"\r\n\r\n"
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r\n]*chunked", re.IGNORECASE)
COUNTED = re.compile(rb"\r\ncontent-length:|\AHTTP/1\.[01] (?:1..|204|304)", re.IGNORECASE)


class State(IntEnum):
    CONNECTING = 0
    HANDSHAKING = 1  # TLS
    WRITING = 2
    READING = 3
    IDLE = 4
    CLOSED = 5


class Framing(IntEnum):
    """Which reads can end the response."""

    HEAD = 0  # the head has not ended
    CHUNKED = 1  # only one that ends in a blank line
    COUNTED = 2  # any
    UNTIL_EOF = 3  # none


class Connection:
    """One TCP connection. It carries one exchange at a time and rests between two."""

    __slots__ = (
        "exchange",
        "fd",
        "framer",
        "framing",
        "held_from_ns",
        "home",
        "idle_since_ns",
        "is_persistent",
        "left_since_ns",
        "num_bytes",
        "num_framed",
        "read_from_ns",
        "recvmsg",
        "sock",
        "state",
        "transport",
        "unsent",
    )

    def __init__(self, transport: RawTransport, sock: socket.socket, home: Home) -> None:
        self.transport = transport
        self.home = home
        self.sock = sock
        self.fd = sock.fileno()
        self.recvmsg = sock.recvmsg
        self.read_from_ns = 0  # a read took all that was there after this instant
        self.left_since_ns = 0  # since when bytes that no read has taken may be there; 0: there are none
        self.state = State.CONNECTING
        self.idle_since_ns = 0
        self.is_persistent = False
        self.exchange: Exchange | None = None
        self.unsent = memoryview(b"")

    def begin(self, exchange: Exchange, payload: bytes) -> None:
        """Take an exchange; its bytes leave as soon as the connection stands."""
        self.exchange = exchange
        self.held_from_ns = exchange.sent_ns or 0
        self.unsent = memoryview(payload)
        self.framing = Framing.HEAD
        self.framer = ResponseFramer()
        self.num_framed = 0
        self.num_bytes = 0

    def on_events(self, mask: int) -> None:
        """Do what the poller says can be done."""
        if self.state is State.READING:
            self.read()
        elif self.state is State.CONNECTING:
            self.finish_connect()
        else:
            if mask & POLL_OUT:
                self.write()
            if mask & (POLL_IN | POLL_BROKEN) and self.state is not State.CLOSED:
                self.read()

    def finish_connect(self) -> None:
        """Learn how the connection attempt went."""
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.finish(End.CONNECT_FAILED, errno_name(OSError(code, os.strerror(code))))
            return
        exchange = self.exchange
        assert exchange is not None
        asked_ns = (exchange.sent_ns or 0) + exchange.write_lag_ns
        exchange.write_lag_ns += now_ns() - max(self.transport.lookout.since_ns, asked_ns)
        self.on_connected()

    def on_connected(self) -> None:
        """The peer accepted: write."""
        exchange = self.exchange
        assert exchange is not None
        exchange.connected_ns = self.held_from_ns = now_ns()
        self.state = State.WRITING
        self.write()

    def write(self) -> None:
        """Hand the kernel what it takes; the rest leaves when it takes more."""
        exchange = self.exchange
        assert exchange is not None
        try:
            while self.unsent:
                at_ns = now_ns()  # before the last part leaves: the answer may be here before send() returns
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
                if not self.unsent:
                    self.note_written(exchange, at_ns)
        except BlockingIOError:
            self.watch(State.WRITING, POLL_IN | POLL_OUT)
            return
        except OSError:
            pass  # the peer may have answered before it stopped listening: what can be read decides
        self.watch(State.READING, POLL_IN)

    def note_written(self, exchange: Exchange, at_ns: int) -> None:
        """The last byte has left after `at_ns`."""
        exchange.written_ns = at_ns
        exchange.write_lag_ns += now_ns() - self.held_from_ns

    def watch(self, state: State, mask: int) -> None:
        """Enter a state, in which the poller reports `mask`."""
        self.state = state
        self.transport.watch(self, mask)

    def read(self) -> None:
        """Read once and stamp; the kernel's stamp is that of the last segment in the read."""
        try:
            data, ancillary, _, _ = self.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as exc:
            self.on_broken(errno_name(exc))
            return
        read_ns = now_ns()
        since_ns = self.since(len(data), read_ns)
        exchange = self.exchange
        if exchange is None:
            self.close()  # at rest: the peer closed, or sent what nobody asked for
        elif not data:
            self.on_eof(read_ns)
        else:
            stamp_ns = self.transport.stamp(ancillary, exchange, read_ns)
            exchange.since_ns.append(since_ns)
            self.keep(exchange, data, stamp_ns, read_ns)

    def since(self, num_bytes: int, read_ns: int) -> int:
        """An instant at which nothing of the read that has just been made had come."""
        transport = self.transport
        since_ns = self.left_since_ns or max(self.read_from_ns, transport.lookout.since_ns)
        if num_bytes < READ_BYTES:
            self.read_from_ns, self.left_since_ns = transport.begun_ns, 0
        else:
            self.left_since_ns = since_ns  # what it left behind may be as old
        transport.begun_ns = read_ns
        return since_ns

    def keep(self, exchange: Exchange, data: bytes, stamp_ns: int, read_ns: int) -> None:
        """Keep the bytes and their stamp; look into them only where they could end the response."""
        exchange.chunks.append(data)
        exchange.stamps.append(stamp_ns)
        exchange.reads_ns.append(read_ns)
        self.num_bytes += len(data)
        if (
            self.framing is Framing.CHUNKED
            and self.num_bytes <= MAX_RESPONSE_BYTES
            and len(data) >= 6
            and (data[-4:] != BLANK_LINE or data[-6:-4] == b"\r\n")  # an SSE event in CRLF, not a last chunk
        ):
            return
        self.look_for_end(exchange, data)

    def look_for_end(self, exchange: Exchange, data: bytes) -> None:
        """Decide by the framing whether the response is whole."""
        if self.num_bytes > MAX_RESPONSE_BYTES:
            self.finish(End.MALFORMED, f"the answer is longer than {MAX_RESPONSE_BYTES >> 20} MiB")
            return
        if self.framing is Framing.HEAD:
            head = data if len(exchange.chunks) == 1 else b"".join(exchange.chunks)
            if not head.startswith(b"HTTP/1."[: len(head)]):
                self.finish(End.MALFORMED, f"not an HTTP/1.x response: {head[:40]!r}")
                return
            head_end = head.find(BLANK_LINE)
            if head_end < 0 and b"\n\n" not in head and self.num_bytes <= MAX_HEAD_BYTES:
                return
            if head_end < 0:
                self.framing = (
                    Framing.COUNTED
                )  # bare line feeds, or no end: the framer knows what to make of it
                self.feed_framer(exchange)
                return
            self.framing = _framing_of(head[: head_end + 2])
            if self.framing is Framing.CHUNKED and not _could_end(head, head_end):
                return
        if self.framing is not Framing.UNTIL_EOF:
            self.feed_framer(exchange)

    def feed_framer(self, exchange: Exchange) -> None:
        """Give the framer what it has not seen."""
        pieces = exchange.chunks[self.num_framed :]
        self.num_framed = len(exchange.chunks)
        try:
            is_complete = self.framer.feed(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        except HttpSyntaxError as exc:
            self.finish(End.MALFORMED, str(exc))
            return
        if is_complete:
            is_reusable = self.framer.keep_alive and exchange.written_ns is not None
            self.is_persistent = is_reusable and self.transport.keeps_connections
            self.finish(End.COMPLETE, None)

    def on_eof(self, read_ns: int) -> None:
        """The peer closed in order."""
        assert self.exchange is not None
        error = None if self.exchange.chunks else self._no_answer("the peer closed the connection")
        self.finish(End.EOF, error, read_ns)

    def on_broken(self, reason: str) -> None:
        """The connection broke."""
        if self.exchange is None:
            self.close()
        elif self.state <= State.HANDSHAKING:
            self.finish(End.CONNECT_FAILED, reason)
        else:
            self.finish(End.RESET, reason if self.exchange.chunks else self._no_answer(reason))

    def _no_answer(self, reason: str) -> str:
        reused = self.exchange is not None and self.exchange.reused
        return f"{reason} without an answer{' (a kept-alive connection)' if reused else ''}"

    def finish(self, end: End, error: str | None, ended_ns: int | None = None) -> None:
        """End the exchange and rest, or close where the connection cannot carry another."""
        exchange = self.exchange
        assert exchange is not None
        exchange.ended = end
        exchange.error = error
        exchange.ended_ns = ended_ns or (exchange.reads_ns[-1] if end is End.COMPLETE else now_ns())
        self.exchange = None
        if end is End.COMPLETE and self.is_persistent:
            self.state = State.IDLE
            self.idle_since_ns = exchange.ended_ns
            self.transport.rest(self)
        else:
            self.close()
        self.transport.ended(exchange)

    def has_closed(self) -> bool:
        """Whether the peer closed a resting connection; any byte in it says that it cannot be used."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Close the socket and forget it."""
        if self.state is not State.CLOSED:
            self.transport.forget(self)
            self.state = State.CLOSED
            self.sock.close()


def _framing_of(head: bytes) -> Framing:
    if CHUNKED.search(head):
        return Framing.CHUNKED
    return Framing.COUNTED if COUNTED.search(head) else Framing.UNTIL_EOF


def _could_end(data: bytes, head_end: int) -> bool:
    return len(data) > head_end + len(BLANK_LINE) and data.endswith(BLANK_LINE)
