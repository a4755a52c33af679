"""Drives one transport from a test: sends, waits with a bound, returns the finished exchanges."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from loadgen.clock import now_ns
from loadgen.endpoints import ENDPOINTS
from loadgen.interpret import PlanRow, to_record
from loadgen.records import RequestRecord
from loadgen.transport.base import End, Exchange, Transport, TransportConfig
from loadgen.transport.httpx_transport import HttpxTransport
from loadgen.transport.raw import RawTransport
from loadgen.transport.sockets import resolve_target

BODY = ENDPOINTS["completions"].body("some words", 3, "m")
PATIENCE_NS = 10_000_000_000


class Sender:
    """A transport and what has come back from it."""

    def __init__(self, name: str, url: str, **changes: object) -> None:
        targets = (changes.pop("target", None) or resolve_target(url),)
        config = TransportConfig(targets=targets, path="/v1/completions", **changes)  # type: ignore[arg-type]
        self.finished: list[Exchange] = []
        make = RawTransport if name == "raw" else HttpxTransport
        self.transport: Transport = make(config, self.finished.append)
        self._num_sent = 0

    def send(self, body: bytes = BODY) -> Exchange:
        """Send one request; do not wait."""
        index = self._num_sent
        self._num_sent += 1
        exchange = Exchange(index=index, request_id=f"run-{index}", scheduled_ns=now_ns())
        self.transport.send(exchange, self.transport.render(exchange.request_id, body))
        return exchange

    def wait(self, num_finished: int) -> None:
        """Wait until that many have ended."""
        give_up_ns = now_ns() + PATIENCE_NS
        while len(self.finished) < num_finished:
            assert now_ns() < give_up_ns, f"only {len(self.finished)} of {num_finished} ended"
            self.transport.wait(now_ns() + 50_000_000)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Let the network happen until a condition holds."""
        give_up_ns = now_ns() + PATIENCE_NS
        while not holds():
            assert now_ns() < give_up_ns, "it never came to hold"
            self.transport.wait(now_ns() + 5_000_000)

    def ask(self, body: bytes = BODY) -> Exchange:
        """Send one request and wait for its end."""
        exchange = self.send(body)
        self.wait(len(self.finished) + 1 if exchange not in self.finished else len(self.finished))
        return exchange

    def rest(self, duration_ns: int = 4_000_000) -> None:
        """Let the network happen for a while."""
        until_ns = now_ns() + duration_ns
        while now_ns() < until_ns:
            self.transport.wait(until_ns)


@contextlib.contextmanager
def sender(name: str, url: str, **changes: object) -> Iterator[Sender]:
    """A transport until the block ends; what is still live is cancelled."""
    it = Sender(name, url, **changes)
    try:
        yield it
    finally:
        it.transport.close()


def record_of(exchange: Exchange, output_tokens: int = 3) -> RequestRecord:
    """The row that an exchange becomes."""
    row = PlanRow(index=exchange.index, prompt_tokens=2, output_tokens=output_tokens)
    return to_record(exchange, ENDPOINTS["completions"], epoch_ns=exchange.scheduled_ns, row=row)


def give_up(it: Sender, exchange: Exchange, end: End = End.CANCELLED) -> None:
    """End a live exchange from outside."""
    it.transport.end(exchange, end, "given up")
