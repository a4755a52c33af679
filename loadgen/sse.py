"""Streams cut into events: server-sent events, to the letter of their grammar (WHATWG HTML, 9.2.6), and JSON
lines.

Decides where an event ends and in which read; not what it means. Run on the bytes of a stream that has
ended, so that nothing depends on how they were split. Nothing is decoded but an event's name. An event cut
off by the stream's end is not dispatched: it is what is left pending.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_BOM = b"\xef\xbb\xbf"

Pieces = Iterable[tuple[bytes, int]]
"""Bytes of the body in order, each with the index of the chunk (the read) that it came in."""


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """event: None where the stream named none."""

    data: bytes
    event: str | None = None


Found = list[tuple[SseEvent, int, bool]]
"""Each event, the chunk that completed it, and whether nothing of the stream came behind it in that chunk, so
that the chunk's stamp is its own."""


class _Chunks:
    """The whole body, and which chunk a place in it came in; asked in ascending order."""

    def __init__(self, pieces: Pieces) -> None:
        self.body = b""
        self._ends: list[int] = []
        self._indices: list[int] = []
        parts, end = [], 0
        for piece, index in pieces:
            parts.append(piece)
            end += len(piece)
            if self._indices and self._indices[-1] == index:
                self._ends[-1] = end
            else:
                self._ends.append(end)
                self._indices.append(index)
        self.body = b"".join(parts)
        self._at = 0

    def of(self, last: int, end: int) -> tuple[int, bool]:
        """The chunk of the byte `last`, which completes an event, and whether only line ends follow `end`."""
        while self._ends[self._at] <= last:
            self._at += 1
        behind = self._ends[self._at]
        return self._indices[self._at], behind <= end or not self.body[end:behind].strip(b"\r\n")


def parse_events(pieces: Pieces) -> tuple[Found, bytes]:
    """Cut a stream of server-sent events; return them and what was left pending."""
    chunks = _Chunks(pieces)
    end = len(_BOM) if chunks.body.startswith(_BOM) else 0
    found: Found = []
    data: list[bytes] = []
    name: str | None = None
    for ended_line in chunks.body[end:].splitlines(keepends=True):  # of bytes: LF, CR and CRLF, nothing else
        start, end = end, end + len(ended_line)
        line = ended_line.rstrip(b"\r\n")
        if len(line) == len(ended_line):
            data.append(line)  # cut off
        elif line.startswith(b"data: "):
            data.append(line[6:])
        elif line:
            field, _, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.removeprefix(b" ").decode("utf-8", "replace") or None
        else:
            if data:
                found.append((SseEvent(b"\n".join(data), name), *chunks.of(start, end)))
                data = []
            name = None
    return found, b"\n".join(data)


def parse_lines(pieces: Pieces) -> tuple[Found, bytes]:
    """Cut a stream of JSON documents, one a line (Ollama).

    A last line without its end is an event where it is a whole document, else it is what was left pending.
    """
    chunks = _Chunks(pieces)
    found: Found = []
    end = 0
    *lines, rest = chunks.body.split(b"\n")
    for line in lines:
        end += len(line) + 1
        if document := line.strip():
            found.append((SseEvent(document), *chunks.of(end - 1, end)))
    if rest.rstrip().endswith(b"}"):
        found.append((SseEvent(rest.strip()), *chunks.of(end + len(rest) - 1, end + len(rest))))
        rest = b""
    return found, rest
