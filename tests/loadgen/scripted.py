"""A server whose every answer is a function of the test: real sockets, one thread a connection."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

Answer = Callable[[socket.socket, bytes], bool]  # whether the connection carries another request


class ScriptedServer:
    """Listens until closed; `requests` holds every request as it was read, head and body."""

    def __init__(
        self, answer: Answer, *, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=512)
        self._answer = answer
        self._context = context
        self._sockets: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.num_connections = 0
        self.port: int = self._listener.getsockname()[1]
        scheme = "https" if context else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            self._sockets.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
                self._sockets.append(sock)
            while request := read_request(sock):
                self.requests.append(request)
                if not self._answer(sock, request):
                    break
            sock.close()

    def close(self) -> None:
        """Stop listening and drop every connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@contextlib.contextmanager
def serving(
    answer: Answer, *, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    """A scripted server until the block ends."""
    server = ScriptedServer(answer, host=host, context=context)
    try:
        yield server
    finally:
        server.close()


def read_request(sock: socket.socket) -> bytes:
    """One request, head and body; empty at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(None, 1)[0])
    while len(body) < length:
        body += sock.recv(65536)
    return head + b"\r\n\r\n" + body


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(text: str = " w", finish_reason: str | None = None) -> bytes:
    """One token event of a completions stream."""
    choice = {"index": 0, "text": text, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def stream(num_tokens: int) -> bytes:
    """A whole, chunked completions stream."""
    usage = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": num_tokens}}
    events = [
        *[token()] * (num_tokens - 1),
        token(finish_reason="length"),
        b"data: " + json.dumps(usage).encode() + b"\n\n",
        b"data: [DONE]\n\n",
    ]
    return HEAD + b"".join(map(chunk, events)) + LAST_CHUNK


def reset(sock: socket.socket) -> None:
    """Close so that the peer sees ECONNRESET."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
