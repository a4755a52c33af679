"""What the HTTP process and the engine process say to each other, over one socket pair.

Length-prefixed msgpack. Tokens cross once per step, all of them in one message of three packed columns; every
other message is rare. Neither end ever waits for the other: what the kernel does not take stays queued here.
"""

from __future__ import annotations

import select
import socket
import struct
from array import array
from collections.abc import Iterator

import msgspec

from reference_engine.metrics import EngineStatus
from reference_engine.sequence import FinishReason
from reference_engine.step import Emission
from reference_engine.steplog import RequestRow

REASONS: tuple[FinishReason | None, ...] = (None, *FinishReason)
_REASON_CODES = {reason: code for code, reason in enumerate(REASONS)}
_LENGTH = struct.Struct("<I")


class Submit(msgspec.Struct, frozen=True, tag=True):
    """HTTP -> engine: a checked request."""

    handle: int
    request_id: str
    prompt: list[int]
    max_tokens: int
    arrived_ns: int
    min_tokens: int = 0
    ignore_eos: bool = True
    priority: int = 0
    user: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """HTTP -> engine: nobody waits for this request any more, and why."""

    handle: int
    reason: FinishReason


class GetLog(msgspec.Struct, frozen=True, tag=True):
    """HTTP -> engine: send the log as it stands."""

    ticket: int


class GetStatus(msgspec.Struct, frozen=True, tag=True):
    """HTTP -> engine: send the queues, the memory and the counters as they stand."""

    ticket: int


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """HTTP -> engine: write the logs and leave."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Engine -> HTTP: the model is loaded and warm. device: its name, as its maker calls it."""

    num_params: int
    device: str
    dtype: str
    kv_tokens: int


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """Engine -> HTTP: all tokens of one step. handles, token_ids: packed int32; reasons: one byte each."""

    handles: bytes
    token_ids: bytes
    reasons: bytes


class Cached(msgspec.Struct, frozen=True, tag=True):
    """Engine -> HTTP, before the first token where prefixes are shared: prompt tokens that were found."""

    handle: int
    num_tokens: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Engine -> HTTP: a request that the engine will not serve, and why."""

    handle: int
    status: int
    message: str


class Log(msgspec.Struct, frozen=True, tag=True):
    """Engine -> HTTP: the answer to GetLog. steps: int64 rows as in StepLog.steps()."""

    ticket: int
    steps: bytes
    requests: list[RequestRow]
    metadata: dict[str, str]


class Status(msgspec.Struct, frozen=True, tag=True):
    """Engine -> HTTP: the answer to GetStatus."""

    ticket: int
    status: EngineStatus


ToEngine = Submit | Cancel | GetLog | GetStatus | Shutdown
FromEngine = Ready | Tokens | Cached | Refused | Log | Status


def pack_tokens(emissions: list[Emission]) -> Tokens:
    return Tokens(
        array("i", [e.sequence.handle for e in emissions]).tobytes(),
        array("i", [e.token_id for e in emissions]).tobytes(),
        bytes([_REASON_CODES[e.finish_reason] for e in emissions]),
    )


def unpack_tokens(tokens: Tokens) -> Iterator[tuple[int, int, FinishReason | None]]:
    """Yield (handle, token id, finish reason or None) in the order of the step."""
    handles, token_ids = array("i", tokens.handles), array("i", tokens.token_ids)
    for handle, token_id, code in zip(handles, token_ids, tokens.reasons, strict=True):
        yield handle, token_id, REASONS[code]


_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: ToEngine | FromEngine) -> bytes:
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


class FrameSplitter:
    """Cuts a byte stream into the payloads of frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        payloads: list[bytes] = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            end = at + _LENGTH.size + length
            if end > len(self._buffer):
                break
            payloads.append(bytes(self._buffer[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return payloads


class EngineEnd:
    """The engine's end of the socket pair. Only `receive(may_wait=True)` may block."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._splitter = FrameSplitter()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._unsent = bytearray()
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)

    def receive(self, *, may_wait: bool) -> list[ToEngine] | None:
        """Return the messages that have come; None once the other end is gone."""
        if self._unsent:
            self._flush()
        if may_wait:
            self._poller.modify(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            self._poller.poll()
        messages: list[ToEngine] = []
        while True:
            try:
                data = self._sock.recv(1 << 18)
            except BlockingIOError:
                return messages
            except ConnectionError:
                return None
            if not data:
                return None
            messages += map(self._decoder.decode, self._splitter.feed(data))

    def send(self, message: FromEngine) -> None:
        self._unsent += encode_frame(message)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._unsent.clear()
