"""HTTP/1.1 over plain or TLS sockets on one epoll loop of our own: bytes out, bytes and stamps in.

Decides how a request gets its connection, when a response has ended by its framing, and which instant each
read is stamped with. It decides nothing about what an answer means, never retries, and never waits for a
connection: each request gets an idle one or a new one. Between two stamps of a live stream nothing is
parsed: a read whose last bytes could end the response is the only one that is looked into.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from enum import IntEnum

from loadgen.clock import SPIN_NS, STEP_NS, RealtimeOffset, now_ns, open_alarm
from loadgen.http1 import MAX_HEAD_BYTES, HttpSyntaxError, ResponseFramer
from loadgen.transport.base import End, Exchange, TransportConfig, TransportCounts
from loadgen.transport.sockets import (
    ANCILLARY_BYTES,
    POLL_BROKEN,
    POLL_IN,
    POLL_OUT,
    READ_BYTES,
    STAMP,
    errno_name,
    open_poller,
    open_socket,
    start_stamping,
)

REST_NS = 2_000_000  # before reuse: a server that closes after each answer needs a moment to do so
MAX_IDLE_NS = 4_000_000_000  # servers commonly close after 5 s, and a request sent at that moment is lost
MAX_RESPONSE_BYTES = 64 << 20
COARSE_WAIT_NS = 1_500_000  # without an alarm: poll's timeout has steps of a millisecond, the rest is spun
BLANK_LINE = b"\r\n\r\n"
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r\n]*chunked", re.IGNORECASE)
COUNTED = re.compile(rb"\r\ncontent-length:|\AHTTP/1\.[01] (?:1..|204|304)", re.IGNORECASE)

OnEnd = Callable[[Exchange], None]


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
        "idle_since_ns",
        "is_persistent",
        "num_bytes",
        "num_framed",
        "recvmsg",
        "sock",
        "state",
        "transport",
        "unsent",
    )

    def __init__(self, transport: RawTransport, sock: socket.socket) -> None:
        self.transport = transport
        self.sock = sock
        self.fd = sock.fileno()
        self.recvmsg = sock.recvmsg
        self.state = State.CONNECTING
        self.idle_since_ns = 0
        self.is_persistent = False
        self.exchange: Exchange | None = None
        self.unsent = memoryview(b"")

    def begin(self, exchange: Exchange, payload: bytes) -> None:
        """Take an exchange; its bytes leave as soon as the connection stands."""
        self.exchange = exchange
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
            if mask & POLL_OUT and self.state is State.WRITING:
                self.write()
            if mask & (POLL_IN | POLL_BROKEN) and self.state is not State.CLOSED:
                self.read()

    def finish_connect(self) -> None:
        """Learn how the connection attempt went."""
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.finish(End.CONNECT_FAILED, errno_name(OSError(code, os.strerror(code))))
            return
        self.on_connected()

    def on_connected(self) -> None:
        """The peer accepted: write."""
        assert self.exchange is not None
        self.exchange.connected_ns = now_ns()
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
                    exchange.written_ns = at_ns
        except BlockingIOError:
            self.watch(State.WRITING, POLL_IN | POLL_OUT)
            return
        except OSError:
            pass  # the peer may have answered before it stopped listening: what can be read decides
        self.watch(State.READING, POLL_IN)

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
        exchange = self.exchange
        if exchange is None:
            self.close()  # at rest: the peer closed, or sent what nobody asked for
        elif not data:
            self.on_eof(read_ns)
        else:
            self.keep(exchange, data, self.transport.stamp(ancillary, exchange, read_ns), read_ns)

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
            if head_end < 0:
                if self.num_bytes > MAX_HEAD_BYTES:
                    self.feed_framer(exchange)  # says what is wrong with it
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


class RawTransport:
    """Every connection of one load process, and the one place where it waits."""

    def __init__(self, config: TransportConfig, on_end: OnEnd) -> None:
        self._config = config
        self._connect = self._plain
        if config.target.scheme == "https":
            from loadgen.transport.tls import TlsConnection, client_context

            context = client_context(config.ca_file, verify=config.verify_tls)
            self._connect = lambda sock: TlsConnection(self, sock, context, config.target.host)
        self._on_end = on_end
        self.keeps_connections = not config.fresh_connections
        self._poller = open_poller()
        self._alarm = open_alarm()
        self._alarm_at_ns = -1
        if self._alarm is not None:
            self._poller.register(self._alarm.fd, POLL_IN)
        self._offset = RealtimeOffset()
        self.keeps_connections = not config.fresh_connections
        self._stamping = start_stamping()
        self.counts = TransportCounts(has_kernel_stamps=self._stamping is not None)
        self._connections: dict[int, Connection] = {}
        self._masks: dict[int, int] = {}
        self._idle: list[Connection] = []
        self._live: dict[int, Connection] = {}
        self._num_ended = 0
        self._head = self._render_head()

    def __repr__(self) -> str:
        return f"<RawTransport {len(self._live)} live, {len(self._idle)} idle>"

    def _plain(self, sock: socket.socket) -> Connection:
        return Connection(self, sock)

    def _render_head(self) -> bytes:
        target = self._config.target
        lines = [
            f"POST {target.path(self._config.path)} HTTP/1.1",
            f"Host: {target.authority}",
            "Content-Type: application/json",
            "Accept: text/event-stream, application/json",
            "User-Agent: bench",
            *(f"{name}: {value}" for name, value in self._config.headers),
        ]
        if not self.keeps_connections:
            lines.append("Connection: close")
        return "\r\n".join(lines).encode()

    def render(self, request_id: str, body: bytes) -> bytes:
        """The request as it goes out, head and body in one piece."""
        return b"%b\r\nX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            self._head,
            request_id.encode(),
            len(body),
            body,
        )

    def send(self, exchange: Exchange, payload: bytes) -> None:
        """Write on a rested connection, else open one; what goes wrong ends the exchange."""
        exchange.sent_ns = now_ns()
        connection = self._take_idle(exchange.sent_ns) if self.keeps_connections else None
        if connection is not None:
            exchange.reused = True
            self._live[exchange.index] = connection
            connection.begin(exchange, payload)
            connection.state = State.WRITING
            connection.write()
            return
        exchange.reused = False
        try:
            sock = open_socket(self._config.target, wants_stamps=self.counts.has_kernel_stamps)
        except OSError as exc:
            self._fail(exchange, exc)
            return
        try:
            sock.connect(self._config.target.address)
        except BlockingIOError:
            pass
        except OSError as exc:
            sock.close()
            self._fail(exchange, exc)
            return
        self.counts.num_connections += 1
        connection = self._connect(sock)
        connection.begin(exchange, payload)
        self._live[exchange.index] = connection
        self._connections[connection.fd] = connection
        self.watch(connection, POLL_OUT)

    def _fail(self, exchange: Exchange, error: OSError) -> None:
        exchange.ended = End.CONNECT_FAILED
        exchange.ended_ns = now_ns()
        exchange.error = errno_name(error)
        self.ended(exchange)

    def _take_idle(self, at_ns: int) -> Connection | None:
        """The connection that came to rest last, among those that have rested long enough."""
        idle = self._idle
        for position in range(len(idle) - 1, -1, -1):
            connection = idle[position]
            rested_ns = at_ns - connection.idle_since_ns
            if rested_ns < REST_NS:
                continue
            if rested_ns > MAX_IDLE_NS or connection.has_closed():
                connection.close()
                continue
            del idle[position]
            return connection
        return None

    def end(self, exchange: Exchange, end: End, error: str) -> None:
        """Give a live exchange up and close its connection."""
        self._live[exchange.index].finish(end, error)

    def wait(self, until_ns: int) -> bool:
        """Serve the sockets until the instant or until a request ends; say whether anything came."""
        has_come = False
        num_ended = self._num_ended
        poll, connections, counts = self._poller.poll, self._connections, self.counts
        timeout = self._timeout_s(until_ns)
        while True:
            events = poll(timeout)
            counts.num_wakeups += 1
            has_rung = False
            for fd, mask in events:
                connection = connections.get(fd)
                if connection is not None:
                    connection.on_events(mask)
                    has_come = True
                elif self._alarm is not None and fd == self._alarm.fd:
                    self._alarm.clear()
                    self._alarm_at_ns = -1
                    has_rung = True
            if self._num_ended != num_ended:
                return True
            if has_rung or timeout != -1:
                if now_ns() >= until_ns:
                    return has_come
                timeout = self._timeout_s(until_ns)

    def _timeout_s(self, until_ns: int) -> float:
        """How long the next poll may sleep: -1 with an alarm set, 0 to spin the last stretch."""
        left_ns = until_ns - now_ns()
        if self._alarm is None:
            return max(left_ns - COARSE_WAIT_NS, 0) // 1_000_000 / 1e3
        if left_ns <= SPIN_NS:
            return 0
        if self._alarm_at_ns != until_ns:
            self._alarm.set(until_ns - SPIN_NS)
            self._alarm_at_ns = until_ns
        return -1

    def stamp(self, ancillary: list[tuple[int, int, bytes]], exchange: Exchange, read_ns: int) -> int:
        """When the bytes arrived: the kernel's word, on our clock; without one, the read itself."""
        self.counts.num_reads += 1
        if not ancillary:
            exchange.stamp_source = "user"
            return read_ns
        seconds, nanoseconds = STAMP.unpack(ancillary[0][2])
        if not exchange.stamps:
            exchange.stamp_source = "kernel"
        stamp_ns: int = seconds * 1_000_000_000 + nanoseconds + self._offset.ns
        assert exchange.sent_ns is not None
        if exchange.sent_ns <= stamp_ns <= read_ns:
            return stamp_ns
        return self._odd_stamp(stamp_ns, exchange, read_ns)

    def _odd_stamp(self, stamp_ns: int, exchange: Exchange, read_ns: int) -> int:
        """A stamp before the request or after the read: noise of the pairing, or the wall clock was set."""
        if not exchange.sent_ns or not exchange.sent_ns - STEP_NS < stamp_ns < read_ns + STEP_NS:
            exchange.stamp_source = "user"
            self.check_clock()
        return read_ns

    def check_clock(self) -> None:
        """Pair CLOCK_REALTIME and CLOCK_MONOTONIC again."""
        self._offset.remeasure()
        self.counts.clock_drift_ns = self._offset.max_drift_ns
        self.counts.num_clock_steps = self._offset.num_steps

    def watch(self, connection: Connection, mask: int) -> None:
        """Have the poller report `mask` for the connection."""
        known = self._masks.get(connection.fd)
        if known is None:
            self._poller.register(connection.fd, mask)
        elif known != mask:
            self._poller.modify(connection.fd, mask)
        self._masks[connection.fd] = mask

    def rest(self, connection: Connection) -> None:
        """Keep a connection for a later request."""
        self._idle.append(connection)

    def ended(self, exchange: Exchange) -> None:
        """Hand a finished exchange over."""
        self._num_ended += 1
        self._live.pop(exchange.index, None)
        self.counts.num_bytes += sum(map(len, exchange.chunks))
        self._on_end(exchange)

    def forget(self, connection: Connection) -> None:
        """Take a connection that is being closed out of every list."""
        del self._connections[connection.fd]
        if self._masks.pop(connection.fd, None) is not None:
            self._poller.unregister(connection.fd)
        if connection.state is State.IDLE:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close every connection, the alarm and the poller."""
        for connection in list(self._connections.values()):
            connection.close()
        if self._alarm is not None:
            self._alarm.close()
        if self._stamping is not None:
            self._stamping.close()
        self._poller.close()
