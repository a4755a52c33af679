"""The raw transport: HTTP/1.1 over plain or TLS sockets on one epoll loop of our own.

Decides how a request gets its connection, how long to wait, and which instant each read is stamped with. It
decides nothing about what an answer means, never retries, and never waits for a connection: each request gets
one that has rested or a new one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from loadgen.clock import SPIN_NS, STEP_NS, RealtimeOffset, now_ns, open_alarm
from loadgen.transport.base import End, Exchange, TransportConfig, TransportCounts, identity_headers
from loadgen.transport.connection import Connection, State
from loadgen.transport.lookout import Lookout
from loadgen.transport.sockets import (
    POLL_IN,
    POLL_OUT,
    STAMP,
    Target,
    errno_name,
    open_poller,
    open_socket,
    start_stamping,
)

REST_NS = 2_000_000  # before reuse: a server that closes after each answer needs a moment to do so
MAX_IDLE_NS = 4_000_000_000  # servers commonly close after 5 s, and a request sent at that moment is lost
MAX_EVENTS = 1_023  # that epoll reports at once, as Python asks it
COARSE_WAIT_NS = 1_500_000  # without an alarm: poll's timeout has steps of a millisecond, the rest is spun

OnEnd = Callable[[Exchange], None]


@dataclass(slots=True, eq=False)
class Home:
    """One target: what each request to it begins with, its resting connections, how many requests it has."""

    target: Target
    head: bytes
    idle: list[Connection] = field(default_factory=list)
    num_live: int = 0


class RawTransport:
    """Every connection of one load process, to one target or several, and the one place where it waits."""

    def __init__(self, config: TransportConfig, on_end: OnEnd) -> None:
        self._config = config
        self._on_end = on_end
        self._homes = [Home(target, self._render_head(target)) for target in config.targets]
        if any(home.target.scheme == "https" for home in self._homes):
            from loadgen.transport.tls import client_context

            self._tls = client_context(config.ca_file, verify=config.verify_tls)
        self.keeps_connections = not config.fresh_connections
        self._poller = open_poller()
        self._alarm = open_alarm()
        self._alarm_at_ns = -1
        if self._alarm is not None:
            self._poller.register(self._alarm.fd, POLL_IN)
        self._offset = RealtimeOffset()
        self._stamping = start_stamping()
        self.counts = TransportCounts(has_kernel_stamps=self._stamping is not None)
        self._connections: dict[int, Connection] = {}
        self._masks: dict[int, int] = {}
        self._live: dict[int, Connection] = {}
        self._num_ended = 0
        self.lookout = Lookout()
        self.begun_ns = 0  # an instant before the read that is made next
        self._first_stamp_ns = 0  # of the reads since the last poll; 0 without one

    def __repr__(self) -> str:
        live = "+".join(str(home.num_live) for home in self._homes)
        return f"<RawTransport {live} live, {sum(len(home.idle) for home in self._homes)} idle>"

    def _render_head(self, target: Target) -> bytes:
        lines = [
            f"POST {target.path(self._config.path)} HTTP/1.1",
            f"Host: {target.authority}",
            "Content-Type: application/json",
            "Accept: text/event-stream, application/json",
            "User-Agent: bench",
            *(f"{name}: {value}" for name, value in self._config.headers),
            *(["Connection: close"] if self._config.fresh_connections else []),
        ]
        return "".join(f"{line}\r\n" for line in lines).encode()

    def render(self, request_id: str, body: bytes, session: int = -1) -> bytes:
        """The request as it goes out, in one piece; of several targets, without the head of one."""
        lines = (f"{name}: {value}\r\n" for name, value in identity_headers(request_id, session).items())
        head = self._homes[0].head if len(self._homes) == 1 else b""
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, "".join(lines).encode(), len(body), body)

    def _choose(self, exchange: Exchange) -> Home:
        """Where a request goes: by turns of the session (it stays) or the request, or to the least busy."""
        if self._config.prefers_least_busy:
            return min(self._homes, key=attrgetter("num_live"))
        turn = exchange.index if exchange.session < 0 else exchange.session
        return self._homes[turn % len(self._homes)]

    def send(self, exchange: Exchange, payload: bytes) -> None:
        """Write on a rested connection, else open one; what goes wrong ends the exchange."""
        exchange.sent_ns = now_ns()
        home = self._homes[0]
        if len(self._homes) > 1:
            home = self._choose(exchange)
            payload = home.head + payload
        connection = self._take_idle(home, exchange.sent_ns) if self.keeps_connections else None
        if connection is not None:
            exchange.reused = True
            self._begin(connection, exchange, payload)
            connection.state = State.WRITING
            connection.write()
            return
        exchange.reused = False
        try:
            sock = open_socket(home.target, wants_stamps=self.counts.has_kernel_stamps)
        except OSError as exc:
            self._fail(exchange, exc)
            return
        try:
            sock.connect(home.target.address)
        except BlockingIOError:
            pass
        except OSError as exc:
            sock.close()
            self._fail(exchange, exc)
            return
        self.counts.num_connections += 1
        exchange.write_lag_ns = now_ns() - exchange.sent_ns
        connection = self._connection(sock, home)
        self._begin(connection, exchange, payload)
        self._connections[connection.fd] = connection
        self.watch(connection, POLL_OUT)

    def _connection(self, sock: socket.socket, home: Home) -> Connection:
        if home.target.scheme == "https":
            from loadgen.transport.tls import TlsConnection

            return TlsConnection(self, sock, home, self._tls)
        return Connection(self, sock, home)

    def _begin(self, connection: Connection, exchange: Exchange, payload: bytes) -> None:
        self._live[exchange.index] = connection
        connection.home.num_live += 1
        connection.begin(exchange, payload)

    def _fail(self, exchange: Exchange, error: OSError) -> None:
        exchange.ended = End.CONNECT_FAILED
        exchange.ended_ns = now_ns()
        exchange.error = errno_name(error)
        self.ended(exchange)

    def _take_idle(self, home: Home, at_ns: int) -> Connection | None:
        """The connection that came to rest last, among those that have rested long enough."""
        idle = home.idle
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
        poll, connections, counts, lookout = self._poller.poll, self._connections, self.counts, self.lookout
        timeout = self._timeout_s(until_ns)
        while True:
            self.begun_ns = asked_ns = now_ns()
            events = poll(0)
            if events or timeout == 0:
                lookout.looked(asked_ns, is_whole=len(events) < MAX_EVENTS)
            else:
                events = poll(timeout)
                lookout.woke(asked_ns)
            counts.num_wakeups += 1
            self._first_stamp_ns = 0
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
            if self._first_stamp_ns:
                lookout.learn(self._first_stamp_ns)
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
            self._first_stamp_ns = self._first_stamp_ns or stamp_ns
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
        self.counts.clock_stepped_ns = self._offset.stepped_ns
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
        connection.home.idle.append(connection)

    def ended(self, exchange: Exchange) -> None:
        """Hand a finished exchange over."""
        self._num_ended += 1
        if (connection := self._live.pop(exchange.index, None)) is not None:
            connection.home.num_live -= 1
        self.counts.num_bytes += sum(map(len, exchange.chunks))
        self._on_end(exchange)

    def forget(self, connection: Connection) -> None:
        """Take a connection that is being closed out of every list."""
        del self._connections[connection.fd]
        if self._masks.pop(connection.fd, None) is not None:
            self._poller.unregister(connection.fd)
        if connection.state is State.IDLE:
            connection.home.idle.remove(connection)

    def close(self) -> None:
        """Close every connection, the alarm and the poller."""
        for connection in list(self._connections.values()):
            connection.close()
        if self._alarm is not None:
            self._alarm.close()
        if self._stamping is not None:
            self._stamping.close()
        self._poller.close()
        self.lookout.close()
