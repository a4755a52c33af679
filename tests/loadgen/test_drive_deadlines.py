from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadgen.drive.deadlines import Deadlines, Timeouts, last_true
from loadgen.drive.dispatch import NEVER_NS
from loadgen.transport.base import End, Exchange

SECOND = 1_000_000_000
TIMEOUTS = Timeouts(
    connect_ns=10 * SECOND, first_token_ns=60 * SECOND, stall_ns=30 * SECOND, total_ns=600 * SECOND
)


def has_token_since(exchange: Exchange, first: int) -> bool:
    return any(chunk == b"token" for chunk in exchange.chunks[first:])


class Script:
    """A request on a virtual clock: chunks arrive at given seconds."""

    def __init__(self, arrivals: dict[int, bytes], *, reused: bool = True, connected: bool = True) -> None:
        self.exchange = Exchange(index=0, request_id="r-0", scheduled_ns=0, sent_ns=1, reused=reused)
        self.exchange.connected_ns = 2 if connected and not reused else None
        self._arrivals = sorted(arrivals.items())
        self.live = {0: self.exchange}
        self.deadlines = Deadlines(TIMEOUTS, self.live, has_token_since)
        self.deadlines.watch(self.exchange)

    def run(self) -> tuple[End, float]:
        """How the request is given up, and at which second."""
        while True:
            now = self.deadlines.next_ns()
            assert now != NEVER_NS
            while self._arrivals and self._arrivals[0][0] * SECOND <= now:
                at_s, data = self._arrivals.pop(0)
                self.exchange.chunks.append(data)
                self.exchange.stamps.append(at_s * SECOND)
            for expired in self.deadlines.expired(now):
                return expired.end, round(now / SECOND, 3)


def test_a_connection_that_does_not_stand_in_time() -> None:
    assert Script({}, reused=False, connected=False).run() == (End.CONNECT_TIMEOUT, 10)


def test_no_first_token_in_time() -> None:
    assert Script({}).run() == (End.FIRST_TOKEN_TIMEOUT, 60)
    assert Script({}, reused=False, connected=True).run() == (End.FIRST_TOKEN_TIMEOUT, 60)


def test_pings_for_ever_are_no_token() -> None:
    assert Script(dict.fromkeys(range(1, 100), b"ping")).run() == (End.FIRST_TOKEN_TIMEOUT, 60)


def test_a_stream_stalls_exactly_a_stall_timeout_after_its_last_token() -> None:
    assert Script({1: b"token"}).run() == (End.STALLED, 31)
    assert Script({7: b"token", 31: b"token", 44: b"token"}).run() == (End.STALLED, 74)


def test_pings_behind_a_token_do_not_keep_a_stream_alive() -> None:
    pings = dict.fromkeys(range(1, 300), b"ping")
    assert Script(pings | {5: b"token"}).run() == (End.STALLED, 35)


def test_a_stream_that_flows_ends_at_the_total_timeout() -> None:
    assert Script(dict.fromkeys(range(1, 700), b"token")).run() == (End.TOTAL_TIMEOUT, 600)


def test_a_request_that_has_ended_has_no_deadline() -> None:
    script = Script({})
    script.live.clear()
    assert script.deadlines.next_ns() == NEVER_NS
    assert script.deadlines.expired(100 * SECOND) == []


def test_what_has_ended_does_not_pile_up() -> None:
    live: dict[int, Exchange] = {}
    deadlines = Deadlines(TIMEOUTS, live, has_token_since)
    for index in range(50_000):
        exchange = Exchange(index=index, request_id="r", scheduled_ns=0, sent_ns=index, reused=True)
        live[index] = exchange
        deadlines.watch(exchange)
        if index % 1_000:
            del live[index]
    assert len(deadlines) < 12_000
    ended = [expired.exchange.index for expired in deadlines.expired(100 * SECOND)]
    assert ended == list(range(0, 50_000, 1_000))
    assert len(deadlines) == 0


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 250))
def test_last_true_finds_the_edge(low: int, size: int, edge: int) -> None:
    high = low + size
    found = last_true(lambda i: i < edge, low, high)
    assert found == (min(edge, high) - 1 if low < high and edge > low else None)
