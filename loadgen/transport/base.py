"""What happened to one request on the wire, raw: bytes and stamps, nothing decided.

A transport fills an `Exchange` while the stream lives and hands it over when it has ended. Whether that end
was a success, which bytes were tokens and what they mean is decided afterwards in `loadgen.interpret`, off
the hot path. Instants are absolute CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from loadgen.transport.sockets import Target


class End(StrEnum):
    """Why a transport stopped reading; the one fact about a request that bytes alone do not show."""

    COMPLETE = "complete"  # the response is whole by its own framing
    EOF = "eof"  # the peer closed in order; whether the answer was whole, its bytes say
    RESET = "reset"  # the connection broke: reset, broken pipe, TLS alert
    CONNECT_FAILED = "connect_failed"
    CONNECT_TIMEOUT = "connect_timeout"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    STALLED = "stalled"  # a token came, then none for the stall timeout
    CANCELLED = "cancelled"  # the run was stopped, or drained for too long
    UNSENT = "unsent"  # no byte left: no descriptor, no port, or the run ended first
    MALFORMED = "malformed"  # bytes that are not HTTP, or more of them than are kept


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request as the transport saw it.

    chunks: bytes as read, one item a read: HTTP/1.1 with head and framing where `framed`, else body bytes
    with `status` and `headers` (lower-case names) given beside them.
    stamps: when each chunk arrived, by the kernel's receive stamp where `stamp_source` is "kernel";
    reads_ns: when this process read it; since_ns: an instant at which nothing of it had come yet. All three
    have one item a chunk. write_lag_ns: how long at most we held the request back after `sent_ns`.
    """

    index: int
    request_id: str
    scheduled_ns: int
    session: int = -1
    sent_ns: int | None = None
    connected_ns: int | None = None
    written_ns: int | None = None
    write_lag_ns: int = 0
    chunks: list[bytes] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    reads_ns: list[int] = field(default_factory=list)
    since_ns: list[int] = field(default_factory=list)
    stamp_source: str = "user"
    framed: bool = True
    status: int | None = None
    headers: dict[str, str] | None = None
    headers_ns: int | None = None  # when the head came in; with `framed` the chunks say it
    ended: End = End.UNSENT
    ended_ns: int | None = None
    error: str | None = None
    reused: bool | None = None
    worker: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """What every request of a run has in common on the wire.

    targets: one, or several that share the load by turns (of sessions, so that each stays where it began) or
    by what this load process has in flight there.
    """

    targets: tuple[Target, ...]
    prefers_least_busy: bool = False
    path: str  # of the endpoint, such as /v1/completions
    headers: tuple[tuple[str, str], ...] = ()
    fresh_connections: bool = False
    verify_tls: bool = True
    ca_file: str | None = None


@dataclass(slots=True, kw_only=True)
class TransportCounts:
    """What a transport did: reads per event tell whether each event had a stamp of its own."""

    num_wakeups: int = 0
    num_reads: int = 0
    num_bytes: int = 0
    num_connections: int = 0
    has_kernel_stamps: bool = False
    clock_drift_ns: int = 0
    clock_stepped_ns: int = 0
    num_clock_steps: int = 0


def identity_headers(request_id: str, session: int) -> dict[str, str]:
    """Who a request is, and whose: a router that keeps sessions together goes by the session's id."""
    if session < 0:
        return {"X-Request-Id": request_id}
    return {"X-Request-Id": request_id, "X-Session-Id": f"{request_id.rpartition('-')[0]}-s{session}"}


class Transport(Protocol):
    """Sends requests and fills their exchanges; calls `on_end` (given at the start) once for each."""

    @property
    def counts(self) -> TransportCounts:
        """What it has done so far."""

    def render(self, request_id: str, body: bytes, session: int = -1) -> bytes:
        """Make, ahead of time, what `send` will hand to the network."""

    def send(self, exchange: Exchange, payload: bytes) -> None:
        """Act now: stamp `sent_ns`, then connect or write. Never blocks and never raises for the network."""

    def end(self, exchange: Exchange, end: End, error: str) -> None:
        """Give a live exchange up and close what carried it."""

    def wait(self, until_ns: int) -> bool:
        """Let the network happen until that instant or until a request ends; say whether anything came."""

    def check_clock(self) -> None:
        """Pair the clocks again, where stamps come from another one."""

    def close(self) -> None:
        """Close every connection; live exchanges must have been ended before."""
