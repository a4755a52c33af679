from __future__ import annotations

import socket

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from reference_engine.channel import (
    Cancel,
    EngineEnd,
    FrameSplitter,
    FromEngine,
    Refused,
    Submit,
    encode_frame,
    pack_tokens,
    unpack_tokens,
)
from reference_engine.sequence import FinishReason
from reference_engine.step import Emission
from tests.reference_engine.stub import make_sequence


@given(st.lists(st.integers(0, 300)), st.lists(st.integers(1, 50)))
def test_frames_survive_any_split(sizes: list[int], cuts: list[int]) -> None:
    messages = [Refused(i, 400, "x" * size) for i, size in enumerate(sizes)]
    stream = b"".join(map(encode_frame, messages))
    splitter, payloads, at = FrameSplitter(), [], 0
    for cut in [*cuts, len(stream)]:
        payloads += splitter.feed(stream[at : at + cut])
        at += cut
    assert [msgspec.msgpack.decode(p, type=FromEngine) for p in payloads] == messages


def test_tokens_of_a_step_cross_in_order() -> None:
    emissions = [
        Emission(make_sequence([1], 2), 512, None),
        Emission(make_sequence([1], 2), 7, FinishReason.LENGTH),
    ]
    expected = [(e.sequence.handle, e.token_id, e.finish_reason) for e in emissions]
    assert list(unpack_tokens(pack_tokens(emissions))) == expected


def test_the_engine_never_waits_for_a_peer_that_does_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        end = EngineEnd(ours)
        message = Refused(1, 400, "x" * 100_000)
        for _ in range(50):
            end.send(message)  # far more than the kernel buffers
        splitter, num_messages = FrameSplitter(), 0
        while num_messages < 50:
            num_messages += len(splitter.feed(theirs.recv(1 << 20)))
            assert end.receive(may_wait=False) == []  # sends on what is left


def test_messages_come_in_and_a_lost_peer_is_told() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        end = EngineEnd(ours)
        assert end.receive(may_wait=False) == []
        submit = Submit(handle=1, request_id="a", prompt=[1, 2], max_tokens=3, arrived_ns=4)
        theirs.sendall(encode_frame(submit) + encode_frame(Cancel(1, FinishReason.CANCELLED)))
        assert end.receive(may_wait=True) == [submit, Cancel(1, FinishReason.CANCELLED)]
        theirs.close()
        assert end.receive(may_wait=True) is None
        end.send(Refused(1, 400, ""))  # nobody there: dropped
