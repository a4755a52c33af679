"""A server whose every write is due at a known instant and stamped with CLOCK_MONOTONIC on both sides.

One thread, one epoll, one heap of due writes; a short spin before each makes it punctual to microseconds. It
judges itself: the log holds when each event was due and when it was written, so that a client's error
counts only where the server was on time. The arrival of a request is the kernel's stamp where there is one.
It understands as much of HTTP as load generators send, and says nothing about models.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import heapq
import io
import json
import os
import re
import select
import socket
import stat
import struct
import sys
from dataclasses import dataclass
from time import CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime_ns

import numpy as np

from loadgen.golden.answers import MODEL, json_response, read_request, stream_bytes, whole_body
from loadgen.golden.log import StreamLog, log_arrays
from loadgen.golden.pace import GoldenConfig, Pace, Write

SPIN_NS = 80_000
MAX_WRITES_PER_TURN = 32
REALTIME_PRIORITY = 20  # above the client's: the judge must not wait for whom it judges
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("qq")
CONTROL_BYTES = socket.CMSG_SPACE(TIMESPEC.size)
READ_BYTES = 1 << 16

CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
REQUEST_ID = re.compile(rb"\r\nx-request-id: *([^\r]+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


@dataclass(slots=True, eq=False)
class Connection:
    """One accepted socket: bytes read and not yet understood, bytes the kernel would not take."""

    sock: socket.socket
    fd: int
    inbox: bytes = b""
    outbox: bytes = b""
    arrived_ns: int = 0
    is_open: bool = True
    is_busy: bool = False
    closes: bool = False


@dataclass(slots=True, eq=False)
class Stream:
    """One answer under way; `write` is the one to come, of events from `next` on, or the tail after them."""

    connection: Connection
    events: tuple[bytes, ...]
    tail: bytes
    log: StreamLog
    write: Write
    next: int = 0


class GoldenServer:
    """Serves until the process ends; `serve()` is the loop."""

    def __init__(self, config: GoldenConfig, listener: socket.socket) -> None:
        self.config = config
        self.pace = Pace(config)
        self.listener = listener
        self.epoll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.due: list[tuple[int, int, Stream]] = []
        self.log: list[StreamLog] = []
        self.num_requests = 0
        listener.setblocking(False)
        # Accepted sockets inherit the option, so that the first request on a connection is stamped too.
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.epoll.register(listener.fileno(), select.EPOLLIN)

    def serve(self, stdin_fd: int | None = None) -> None:
        """Serve until the process is ended, or until `stdin_fd` reaches end of file."""
        if stdin_fd is not None:
            self.epoll.register(stdin_fd, select.EPOLLIN)
        while True:
            self._sleep()
            for fd, mask in self.epoll.poll(0, 1):  # one at a time: a due write waits for no second request
                if fd == stdin_fd:
                    return
                if fd == self.listener.fileno():
                    self._accept()
                elif (connection := self.connections.get(fd)) is not None:
                    self._serve_socket(connection, mask)
            self._write_due()

    def _sleep(self) -> None:
        # select() takes microseconds where epoll.poll() rounds up to whole milliseconds.
        if not self.due:
            select.select([self.epoll], [], [])
        elif (wait_ns := self.due[0][0] - SPIN_NS - clock_gettime_ns(CLOCK_MONOTONIC)) > 0:
            select.select([self.epoll], [], [], wait_ns * 1e-9)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = self.listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock, sock.fileno())
            self.connections[connection.fd] = connection
            self.epoll.register(connection.fd, select.EPOLLIN)

    def _serve_socket(self, connection: Connection, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._flush(connection)
        if connection.is_open and mask & ~select.EPOLLOUT and self._receive(connection):
            self._answer_next(connection)

    def _receive(self, connection: Connection) -> bool:
        try:
            data, control, _, _ = connection.sock.recvmsg(READ_BYTES, CONTROL_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return False
        connection.arrived_ns = _arrival_ns(control)
        connection.inbox += data
        return not connection.is_busy

    def _close(self, connection: Connection) -> None:
        connection.is_open = False
        self.connections.pop(connection.fd, None)
        connection.sock.close()

    def _answer_next(self, connection: Connection) -> None:
        head, blank, rest = connection.inbox.partition(b"\r\n\r\n")
        if not blank:
            return
        if CHUNKED.search(head) or head.count(b" ") < 2:
            connection.inbox, connection.closes = b"", True
            refusal = {"error": {"message": "a request line and a content-length are due"}}
            self.finish(connection, json_response(refusal, status="411 Length Required"))
            return
        length = CONTENT_LENGTH.search(head)
        num_bytes = int(length[1]) if length else 0
        if len(rest) < num_bytes:
            return
        connection.inbox = rest[num_bytes:]
        connection.closes = CLOSE.search(head) is not None
        self._answer(connection, head, rest[:num_bytes])

    def _answer(self, connection: Connection, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        if path.endswith(b"/completions"):
            request_id = found[1] if (found := REQUEST_ID.search(head)) else b""
            self.num_requests += 1
            try:
                self.begin(connection, request_id, body, is_chat=b"chat" in path)
            except (ValueError, TypeError, KeyError, AttributeError) as exc:
                message = {"error": {"message": f"bad request: {exc}", "type": "invalid_request_error"}}
                self.finish(connection, json_response(message, status="400 Bad Request"))
        elif path == b"/health":
            self.finish(connection, json_response({"status": "ok"}))
        elif path == b"/v1/models":
            models = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "bench"}]}
            self.finish(connection, json_response(models))
        elif path == b"/log":
            self.finish(connection, self._take_log())
        else:
            missing = {"error": {"message": f"no such path: {path.decode('latin-1')}"}}
            self.finish(connection, json_response(missing, status="404 Not Found"))

    def begin(self, connection: Connection, request_id: bytes, body: bytes, *, is_chat: bool) -> None:
        """Start the answer to one request: the head now, every event on its schedule."""
        shape, is_stream = read_request(body, is_chat, self.config.tokens_per_event)
        connection.is_busy = True
        due_ns = self.pace.first_due_ns(connection.arrived_ns)
        if is_stream:
            answer = stream_bytes(shape)
            self.send(connection, answer.head)
            events, tail = answer.tokens, answer.tail
        else:
            due_ns += self.config.gap_ns * (max(shape.num_tokens, 1) - 1)
            events, tail = (whole_body(shape),), b""
        write = self.pace.next_write(due_ns, len(events))
        stream = Stream(connection, events, tail, StreamLog(request_id, connection.arrived_ns), write)
        heapq.heappush(self.due, (write.due_ns, id(stream), stream))

    def _write_due(self) -> None:
        due = self.due
        for _ in range(MAX_WRITES_PER_TURN):
            if not due or due[0][0] > clock_gettime_ns(CLOCK_MONOTONIC):
                return
            _, order, stream = due[0]
            if (next_due_ns := self._write_next(stream)) is None:
                heapq.heappop(due)
            else:
                heapq.heapreplace(due, (next_due_ns, order, stream))

    def _write_next(self, stream: Stream) -> int | None:
        """Write what is due of the stream; return when the next write is, None after the last."""
        num_left = len(stream.events) - stream.next
        if num_left == 0 or not stream.connection.is_open:
            self._end_stream(stream, stream.tail)
            return None
        write, tail_ns = stream.write, self.config.tail_ns
        start, stream.next = stream.next, stream.next + write.num_events
        num_left -= write.num_events
        is_end = num_left == 0 and tail_ns is None
        data = stream.events[start]
        if write.num_events > 1:
            data = b"".join(stream.events[start : stream.next])
        if is_end:
            data += stream.tail
        before_ns = clock_gettime_ns(CLOCK_MONOTONIC)
        self.send(stream.connection, data)
        after_ns = clock_gettime_ns(CLOCK_MONOTONIC)
        log = stream.log
        for _ in range(write.num_events):
            log.due_ns.append(write.due_ns)
            log.before_ns.append(before_ns)
            log.after_ns.append(after_ns)
        if is_end:
            self._end_stream(stream, b"")
            return None
        if num_left == 0:
            return write.due_ns + (tail_ns or 0)
        stream.write = self.pace.next_write(write.following_ns, num_left)
        return stream.write.due_ns

    def _end_stream(self, stream: Stream, rest: bytes) -> None:
        self.log.append(stream.log)
        stream.connection.is_busy = False
        if stream.connection.is_open:
            self.finish(stream.connection, rest)

    def finish(self, connection: Connection, data: bytes) -> None:
        self.send(connection, data)
        if connection.closes and not connection.outbox:
            self._close(connection)
        elif connection.inbox:
            self._answer_next(connection)

    def send(self, connection: Connection, data: bytes) -> None:
        if connection.outbox:
            connection.outbox += data
            return
        try:
            num_sent = connection.sock.send(data)
        except BlockingIOError:
            num_sent = 0
        except OSError:
            self._close(connection)
            return
        if num_sent < len(data):
            connection.outbox = data[num_sent:]
            self.epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, connection: Connection) -> None:
        data, connection.outbox = connection.outbox, b""
        self.send(connection, data)
        if connection.is_open and not connection.outbox:
            self.epoll.modify(connection.fd, select.EPOLLIN)
            if connection.closes and not connection.is_busy:
                self._close(connection)

    def _take_log(self) -> bytes:
        log, self.log = self.log, []
        buffer = io.BytesIO()
        np.savez(buffer, **log_arrays(log))
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {buffer.tell()}\r\n\r\n"
        return head.encode() + buffer.getvalue()


def _arrival_ns(control: list[tuple[int, int, bytes]]) -> int:
    """Return the kernel's stamp of the bytes just read as CLOCK_MONOTONIC ns, else the instant of now."""
    now_ns = clock_gettime_ns(CLOCK_MONOTONIC)
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack_from(data)
            stamp_ns: int = seconds * 1_000_000_000 + nanoseconds
            return min(now_ns, stamp_ns - clock_gettime_ns(CLOCK_REALTIME) + now_ns)
    return now_ns


def run_server(server: GoldenServer, args: argparse.Namespace) -> None:
    """Announce the server on stdout as one JSON line and serve until stdin closes or the process is ended.

    args: those of `add_common_flags`.
    """
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    if args.realtime:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REALTIME_PRIORITY))
    # Each sleep ends within a microsecond of its instant, not the kernel's default of fifty.
    with contextlib.suppress(OSError), open("/proc/self/timerslack_ns", "w") as slack:
        slack.write("1")
    gc.freeze()
    gc.disable()
    print(json.dumps({"port": server.listener.getsockname()[1], "pid": os.getpid()}), flush=True)
    server.serve(sys.stdin.fileno() if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode) else None)


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket, IPv4 or IPv6 by the form of `host`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=4096)


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every known server takes."""
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cpu", type=int, help="pin the process to this processor")
    parser.add_argument("--realtime", action="store_true", help="ask to run before all other work")


def main() -> None:
    """Run the golden server."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    parser.add_argument("--ttft-ms", type=float, default=20.0)
    parser.add_argument("--gap-ms", type=float, default=10.0)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--in-steps", action="store_true", help="write the tokens of all streams in a row")
    parser.add_argument("--jitter", type=float, default=0.0, help="sigma of lognormal TTFT and gaps")
    parser.add_argument("--seed", type=int, default=0, help="of the jitter")
    parser.add_argument("--events-per-write", type=int, default=1)
    parser.add_argument("--buffer-ms", type=float, default=0.0, help="flush that long after an event")
    parser.add_argument("--tail-ms", type=float, default=1.0, help="usage and [DONE] after the last token")
    parser.add_argument("--tail-joined", action="store_true", help="in the write of the last token")
    args = parser.parse_args()
    config = GoldenConfig(
        ttft_ns=round(args.ttft_ms * 1e6),
        gap_ns=round(args.gap_ms * 1e6),
        tokens_per_event=args.tokens_per_event,
        in_steps=args.in_steps,
        jitter=args.jitter,
        seed=args.seed,
        events_per_write=args.events_per_write,
        buffer_ns=round(args.buffer_ms * 1e6),
        tail_ns=None if args.tail_joined else round(args.tail_ms * 1e6),
    )
    run_server(GoldenServer(config, listen(args.host, args.port)), args)


if __name__ == "__main__":
    main()
