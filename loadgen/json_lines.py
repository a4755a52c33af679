"""Streams of JSON documents, one a line (Ollama): cut into events like those of `loadgen.sse`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from loadgen.sse import SseEvent


def parse_lines(pieces: Iterable[tuple[bytes, int]]) -> tuple[list[tuple[SseEvent, int, bool]], bytes]:
    """Cut (piece, index of its chunk) at line ends, as `sse.parse_events` cuts at empty lines.

    A last line without its end is an event where it is a whole document, else it is what was left pending.
    """
    events: list[tuple[SseEvent, int, bool]] = []
    pending, last_index = b"", -1
    for piece, index in pieces:
        if events and events[-1][1] == index:
            events[-1] = (events[-1][0], index, False)
        *lines, pending = (pending + piece).split(b"\n")
        found = [SseEvent(line.strip(), None, None) for line in lines if line.strip()]
        events += [(event, index, False) for event in found]
        if found and not pending:
            events[-1] = (found[-1], index, True)
        last_index = index
    if pending.rstrip().endswith(b"}"):
        events.append((SseEvent(pending.strip(), None, None), last_index, True))
        pending = b""
    return events, pending
