"""Streams cut into events: against their grammar, an independent reading of it, every split of the bytes."""

from __future__ import annotations

import time
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sse import parse_events, parse_lines
from tests.loadgen.wire import NAMES, load_transcript, split_at

Events = list[tuple[str | None, bytes]]


def reference_events(stream: bytes) -> Events:
    """Read the stream as the standard words it, line by line, byte by byte; slow and plain."""
    if stream[:3] == b"\xef\xbb\xbf":
        stream = stream[3:]
    lines, line, i = [], bytearray(), 0
    while i < len(stream):
        byte = stream[i]
        if byte in (10, 13):
            lines.append(bytes(line))
            line = bytearray()
            if byte == 13 and i + 1 < len(stream) and stream[i + 1] == 10:
                i += 1
        else:
            line.append(byte)
        i += 1
    events: Events = []
    data, event_type = b"", ""
    for text in lines:
        if text == b"":
            if data != b"":
                events.append((event_type or None, data[:-1] if data[-1:] == b"\n" else data))
            data, event_type = b"", ""
            continue
        if text[0] == 58:
            continue
        name, value = text, b""
        if b":" in text:
            colon = text.index(b":")
            name, value = text[:colon], text[colon + 1 :]
            if value[:1] == b" ":
                value = value[1:]
        if name == b"data":
            data += value + b"\n"
        elif name == b"event":
            event_type = value.decode("utf-8", "replace")
    return events


def feed_all(pieces: list[bytes]) -> Events:
    found, _ = parse_events((piece, i) for i, piece in enumerate(pieces))
    return [(event.event, event.data) for event, _, _ in found]


def data_of(stream: bytes) -> list[bytes]:
    return [data for _, data in feed_all([stream])]


SMALL_STREAMS = [
    b"data: a\n\ndata: b\n\n",
    b"data:a\r\n\r\ndata: b\r\rdata: c\n\n",
    b"\xef\xbb\xbfdata: a\n\n: ping\n\nid: 7\ndata\n\n",
    b"event: x\r\ndata: 1\r\ndata:  2\r\n\r\n:\r\rdata:3",
    b"data: \xe4\xb8\xad\n\nretry: 5\n\nid:\x00\ndata:\n\n",
]


@pytest.mark.parametrize("stream", SMALL_STREAMS)
def test_every_split_in_two_and_three_gives_the_same_events(stream: bytes) -> None:
    expected = reference_events(stream)
    assert feed_all([stream]) == expected
    for cuts in [*combinations(range(len(stream) + 1), 1), *combinations(range(len(stream) + 1), 2)]:
        assert feed_all(split_at(stream, cuts)) == expected, cuts


FIELDS = [b"data: ", b"data:", b"data", b"event: ", b"id:", b"retry: 3", b":", b": ping", b" ", b"{}", b"x"]
ENDS = [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n"]
BYTES = [b"\xef\xbb\xbf", b"\xe4\xb8", b"\xad", b"\x00", b"\x0b", b"\x85"]
FRAGMENTS = st.sampled_from([*FIELDS, *ENDS, *BYTES])


@settings(max_examples=600, deadline=None)
@given(st.lists(FRAGMENTS, max_size=30), st.data())
def test_any_split_agrees_with_the_reference(fragments: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(fragments)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert feed_all(split_at(stream, cuts)) == reference_events(stream)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 5))
def test_any_bytes_give_what_the_reference_gives(stream: bytes, step: int) -> None:
    pieces = [stream[i : i + step] for i in range(0, len(stream), step)]
    assert feed_all(pieces) == reference_events(stream)


@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_byte_by_byte_is_the_transcript_at_once(name: str) -> None:
    body = load_transcript(name).body
    events = feed_all([body])
    assert events == reference_events(body)
    assert feed_all([body[i : i + 1] for i in range(len(body))]) == events


def test_the_standard_s_own_examples() -> None:
    assert data_of(b"data: YHOO\ndata: +2\ndata: 10\n\n") == [b"YHOO\n+2\n10"]
    stream = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
    assert feed_all([stream]) == [
        (None, b"first event"),
        (None, b"second event"),
        (None, b" third event"),
    ]
    assert data_of(b"data\n\ndata\ndata\n\ndata:") == [b"", b"\n"]
    assert data_of(b"data:test\n\ndata: test\n\n") == [b"test", b"test"]


def test_fields_without_data_dispatch_nothing_and_do_not_leak() -> None:
    assert feed_all([b"event: error\n\ndata: a\n\n"]) == [(None, b"a")]
    assert feed_all([b": ping\n\n" * 3]) == []


def test_only_lf_and_cr_end_lines() -> None:
    assert data_of(b"data: a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f\n\n") == [
        b"a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f"
    ]


def test_an_event_cut_off_by_the_end_is_pending_and_not_dispatched() -> None:
    found, pending = parse_events([(b'data: {"a":1}\n\ndata: x\ndata: {"b"', 0)])
    assert [event.data for event, _, _ in found] == [b'{"a":1}']
    assert pending == b'x\ndata: {"b"'


@pytest.mark.parametrize(("parse", "end"), [(parse_events, b"\n\n"), (parse_lines, b"\n")])
def test_a_line_has_no_limit_and_costs_linear_time(parse: Any, end: bytes) -> None:
    start = time.perf_counter()
    found, _ = parse([(b"data: ", 0), *[(b"x" * 1000, 0)] * 20_000, (end, 1)])
    assert len(found[0][0].data) >= 20_000_000
    assert time.perf_counter() - start < 2.0


def test_an_event_names_the_chunk_that_completed_it() -> None:
    pieces = [
        (b"data: a\n\ndata: b\n\nda", 3),
        (b"ta: c\n\n", 4),
        (b"data: d\n\n: ping\n\n", 5),
        (b"data: e\n\n", 6),
    ]
    events, pending = parse_events([*pieces, (b"data: f", 7)])
    assert [(e.data, chunk, is_last) for e, chunk, is_last in events] == [
        (b"a", 3, False),
        (b"b", 3, False),
        (b"c", 4, True),
        (b"d", 5, False),
        (b"e", 6, True),
    ]
    assert pending == b"data: f"


def test_two_pieces_of_one_chunk_are_told_apart_from_two_chunks() -> None:
    events, _ = parse_events([(b"data: a\n\n", 1), (b"data: b\n\n", 1), (b"data: c\n\n", 2)])
    assert [(chunk, is_last) for _, chunk, is_last in events] == [(1, False), (1, True), (2, True)]


LINES = b'{"a":1}\r\n\n{"b":"\xe4\xb8\xad"}\n{"c":3}\n{"d"'


def test_json_lines_are_the_same_under_every_split() -> None:
    for num_cuts in (1, 2):
        for cuts in combinations(range(len(LINES) + 1), num_cuts):
            pieces = split_at(LINES, cuts)
            events, pending = parse_lines((piece, i) for i, piece in enumerate(pieces))
            assert [event.data for event, _, _ in events] == [b'{"a":1}', '{"b":"中"}'.encode(), b'{"c":3}']
            assert pending == b'{"d"'
            for event, chunk, _ in events:
                assert b"\n" in pieces[chunk], event


def test_a_document_is_the_last_of_its_chunk_where_nothing_came_behind_it() -> None:
    pieces = [(b'{"a":1}\n{"b":2}\n', 0), (b'{"c":3}\n{"d"', 1), (b":4}\n", 2), (b'{"e":5}', 3)]
    events, pending = parse_lines(pieces)
    assert [(chunk, is_last) for _, chunk, is_last in events] == [
        (0, False),
        (0, True),
        (1, False),
        (2, True),
        (3, True),
    ]
    assert pending == b""
