"""Streams of JSON documents, one a line (Ollama): cut into events like those of `loadgen.sse`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from loadgen.sse import SseEvent


def parse_lines(pieces: Iterable[tuple[bytes, int]]) -> tuple[list[tuple[SseEvent, int, bool]], bytes]:
    """Cut (piece, index of its chunk) at line ends, as `sse.parse_events` cuts at empty lines.

    A last line without its end is an event where it is a whole document, else it is what was left pending.
    """
    events: list[tuple[SseEvent, int, bool]] = []
    parts: list[bytes] = []  # of a line that has not ended; a list, as a line has no limit
    last_index = -1
    for piece, index in pieces:
        if events and events[-1][1] == index:
            events[-1] = (events[-1][0], index, False)
        last_index = index
        parts.append(piece)
        if b"\n" not in piece:
            continue
        *lines, rest = b"".join(parts).split(b"\n")
        parts = [rest]
        found = [SseEvent(line.strip(), None, None) for line in lines if line.strip()]
        events += [(event, index, False) for event in found]
        if found and not rest:
            events[-1] = (found[-1], index, True)
    pending = b"".join(parts)
    if pending.rstrip().endswith(b"}"):
        events.append((SseEvent(pending.strip(), None, None), last_index, True))
        pending = b""
    return events, pending
