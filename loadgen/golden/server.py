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
from array import array
from dataclasses import dataclass, field
from time import CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.golden.answers import MODEL, AnswerShape, json_response, stream_bytes, whole_body

SPIN_NS = 80_000
MAX_WRITES_PER_TURN = 32
TAIL_DELAY_NS = 1_000_000
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("qq")
CONTROL_BYTES = socket.CMSG_SPACE(TIMESPEC.size)
READ_BYTES = 1 << 16

CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
REQUEST_ID = re.compile(rb"\r\nx-request-id: *([^\r]+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenConfig:
    """When the events of an answer are due, counted from the arrival of its request.

    in_steps: due instants wait for the next multiple of the gap, so that the tokens of all streams leave one
    behind the other as from an engine that works in steps; else each stream keeps a phase of its own.
    """

    ttft_ns: int = 20_000_000
    gap_ns: int = 10_000_000
    tokens_per_event: int = 1
    in_steps: bool = False


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
class StreamLog:
    """What happened to one answer; `before_ns[i]` and `after_ns[i]` enclose the write of token event i."""

    request_id: bytes
    arrived_ns: int
    first_due_ns: int
    before_ns: array[int] = field(default_factory=lambda: array("q"))
    after_ns: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True, eq=False)
class Stream:
    """One answer under way; the last of its events is the tail, which holds no token."""

    connection: Connection
    events: tuple[bytes, ...]
    log: StreamLog
    next: int = 0


class GoldenServer:
    """Serves until the process ends; `serve()` is the loop."""

    def __init__(self, config: GoldenConfig, listener: socket.socket) -> None:
        self.config = config
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
        due_ns = connection.arrived_ns + self.config.ttft_ns
        if self.config.in_steps:
            due_ns += -due_ns % self.config.gap_ns
        if is_stream:
            answer = stream_bytes(shape)
            self.send(connection, answer.head)
            events = (*answer.tokens, answer.tail)
        else:
            due_ns += self.config.gap_ns * (max(shape.num_tokens, 1) - 1)
            events = (whole_body(shape), b"")
        stream = Stream(connection, events, StreamLog(request_id, connection.arrived_ns, due_ns))
        heapq.heappush(self.due, (due_ns, id(stream), stream))

    def _write_due(self) -> None:
        due = self.due
        for _ in range(MAX_WRITES_PER_TURN):
            if not due or due[0][0] > clock_gettime_ns(CLOCK_MONOTONIC):
                return
            due_ns, order, stream = due[0]
            num_left = self._write_next(stream)
            if num_left == 0:
                heapq.heappop(due)
            else:
                gap_ns = self.config.gap_ns
                due_ns += gap_ns if num_left > 1 else min(gap_ns, TAIL_DELAY_NS)
                heapq.heapreplace(due, (due_ns, order, stream))

    def _write_next(self, stream: Stream) -> int:
        """Write the next event of the stream; return how many are left."""
        data = stream.events[stream.next]
        stream.next += 1
        num_left = len(stream.events) - stream.next
        if num_left == 0 or not stream.connection.is_open:
            self._end_stream(stream, data)
            return 0
        before_ns = clock_gettime_ns(CLOCK_MONOTONIC)
        self.send(stream.connection, data)
        stream.log.after_ns.append(clock_gettime_ns(CLOCK_MONOTONIC))
        stream.log.before_ns.append(before_ns)
        return num_left

    def _end_stream(self, stream: Stream, tail: bytes) -> None:
        self.log.append(stream.log)
        stream.connection.is_busy = False
        if stream.connection.is_open:
            self.finish(stream.connection, tail)

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
        np.savez(buffer, gap_ns=np.int64(self.config.gap_ns), **log_arrays(log))
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {buffer.tell()}\r\n\r\n"
        return head.encode() + buffer.getvalue()


def read_request(body: bytes, is_chat: bool, tokens_per_event: int) -> tuple[AnswerShape, bool]:
    """Return the shape of the answer that a request body asks for, and whether it is to be streamed."""
    asked = json.loads(body)
    num_tokens = asked.get("max_completion_tokens") or asked.get("max_tokens", 16)
    if is_chat:
        prompt_tokens = sum(len(message["content"].split()) for message in asked["messages"])
    else:
        prompt = asked["prompt"]
        prompt_tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
    shape = AnswerShape(
        is_chat=is_chat,
        num_tokens=int(num_tokens),
        tokens_per_event=tokens_per_event,
        prompt_tokens=prompt_tokens,
        has_usage=bool((asked.get("stream_options") or {}).get("include_usage")),
    )
    return shape, bool(asked.get("stream"))


def log_arrays(log: list[StreamLog]) -> dict[str, Any]:
    """Return the log as flat arrays: one value per request, and `before_ns`, `after_ns` one per event."""
    singles = {name: [getattr(entry, name) for entry in log] for name in ("arrived_ns", "first_due_ns")}
    return {
        "request_id": np.array([entry.request_id for entry in log], dtype=np.bytes_),
        "num_events": np.array([len(entry.before_ns) for entry in log], dtype=np.int64),
        **{name: np.array(values, dtype=np.int64) for name, values in singles.items()},
        "before_ns": _joined([entry.before_ns for entry in log]),
        "after_ns": _joined([entry.after_ns for entry in log]),
    }


def _joined(arrays: list[array[int]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *(np.frombuffer(a, dtype=np.int64) for a in arrays)])


def _arrival_ns(control: list[tuple[int, int, bytes]]) -> int:
    """Return the kernel's stamp of the bytes just read as CLOCK_MONOTONIC ns, else the instant of now."""
    now_ns = clock_gettime_ns(CLOCK_MONOTONIC)
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack_from(data)
            stamp_ns: int = seconds * 1_000_000_000 + nanoseconds
            return min(now_ns, stamp_ns - clock_gettime_ns(CLOCK_REALTIME) + now_ns)
    return now_ns


def run_server(server: GoldenServer, *, cpu: int | None) -> None:
    """Announce the server on stdout as one JSON line and serve until stdin closes or the process is ended."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
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


def main() -> None:
    """Run the golden server."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    parser.add_argument("--ttft-ms", type=float, default=20.0)
    parser.add_argument("--gap-ms", type=float, default=10.0)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--in-steps", action="store_true", help="write the tokens of all streams in a row")
    args = parser.parse_args()
    config = GoldenConfig(
        ttft_ns=round(args.ttft_ms * 1e6),
        gap_ns=round(args.gap_ms * 1e6),
        tokens_per_event=args.tokens_per_event,
        in_steps=args.in_steps,
    )
    run_server(GoldenServer(config, listen(args.host, args.port)), cpu=args.cpu)


if __name__ == "__main__":
    main()
