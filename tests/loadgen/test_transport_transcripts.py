"""Recorded answers of real servers, served again byte for byte: both transports make the same row of them."""

from __future__ import annotations

import random
import socket
import time

import pytest

from loadgen.records import RequestRecord
from tests.loadgen.scripted import serving
from tests.loadgen.sending import Sender, sender
from tests.loadgen.test_interpret_transcripts import EXPECTED, PINGS_ONLY
from tests.loadgen.wire import load_transcript, record, split_at

NAMES = [name for name, expected in EXPECTED.items() if expected is not PINGS_ONLY]
NUM_CUTS = 12


def served_row(it: Sender, name: str) -> RequestRecord:
    return record(it.ask(), load_transcript(name).endpoint)


@pytest.mark.parametrize("transport", ["raw", "httpx"])
def test_transcripts_over_a_real_connection(transport: str) -> None:
    served = iter(NAMES)

    def answer(sock: socket.socket, _: bytes) -> bool:
        transcript = load_transcript(name := next(served))
        wire = transcript.wire()
        source = random.Random(name)
        for piece in split_at(wire, [source.randrange(len(wire)) for _ in range(NUM_CUTS)]):
            sock.sendall(piece)
            time.sleep(0.0005)
        return not transcript.is_cut

    with serving(answer) as server, sender(transport, server.url) as it:
        for name in NAMES:
            expected, row = EXPECTED[name], served_row(it, name)
            it.rest()
            assert (name, row.outcome, row.http_status) == (name, expected.outcome, expected.status)
            assert (name, tuple(row.chunk_tokens)) == (name, expected.tokens)
            assert (name, row.output_tokens, row.prompt_tokens) == (name, expected.output, expected.prompt)
            assert row.chunk_ns == sorted(row.chunk_ns)
            assert row.recv_lag_ns is None or 0 <= row.recv_lag_ns < 1e9
