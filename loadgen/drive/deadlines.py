"""When a request is given up: connect, first token, stall, total. Looked at when a deadline passes.

A stream costs nothing while it flows: one entry in a heap, and at its instant a look through the bytes
kept. Only a token-bearing event counts as progress, so that a server which sends `: ping` for ever still
stalls. An entry comes up at least once a stall timeout; from the last token it finds, the stall deadline is
exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadgen.drive.dispatch import NEVER_NS
from loadgen.transport.base import End, Exchange

SPARE_ENTRIES = 10_000
HasTokenSince = Callable[[Exchange, int], bool]  # whether chunks[first:] hold a token-bearing event


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long each phase of a request may take; `total_ns` runs from the send."""

    connect_ns: int
    first_token_ns: int
    stall_ns: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class Expired:
    """A request whose time is up, and why."""

    exchange: Exchange
    end: End
    error: str


class Deadlines:
    """The deadlines of every request in `live` (by index), which the caller keeps.

    Entries of requests that have ended are dropped when they come up, or once they are the most.
    """

    def __init__(
        self, timeouts: Timeouts, live: Mapping[int, Exchange], has_token_since: HasTokenSince
    ) -> None:
        self._timeouts = timeouts
        self._live = live
        self._has_token_since = has_token_since
        self._heap: list[tuple[int, int, int, int]] = []  # at, index, chunks seen, last token

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, exchange: Exchange) -> None:
        """Start the clocks of a request that has just been sent."""
        assert exchange.sent_ns is not None
        limits = self._timeouts
        first_ns = min(limits.first_token_ns, limits.stall_ns, limits.total_ns)
        if exchange.reused is False:
            first_ns = min(first_ns, limits.connect_ns)
        self._push(exchange.sent_ns + first_ns, exchange, 0, 0)

    def _push(self, at_ns: int, exchange: Exchange, num_seen: int, last_token_ns: int) -> None:
        heapq.heappush(self._heap, (at_ns, exchange.index, num_seen, last_token_ns))
        if len(self._heap) > 2 * len(self._live) + SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapq.heapify(self._heap)

    def next_ns(self) -> int:
        """When to look again."""
        while self._heap and self._heap[0][1] not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else NEVER_NS

    def expired(self, now_ns: int) -> list[Expired]:
        """Requests whose time is up; the others get their next deadline."""
        found = []
        while self.next_ns() <= now_ns:
            _, index, num_seen, last_token_ns = heapq.heappop(self._heap)
            verdict = self._look(self._live[index], num_seen, last_token_ns, now_ns)
            if verdict is not None:
                found.append(verdict)
        return found

    def _look(self, exchange: Exchange, num_seen: int, last_token_ns: int, now_ns: int) -> Expired | None:
        limits = self._timeouts
        sent_ns = exchange.sent_ns
        assert sent_ns is not None
        if now_ns >= sent_ns + limits.total_ns:
            return Expired(exchange, End.TOTAL_TIMEOUT, f"no end within {_seconds(limits.total_ns)}")
        if exchange.reused is False and exchange.connected_ns is None:
            if now_ns >= sent_ns + limits.connect_ns:
                error = f"not connected within {_seconds(limits.connect_ns)}"
                return Expired(exchange, End.CONNECT_TIMEOUT, error)
            self._push(sent_ns + limits.connect_ns, exchange, 0, 0)
            return None
        num_chunks = len(exchange.chunks)
        newest = last_true(lambda first: self._has_token_since(exchange, first), num_seen, num_chunks)
        if newest is not None:
            last_token_ns = exchange.stamps[newest]
        total_at_ns = sent_ns + limits.total_ns
        if last_token_ns:
            if now_ns >= last_token_ns + limits.stall_ns:
                return Expired(exchange, End.STALLED, f"no token for {_seconds(limits.stall_ns)}")
            self._push(min(last_token_ns + limits.stall_ns, total_at_ns), exchange, num_chunks, last_token_ns)
            return None
        if now_ns >= sent_ns + limits.first_token_ns:
            error = f"no token within {_seconds(limits.first_token_ns)}"
            return Expired(exchange, End.FIRST_TOKEN_TIMEOUT, error)
        at_ns = min(sent_ns + limits.first_token_ns, now_ns + limits.stall_ns, total_at_ns)
        self._push(at_ns, exchange, num_chunks, 0)
        return None


def last_true(holds_from: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest i in [low, high) with holds_from(i), for a predicate that stays false once it is.

    Looks from the end backwards in doubling steps: in a stream that flows, the last item answers.
    """
    if low >= high:
        return None
    step = 1
    false_at = high
    while not holds_from(max(high - step, low)):
        false_at = max(high - step, low)
        if false_at == low:
            return None
        step *= 2
    true_at = max(high - step, low)
    while false_at - true_at > 1:
        middle = (true_at + false_at) // 2
        if holds_from(middle):
            true_at = middle
        else:
            false_at = middle
    return true_at


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:g} s"
