"""HTTP/1.1 responses, bytes in, facts out: where an answer ends, and which of its bytes are body.

Decides framing only (RFC 9112: content length, chunked, no body, until the end of the connection); never what
a status means. Lenient where real servers are (bare LF, folded headers, a missing reason), strict where
leniency would misplace a byte. The cost is per HTTP chunk, never per byte, and any split of the bytes gives
the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MAX_HEAD_BYTES = 64 * 1024
MAX_CHUNK_LINE_BYTES = 4 * 1024
MAX_LENGTH_DIGITS = 18

_STATUS_LINE = re.compile(rb"HTTP/1\.([0-9]) ([1-9][0-9]{2})(?: (.*))?", re.DOTALL)
_HEAD_END = re.compile(rb"\n\r?\n")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):(.*)", re.DOTALL)
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_HEX_DIGIT = re.compile(rb"[0-9A-Fa-f]")


class HttpSyntaxError(ValueError):
    """Bytes that are no HTTP/1.1 response; the message quotes what was seen."""


class IncompleteHeadError(HttpSyntaxError):
    """The bytes end before the head of the final response does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status line and headers of a final response; names in lower case, repeated values joined by commas."""

    minor_version: int
    status: int
    reason: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response with its body taken out of the framing.

    body: (piece, index of the chunk it came in); head_chunk: index of the chunk in which the head ended;
    syntax_error: what broke the framing after the head; the pieces before it are kept.
    """

    status: int
    reason: str
    headers: dict[str, str]
    body: list[tuple[bytes, int]]
    head_chunk: int
    is_complete: bool
    is_until_close: bool
    keep_alive: bool
    syntax_error: str | None = None


# Strings, as an Enum's attributes cost more to reach than the framing itself.
_State = Literal["head", "length", "chunk size", "chunk data", "chunk end", "trailers", "until close", "done"]


class ResponseFramer:
    """Follow one response through its bytes, fed in pieces of any size.

    body: where given, receives the body's pieces in order, each with the index given to `feed`.
    """

    def __init__(self, body: list[tuple[bytes, int]] | None = None) -> None:
        self.head: Head | None = None
        self.has_excess = False
        self._body = body
        self._index = 0
        self._state: _State = "head"
        self._rest = b""  # bytes of a line or head that is not whole yet
        self._left = 0
        self._trailer_bytes = 0

    def __repr__(self) -> str:
        status = self.head.status if self.head else None
        return f"<ResponseFramer {self._state!r} status={status} left={self._left}>"

    @property
    def is_complete(self) -> bool:
        return self._state == "done"

    @property
    def is_until_close(self) -> bool:
        """Whether only the end of the connection ends this response."""
        return self._state == "until close"

    @property
    def keep_alive(self) -> bool:
        """Whether the connection can carry another request; False until the response is complete."""
        if self.head is None or not self.is_complete or self.has_excess:
            return False
        tokens = {token.strip().lower() for token in self.head.headers.get("connection", "").split(",")}
        if self.head.minor_version == 0:
            return "keep-alive" in tokens
        return "close" not in tokens

    def feed(self, data: bytes, index: int = 0) -> bool:
        """Take the next bytes; return whether the response is complete. Raises HttpSyntaxError."""
        self._index = index
        buffer = self._rest + data if self._rest else data
        position = 0
        while position < len(buffer):
            if self._state == "done":
                self.has_excess = True
                break
            consumed = self._step(buffer, position)
            if consumed is None:
                break
            position = consumed
        self._rest = buffer[position:] if self._state != "done" else b""
        return self._state == "done"

    def _step(self, buffer: bytes, position: int) -> int | None:
        """Consume one element at `position`; return where it ends, None where more bytes are needed."""
        state = self._state
        if state == "chunk size":
            return self._take_chunk_size(buffer, position)
        if state == "chunk data" or state == "length":
            return self._take_body(buffer, position)
        if state == "chunk end":
            return self._take_chunk_end(buffer, position)
        if state == "head":
            return self._take_head(buffer, position)
        if state == "trailers":
            return self._take_trailer(buffer, position)
        if self._body is not None:
            self._body.append((buffer[position:], self._index))
        return len(buffer)

    def _take_body(self, buffer: bytes, position: int) -> int:
        end = min(position + self._left, len(buffer))
        if self._body is not None:
            self._body.append((buffer[position:end], self._index))
        self._left -= end - position
        if self._left == 0:
            self._state = "done" if self._state == "length" else "chunk end"
        return end

    def _take_chunk_size(self, buffer: bytes, position: int) -> int | None:
        match = _CHUNK_SIZE.match(buffer, position, position + MAX_CHUNK_LINE_BYTES)
        if match is None:
            seen = buffer[position : position + MAX_CHUNK_LINE_BYTES]
            if b"\n" in seen or len(seen) == MAX_CHUNK_LINE_BYTES or not _HEX_DIGIT.match(seen):
                raise HttpSyntaxError(f"a chunk size was due, came {_quote(seen)}")
            return None
        size, start = int(match[1], 16), match.end()
        end = start + size
        if size and buffer.startswith(b"\r\n", end):  # the usual case: the whole chunk is here
            if self._body is not None:
                self._body.append((buffer[start:end], self._index))
            return end + 2
        self._left = size
        self._state = "chunk data" if size else "trailers"
        return start

    def _take_chunk_end(self, buffer: bytes, position: int) -> int | None:
        if buffer.startswith(b"\r\n", position):
            end = position + 2
        elif buffer.startswith(b"\n", position):
            end = position + 1
        elif buffer[position:] == b"\r":
            return None
        else:
            raise HttpSyntaxError(f"a chunk ran past its size: {_quote(buffer[position:])}")
        self._state = "chunk size"
        return end

    def _take_trailer(self, buffer: bytes, position: int) -> int | None:
        line_end = buffer.find(b"\n", position) + 1
        size = (line_end or len(buffer)) - position
        if self._trailer_bytes + size > MAX_HEAD_BYTES:
            raise HttpSyntaxError(f"trailers longer than {MAX_HEAD_BYTES} bytes")
        if not line_end:
            return None
        self._trailer_bytes += size
        line = buffer[position:line_end].rstrip(b"\r\n")
        if not line:
            self._state = "done"
        elif line[0] not in b" \t" and not _HEADER.fullmatch(line):
            raise HttpSyntaxError(f"a trailer was due, came {_quote(line)}")
        return line_end

    def _take_head(self, buffer: bytes, position: int) -> int | None:
        if buffer[position] in b"\r\n":  # stray line ends before a status line
            return position + 1
        seen = buffer[position : position + 5]
        if not b"HTTP/".startswith(seen):
            raise HttpSyntaxError(f"a status line was due, came {_quote(buffer[position:])}")
        match = _HEAD_END.search(buffer, position, position + MAX_HEAD_BYTES)
        if match is None:
            if len(buffer) - position >= MAX_HEAD_BYTES:
                raise HttpSyntaxError(f"a head over {MAX_HEAD_BYTES} bytes: {_quote(buffer[position:])}")
            return None
        head = parse_head(buffer[position : match.start()])
        if not 100 <= head.status < 200 or head.status == 101:
            self._begin_body(head)
            self.head = head
        return match.end()

    def _begin_body(self, head: Head) -> None:
        coding = head.headers.get("transfer-encoding")
        length = head.headers.get("content-length")
        if head.status in (204, 304):
            self._state = "done"
        elif coding is not None:
            is_chunked = coding.rsplit(",", 1)[-1].strip().lower() == "chunked"
            self._state = "chunk size" if is_chunked else "until close"
        elif length is not None:
            self._left = _parse_length(length)
            self._state = "length" if self._left else "done"
        else:
            self._state = "until close"


def parse_head(head: bytes) -> Head:
    """Parse status line and headers, without the empty line that ends them. Raises HttpSyntaxError."""
    lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    status_line = _STATUS_LINE.fullmatch(lines[0])
    if status_line is None:
        raise HttpSyntaxError(f"a status line was due, came {_quote(lines[0])}")
    headers: dict[str, str] = {}
    name = ""
    for line in lines[1:]:
        if line[:1] in (b" ", b"\t"):  # obs-fold: the value goes on
            if not name:
                raise HttpSyntaxError(f"a header was due, came {_quote(line)}")
            headers[name] = f"{headers[name]} {line.strip().decode('latin-1')}".strip()
            continue
        match = _HEADER.fullmatch(line)
        if match is None:
            raise HttpSyntaxError(f"a header was due, came {_quote(line)}")
        name, value = match[1].decode("ascii").lower(), match[2].strip(b" \t").decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Head(
        minor_version=int(status_line[1]),
        status=int(status_line[2]),
        reason=(status_line[3] or b"").decode("latin-1").strip(),
        headers=headers,
    )


def parse_response(chunks: Sequence[bytes]) -> Response:
    """Parse the chunks kept of one response.

    Raises IncompleteHeadError where they end within the head, HttpSyntaxError where the head is wrong;
    framing that breaks later is told in `syntax_error`.
    """
    body: list[tuple[bytes, int]] = []
    framer = ResponseFramer(body)
    head_chunk = 0
    syntax_error = None
    is_complete = False
    for index, chunk in enumerate(chunks):
        if framer.head is None:
            head_chunk = index
        try:
            is_complete = framer.feed(chunk, index)
        except HttpSyntaxError as exc:
            if framer.head is None:
                raise
            syntax_error = str(exc)
        if is_complete or syntax_error is not None:
            break
    if framer.head is None:
        raise IncompleteHeadError(f"{sum(map(len, chunks))} bytes and no complete head")
    return Response(
        status=framer.head.status,
        reason=framer.head.reason,
        headers=framer.head.headers,
        body=body,
        head_chunk=head_chunk,
        is_complete=framer.is_complete,
        is_until_close=framer.is_until_close,
        keep_alive=framer.keep_alive,
        syntax_error=syntax_error,
    )


def _parse_length(value: str) -> int:
    lengths = {item.strip() for item in value.split(",")}
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdigit()) or len(length) > MAX_LENGTH_DIGITS:
        raise HttpSyntaxError(f"content-length {value[:60]!r}")
    return int(length)


def _quote(data: bytes) -> str:
    return repr(data[:60]) + ("..." if len(data) > 60 else "")
