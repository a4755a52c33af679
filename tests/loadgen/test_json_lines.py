"""JSON lines: the same documents under every split, each with the chunk that completed it."""

from __future__ import annotations

import time
from itertools import combinations

from loadgen.json_lines import parse_lines
from tests.loadgen.wire import split_at

STREAM = b'{"a":1}\r\n\n{"b":"\xe4\xb8\xad"}\n{"c":3}\n{"d"'


def test_every_split_in_two_and_three_gives_the_same_documents() -> None:
    for num_cuts in (1, 2):
        for cuts in combinations(range(len(STREAM) + 1), num_cuts):
            pieces = split_at(STREAM, cuts)
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


def test_a_line_has_no_limit_and_costs_linear_time() -> None:
    start = time.perf_counter()
    events, _ = parse_lines([*[(b"x" * 1000, 0)] * 20_000, (b"\n", 1)])
    assert len(events[0][0].data) == 20_000_000
    assert time.perf_counter() - start < 2.0
