"""What can go wrong with an answer: each fault by name, as the bytes, pauses and closes it is made of.

A fault only acts; what a client should make of it stands in the test that uses it. Unless the fault says
otherwise the answer is a chunked completions stream: one event a token, a finish reason, usage and [DONE].
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

PAUSE_S = 0.002
FOREVER_S = 3600.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HEAD_TO_CLOSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
HTML = b"<html><body><h1>It works!</h1></body></html>"


@dataclass(slots=True, kw_only=True)
class Wire:
    """One request and the connection to answer it on; whoever ends the connection clears `keeps_alive`."""

    writer: asyncio.StreamWriter
    num_tokens: int
    prompt_tokens: int
    keeps_alive: bool = True

    async def send(self, *pieces: bytes, pause_s: float = PAUSE_S) -> None:
        """Write each piece with a send() of its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(pause_s)

    async def send_events(self, *events: bytes) -> None:
        """Write each event as a chunk and a send() of its own."""
        await self.send(*(chunk(event) for event in events))

    def close(self) -> None:
        """End the connection cleanly."""
        self.keeps_alive = False
        self.writer.close()

    def reset(self) -> None:
        """Break the connection: the client sees ECONNRESET."""
        self.keeps_alive = False
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def tokens(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Return the token events from start to stop; the very last carries the finish reason."""
        last = self.num_tokens - 1
        stop = self.num_tokens if stop is None else stop
        return [text_event(" w", "length" if i == last else None) for i in range(start, stop)]

    def usage(self) -> bytes:
        """Return the usage event."""
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.num_tokens}
        return event({"choices": [], "usage": counts | {"total_tokens": sum(counts.values())}})

    def events(self) -> list[bytes]:
        """Return every event of a proper answer."""
        return [*self.tokens(), self.usage(), DONE]


Fault = Callable[[Wire], Awaitable[None]]
FAULTS: dict[str, Fault] = {}
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Frame data as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: dict[str, Any]) -> bytes:
    """Render one SSE event."""
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def text_event(text: str, finish_reason: str | None = None) -> bytes:
    """Render one token event."""
    choice = {"index": 0, "text": text, "finish_reason": finish_reason}
    return event({"id": "cmpl-faulty", "object": "text_completion", "choices": [choice]})


def whole(status: str, body: bytes, kind: str = "application/json", extra: bytes = b"") -> bytes:
    """Render an answer with a content length."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + extra + b"\r\n" + body


def fault(act: Fault) -> Fault:
    """Register a fault under the name of its function."""
    FAULTS[act.__name__] = act
    return act


def _status(code: int, reason: str, extra: bytes = b"") -> None:
    async def answer(wire: Wire) -> None:
        body = json.dumps({"error": {"message": f"no luck: {reason}", "code": code}}).encode()
        await wire.send(whole(f"{code} {reason}", body, extra=extra))

    FAULTS[f"status_{code}"] = answer


_status(400, "Bad Request")
_status(404, "Not Found")
_status(422, "Unprocessable Entity")
_status(429, "Too Many Requests", b"retry-after: 7\r\n")
_status(500, "Internal Server Error")
_status(503, "Service Unavailable")
_status(307, "Temporary Redirect", b"location: http://127.0.0.1:9/elsewhere\r\n")


@fault
async def html_502(wire: Wire) -> None:
    await wire.send(whole("502 Bad Gateway", HTML, "text/html"))


@fault
async def html_200(wire: Wire) -> None:
    await wire.send(whole("200 OK", HTML, "text/html"))


@fault
async def no_content(wire: Wire) -> None:
    await wire.send(b"HTTP/1.1 204 No Content\r\n\r\n")


@fault
async def reset_before_head(wire: Wire) -> None:
    wire.reset()


@fault
async def close_before_head(wire: Wire) -> None:
    wire.close()


@fault
async def close_inside_head(wire: Wire) -> None:
    await wire.send(HEAD[:30])
    wire.close()


@fault
async def reset_midway(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens(stop=3))
    wire.reset()


@fault
async def truncated(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens(stop=3))
    await wire.send(LAST_CHUNK)


@fault
async def truncated_then_done(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens(stop=3), DONE)
    await wire.send(LAST_CHUNK)


@fault
async def truncated_by_close(wire: Wire) -> None:
    await wire.send(HEAD_TO_CLOSE, *wire.tokens(stop=3))
    wire.close()


@fault
async def close_inside_chunk(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens(stop=3))
    await wire.send(chunk(wire.tokens()[3])[:40])
    wire.close()


@fault
async def close_short_of_length(wire: Wire) -> None:
    await wire.send(whole("200 OK", b"{" + b" " * 500, "application/json")[:-200])
    wire.close()


@fault
async def keep_alive_broken(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.events())
    wire.writer.write(LAST_CHUNK)
    wire.close()


@fault
async def connection_close(wire: Wire) -> None:
    await wire.send(HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    await wire.send_events(*wire.events())
    await wire.send(LAST_CHUNK)
    wire.close()


@fault
async def close_delimited(wire: Wire) -> None:
    await wire.send(HEAD_TO_CLOSE, *wire.events())
    wire.close()


@fault
async def error_event(wire: Wire) -> None:
    await wire.send(HEAD)
    failure = event({"error": {"message": "input is longer than the context", "code": 400}})
    await wire.send_events(*wire.tokens(stop=2), failure, DONE)
    await wire.send(LAST_CHUNK)


@fault
async def error_body(wire: Wire) -> None:
    await wire.send(whole("200 OK", b'{"error": {"message": "engine is dead"}}'))


@fault
async def missing_done(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens(), wire.usage())
    await wire.send(LAST_CHUNK)


@fault
async def missing_finish_reason(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*[text_event(" w")] * wire.num_tokens, wire.usage(), DONE)
    await wire.send(LAST_CHUNK)


@fault
async def missing_finish_reason_and_usage(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*[text_event(" w")] * wire.num_tokens, DONE)
    await wire.send(LAST_CHUNK)


@fault
async def ping_forever(wire: Wire) -> None:
    await wire.send(HEAD)
    await _ping_forever(wire)


@fault
async def stall_with_pings(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens(stop=3))
    await _ping_forever(wire)


async def _ping_forever(wire: Wire) -> None:
    while not wire.writer.is_closing():
        await wire.send(chunk(b": ping\n\n"), pause_s=0.05)


@fault
async def stall(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens(stop=3))
    await asyncio.sleep(FOREVER_S)


@fault
async def stall_before_done(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens())
    await asyncio.sleep(FOREVER_S)


@fault
async def no_first_token(wire: Wire) -> None:
    await wire.send(HEAD)
    await asyncio.sleep(FOREVER_S)


@fault
async def no_answer(wire: Wire) -> None:
    del wire
    await asyncio.sleep(FOREVER_S)


@fault
async def tokens_forever(wire: Wire) -> None:
    await wire.send(HEAD)
    while not wire.writer.is_closing():
        await wire.send(chunk(text_event(" w")), pause_s=0.02)


@fault
async def garbage(wire: Wire) -> None:
    await wire.send(bytes(range(256)) * 4)
    wire.close()


@fault
async def invalid_json(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens(stop=2), b'data: {"choices": [{"text": \n\n', *wire.tokens(2), DONE)
    await wire.send(LAST_CHUNK)


@fault
async def invalid_chunk_size(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens(stop=2))
    await wire.send(b"xyz\r\n" + wire.tokens()[2] + b"\r\n")
    await asyncio.sleep(FOREVER_S)


@fault
async def chunk_extensions(wire: Wire) -> None:
    await wire.send(HEAD, *(chunk(e).replace(b"\r\n", b';x="y;z"\r\n', 1) for e in wire.events()), LAST_CHUNK)


@fault
async def trailers(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.events())
    await wire.send(b"0\r\nx-took: 3\r\n", b"x-more: 4\r\n\r\n")


@fault
async def huge_line(wire: Wire) -> None:
    await wire.send(HEAD)
    padding = event(
        {"padding": "x" * 1_000_000, "choices": [{"index": 0, "text": " w", "finish_reason": None}]}
    )
    await wire.send_events(padding, *wire.tokens(1), wire.usage(), DONE)
    await wire.send(LAST_CHUNK)


@fault
async def utf8_split(wire: Wire) -> None:
    body = text_event("中") + b"".join([*wire.tokens(1), wire.usage(), DONE])
    cut = body.index("中".encode()) + 1
    await wire.send(HEAD, chunk(body[:cut]), chunk(body[cut:]), LAST_CHUNK)


@fault
async def crlf(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*(e.replace(b"\n", b"\r\n") for e in wire.events()))
    await wire.send(LAST_CHUNK)


@fault
async def cr(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*(e.replace(b"\n", b"\r") for e in wire.events()))
    await wire.send(LAST_CHUNK)


@fault
async def multi_line_data(wire: Wire) -> None:
    await wire.send(HEAD)
    split = (e.replace(b'{"id"', b'{\ndata: "id"') for e in wire.tokens())
    await wire.send_events(*split, wire.usage(), DONE)
    await wire.send(LAST_CHUNK)


@fault
async def every_field(wire: Wire) -> None:
    await wire.send(HEAD)
    first, *others = (e.replace(b"data: ", b"data:") for e in wire.events())
    preface = b"\xef\xbb\xbf: hello\nretry: 10\nid: 1\nevent: message\n"
    await wire.send_events(preface + first, *(b"event: message\nid\nunknown: x\n" + e for e in others))
    await wire.send(LAST_CHUNK)


@fault
async def coalesced(wire: Wire) -> None:
    await wire.send(HEAD + b"".join(chunk(e) for e in wire.events()) + LAST_CHUNK)


@fault
async def split_events(wire: Wire) -> None:
    body = b"".join(chunk(e) for e in wire.events()) + LAST_CHUNK
    await wire.send(HEAD, *(body[i : i + 37] for i in range(0, len(body), 37)))


@fault
async def early_role(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
    await asyncio.sleep(0.1)
    await wire.send_events(*wire.events())
    await wire.send(LAST_CHUNK)


@fault
async def empty_text(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.tokens(stop=2), text_event(""), *wire.tokens(2), wire.usage(), DONE)
    await wire.send(LAST_CHUNK)


@fault
async def not_streamed(wire: Wire) -> None:
    choice = {"index": 0, "text": " w" * wire.num_tokens, "finish_reason": "length"}
    usage = {"prompt_tokens": wire.prompt_tokens, "completion_tokens": wire.num_tokens}
    await wire.send(whole("200 OK", json.dumps({"choices": [choice], "usage": usage}).encode()))


@fault
async def slow_head(wire: Wire) -> None:
    await wire.send(*(HEAD[i : i + 10] for i in range(0, len(HEAD), 10)), pause_s=0.01)
    await wire.send_events(*wire.events())
    await wire.send(LAST_CHUNK)


@fault
async def informational(wire: Wire) -> None:
    await wire.send(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", HEAD)
    await wire.send_events(*wire.events())
    await wire.send(LAST_CHUNK)


@fault
async def surplus_bytes(wire: Wire) -> None:
    await wire.send(HEAD)
    await wire.send_events(*wire.events())
    await wire.send(LAST_CHUNK + b"HTTP/1.1 200 OK\r\nthis was not asked for\r\n\r\n")
    wire.close()
