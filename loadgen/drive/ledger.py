"""What became of each request: finished exchanges wait here until there is time to parse them into rows.

Bytes are kept from the first read on and parsed when no request is due and no socket waits. Memory is
bounded: finished exchanges hold at most MAX_KEPT_BYTES, beyond which the oldest is parsed at once and
counted as parsed under load; a live one holds at most the raw transport's MAX_RESPONSE_BYTES.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from loadgen.clock import now_ns
from loadgen.records import Outcome, RequestRecord
from loadgen.transport.base import Exchange

MAX_KEPT_BYTES = 256 << 20
STAMP_BYTES = 100  # what a chunk costs beside its bytes: an object header, two ints and three list slots
MAX_SAMPLES = 256  # of each kind between two reports
FIRST_GUESS_NS_PER_BYTE = 10.0

ToRecord = Callable[[Exchange], RequestRecord]


class RowSink(Protocol):
    """Where rows go; `loadgen.row_stream.RowWriter`."""

    num_rows: int

    def append(self, record: RequestRecord) -> None: ...
    def flush_if_due(self) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class Tally:
    """What has ended since the last report."""

    outcomes: Counter[str] = field(default_factory=Counter)
    output_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)

    def add(self, record: RequestRecord) -> None:
        """Count a row, and keep some of its samples for the live percentiles."""
        self.outcomes[record.outcome.value] += 1
        self.output_tokens += record.output_tokens or 0
        if record.outcome is not Outcome.OK or record.first_token_ns is None:
            return
        if len(self.ttft_s) < MAX_SAMPLES:
            self.ttft_s.append((record.first_token_ns - record.scheduled_ns) / 1e9)
        if len(self.itl_s) < MAX_SAMPLES:
            stamps = record.chunk_ns[: MAX_SAMPLES + 1]
            self.itl_s.extend((b - a) / 1e9 for a, b in pairwise(stamps))


class Ledger:
    """Turns exchanges into rows, each exactly once."""

    def __init__(self, to_record: ToRecord, rows: RowSink) -> None:
        self._to_record = to_record
        self._rows = rows
        self._finished: deque[tuple[Exchange, int]] = deque()
        self._kept_bytes = 0
        self._ns_per_byte = FIRST_GUESS_NS_PER_BYTE
        self.tally = Tally()
        self.num_events = 0
        self.num_parsed_under_load = 0

    def __repr__(self) -> str:
        return f"<Ledger {len(self._finished)} to parse, {self._kept_bytes} bytes>"

    def add(self, exchange: Exchange) -> None:
        """Take a finished exchange; parse the oldest at once where too much is kept."""
        num_bytes = sum(map(len, exchange.chunks)) + STAMP_BYTES * (len(exchange.chunks) + 1)
        self._finished.append((exchange, num_bytes))
        self._kept_bytes += num_bytes
        while self._kept_bytes > MAX_KEPT_BYTES:
            self.num_parsed_under_load += 1
            self.parse_one()

    @property
    def num_waiting(self) -> int:
        return len(self._finished)

    @property
    def expected_ns(self) -> int:
        """How long the next `parse_one` will take, by what the last ones took a byte."""
        return int(self._finished[0][1] * self._ns_per_byte) if self._finished else 0

    def parse_one(self) -> None:
        """Make the oldest exchange a row."""
        exchange, num_bytes = self._finished.popleft()
        self._kept_bytes -= num_bytes
        begun_ns = now_ns()
        record = self._to_record(exchange)
        self._rows.append(record)
        self.tally.add(record)
        self.num_events += len(record.chunk_ns)
        self._ns_per_byte += 0.1 * ((now_ns() - begun_ns) / num_bytes - self._ns_per_byte)

    def parse_all(self) -> None:
        """Make every exchange a row."""
        while self._finished:
            self.parse_one()

    def flush_if_due(self) -> None:
        """Let rows that have waited long enough go to disk."""
        self._rows.flush_if_due()

    def take_tally(self) -> Tally:
        """What has ended since the last call."""
        tally, self.tally = self.tally, Tally()
        return tally
