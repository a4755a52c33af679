"""Events that came in one read are told as such, whatever the transport: never as gaps of nothing."""

from __future__ import annotations

import socket
import time

import pytest

from tests.loadgen.scripted import HEAD, LAST_CHUNK, chunk, serving, stream, token
from tests.loadgen.sending import record_of, sender

TRANSPORTS = ["raw", "httpx"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_events_of_one_read_are_bounded_by_the_read_before(transport: str) -> None:
    def answer(sock: socket.socket, _: bytes) -> bool:
        sock.sendall(stream(6))
        return True

    with serving(answer) as server, sender(transport, server.url) as it:
        row = record_of(it.ask(), 6)
    assert len(set(row.chunk_ns)) == 1
    assert all(lower < stamp for lower, stamp in zip(row.chunk_lower_ns, row.chunk_ns, strict=True))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_events_of_their_own_reads_are_exact(transport: str) -> None:
    def answer(sock: socket.socket, _: bytes) -> bool:
        for piece in (HEAD, *map(chunk, [token(), token(), token(finish_reason="length")])):
            sock.sendall(piece)
            time.sleep(0.02)
        sock.sendall(LAST_CHUNK)
        return True

    with serving(answer) as server, sender(transport, server.url) as it:
        row = record_of(it.ask(), 3)
    if transport == "raw":
        assert row.chunk_lower_ns == row.chunk_ns
    # without a kernel's stamp: since the loop woke, well after the event before
    assert all(b - a > 10_000_000 for a, b in zip(row.chunk_ns, row.chunk_lower_ns[1:], strict=False))
    assert row.chunk_ns == sorted(set(row.chunk_ns))
