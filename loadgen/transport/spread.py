"""Several targets behind one transport: each request goes to one of them, by turns or to the least busy.

By turns is by the number of the session (so that a session stays with its target), or of a request that
belongs to none, whatever the number of load processes; the least busy is judged by what this load process has
in flight. Each target keeps its own connections; one poller waits for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

from loadgen.clock import SPIN_NS, now_ns, open_alarm
from loadgen.transport.base import End, Exchange, TransportConfig, TransportCounts
from loadgen.transport.raw import OnEnd, RawTransport
from loadgen.transport.sockets import POLL_IN, open_poller

COARSE_WAIT_S = 0.001


class SpreadTransport:
    """A `RawTransport` a target."""

    def __init__(
        self, configs: Sequence[TransportConfig], on_end: OnEnd, *, prefers_least_busy: bool = False
    ) -> None:
        self._on_end = on_end
        self._prefers_least_busy = prefers_least_busy
        self._transports = [RawTransport(config, self._ending(at)) for at, config in enumerate(configs)]
        self._num_live = [0] * len(configs)
        self._home: dict[int, int] = {}
        self._payloads: dict[str, list[bytes]] = {}
        self._num_ended = 0
        self._poller = open_poller()
        self._by_fd = {transport.fileno(): transport for transport in self._transports}
        for fd in self._by_fd:
            self._poller.register(fd, POLL_IN)
        self._alarm = open_alarm()
        if self._alarm is not None:
            self._poller.register(self._alarm.fd, POLL_IN)

    def __repr__(self) -> str:
        return f"<SpreadTransport live={self._num_live}>"

    @property
    def counts(self) -> TransportCounts:
        """Of all targets together; of the clock, the worst."""
        total = TransportCounts(has_kernel_stamps=all(t.counts.has_kernel_stamps for t in self._transports))
        for name in (field.name for field in fields(total) if field.name != "has_kernel_stamps"):
            values = [getattr(transport.counts, name) for transport in self._transports]
            setattr(total, name, max(values) if "clock" in name else sum(values))
        return total

    def _ending(self, at: int) -> Callable[[Exchange], None]:
        def ended(exchange: Exchange) -> None:
            self._num_live[at] -= 1
            self._num_ended += 1
            del self._home[exchange.index]
            self._on_end(exchange)

        return ended

    def render(self, request_id: str, body: bytes, session: int = -1) -> bytes:
        """The request for every target, for which one gets it is decided when it is due."""
        payloads = [transport.render(request_id, body, session) for transport in self._transports]
        self._payloads[request_id] = payloads
        return payloads[0]

    def send(self, exchange: Exchange, payload: bytes) -> None:  # noqa: ARG002 (the target's own is kept here)
        """Choose the target and hand the request to it."""
        busy = self._num_live
        turn = exchange.index if exchange.session < 0 else exchange.session
        at = busy.index(min(busy)) if self._prefers_least_busy else turn % len(busy)
        busy[at] += 1
        self._home[exchange.index] = at
        self._transports[at].send(exchange, self._payloads.pop(exchange.request_id)[at])

    def end(self, exchange: Exchange, end: End, error: str) -> None:
        """Give a live exchange up."""
        self._transports[self._home[exchange.index]].end(exchange, end, error)

    def wait(self, until_ns: int) -> bool:
        """Serve all targets until the instant or until a request ends; say whether anything came."""
        num_ended, has_come = self._num_ended, False
        while True:
            for fd, _ in self._poller.poll(self._timeout_s(until_ns)):
                if (transport := self._by_fd.get(fd)) is not None:
                    has_come |= transport.wait(0)
                elif self._alarm is not None:
                    self._alarm.clear()
            if self._num_ended != num_ended:
                return True
            if now_ns() >= until_ns:
                return has_come

    def _timeout_s(self, until_ns: int) -> float:
        left_ns = until_ns - now_ns()
        if left_ns <= SPIN_NS:
            return 0
        if self._alarm is None:
            return COARSE_WAIT_S if left_ns > 2e6 else 0
        self._alarm.set(until_ns - SPIN_NS)
        return -1

    def check_clock(self) -> None:
        for transport in self._transports:
            transport.check_clock()

    def close(self) -> None:
        for transport in self._transports:
            transport.close()
        if self._alarm is not None:
            self._alarm.close()
        self._poller.close()
