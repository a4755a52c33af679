"""Server-sent events, to the letter of their grammar (WHATWG HTML, 9.2.6), on bytes.

Decides where an event ends and what its fields are; not what they mean. Lines end in LF, CR or CRLF, a line
or an event may be split between reads anywhere, and nothing is decoded but names and ids, so a character
split between reads does not matter. An event cut off by the stream's end is not dispatched: `pending` has it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_BOM = b"\xef\xbb\xbf"


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """event: None where the stream named none; id: the last id seen, None before the first."""

    data: bytes
    event: str | None = None
    id: str | None = None


class SseParser:
    """Incremental parser; feed it pieces of any size.

    ends_with_event: whether the last bytes taken were those of an event's end.
    """

    def __init__(self) -> None:
        self.ends_with_event = False
        self.last_id: str | None = None
        self.retry_ms: int | None = None
        self._line: list[bytes] = []  # pieces of a line that has not ended; a list, as a line has no limit
        self._data: list[bytes] = []
        self._event: str | None = None
        self._is_at_start = True
        self._is_after_cr = False
        self._is_between_events = True

    @property
    def pending(self) -> bytes:
        """What an event that has not ended holds so far: its data, then its unfinished line."""
        return b"\n".join([*self._data, b"".join(self._line)] if self._line else self._data)

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take the next bytes; return the events that they complete."""
        if (  # the usual case: one whole event of one line, and no more
            self._is_between_events
            and data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and data.find(b"\n") == len(data) - 2
            and b"\r" not in data
        ):
            self._is_at_start = False
            self.ends_with_event = True
            return [SseEvent(data[6:-2], None, self.last_id)]
        if self._is_after_cr and data:
            self._is_after_cr = False
            data = data.removeprefix(b"\n")  # the LF of a CRLF split between reads
        if not data:
            return []
        if b"\n" not in data and b"\r" not in data:
            self._line.append(data)
            self._is_between_events = self.ends_with_event = False
            return []
        if self._line:
            self._line.append(data)
            data = b"".join(self._line)
            self._line = []
        events = self._parse_lines(data)
        self._is_between_events = not (self._line or self._data or self._event or self._is_after_cr)
        self.ends_with_event = self.ends_with_event and not self._line and not self._data
        return events

    def _parse_lines(self, data: bytes) -> list[SseEvent]:
        lines = data.splitlines()  # of bytes: LF, CR and CRLF, nothing else
        last_byte = data[-1]
        if last_byte == 0x0D:
            self._is_after_cr = True
        elif last_byte != 0x0A:
            self._line.append(lines.pop())
        if self._is_at_start:
            self._is_at_start = False
            lines[0] = lines[0].removeprefix(_BOM)
        events = []
        for line in lines:
            if line.startswith(b"data: "):
                self._data.append(line[6:])
            elif line:
                self._take_field(line)
            else:
                if self._data:
                    content = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append(SseEvent(content, self._event, self.last_id))
                    self._data = []
                    self.ends_with_event = True
                self._event = None
        return events

    def _take_field(self, line: bytes) -> None:
        self.ends_with_event = False
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace") or None
        elif name == b"id" and b"\0" not in value:
            self.last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 19:
            self.retry_ms = int(value)


def parse_events(pieces: Iterable[tuple[bytes, int]]) -> tuple[list[tuple[SseEvent, int, bool]], bytes]:
    """Parse (piece, index of its chunk) in order; return the events and what was left pending.

    An event comes with the index of the chunk that completed it, and whether it was the last of that chunk:
    nothing of the stream came behind it, so that the chunk's stamp is its own.
    """
    parser = SseParser()
    events: list[tuple[SseEvent, int, bool]] = []
    for piece, index in pieces:
        if events and events[-1][1] == index and events[-1][2]:
            events[-1] = (events[-1][0], index, False)
        found = parser.feed(piece)
        if len(found) > 1:
            events += [(event, index, False) for event in found[:-1]]
        if found:
            events.append((found[-1], index, parser.ends_with_event))
    return events, parser.pending
