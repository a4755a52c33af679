"""What became of each request: finished exchanges wait here until there is time to parse them into rows.

Bytes are kept from the first read on and parsed when no request is due and no socket waits. Memory is
bounded: finished exchanges hold at most MAX_KEPT_BYTES, beyond which the oldest is parsed at once and
counted as parsed under load; a live one holds at most the raw transport's MAX_RESPONSE_BYTES. Rows reach
the disk in batches small enough to fit between two requests, a second after they were made at the latest
unless the loop is never idle.
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

MAX_KEPT_BYTES = 64 << 20
EXCHANGE_BYTES = 1_200  # what a request costs beside its chunks (measured)
STAMP_BYTES = 180  # what a chunk costs beside its bytes: an object header, three ints and four list slots
MAX_SAMPLES = 256  # of each kind between two reports
FIRST_GUESS_NS_PER_BYTE = 50.0
SLOWER, FASTER = 1.08, 0.98  # settles where four of five take less; one that lost its CPU moves it no further
BATCH_ROWS = 64
BATCH_STAMPS = 8_192
MAX_BATCH_STAMPS = 65_536  # written at once whatever is due
BATCH_AGE_NS = 1_000_000_000
FLUSH_NS = 500_000  # and a third of a microsecond a stamp
FLUSH_NS_PER_STAMP = 300
MOST_SLOW, FORGOTTEN = 20.0, 0.9  # bounds what a slow one adds; what is left of that at the next

ToRecord = Callable[[Exchange], RequestRecord]


class RowSink(Protocol):
    """Where rows go; `loadgen.row_stream.RowWriter`."""

    num_rows: int

    def append(self, record: RequestRecord) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class Tally:
    """What has ended since the last report."""

    outcomes: Counter[str] = field(default_factory=Counter)
    output_tokens: int = 0
    send_lag_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)

    def add(self, record: RequestRecord) -> None:
        """Count a row, and keep some of its samples for the live percentiles."""
        self.outcomes[record.outcome.value] += 1
        self.output_tokens += record.output_tokens or 0
        if record.sent_ns is not None and len(self.send_lag_s) < MAX_SAMPLES:
            self.send_lag_s.append((record.sent_ns - record.scheduled_ns) / 1e9)
        if record.outcome is not Outcome.OK or record.first_token_ns is None:
            return
        if len(self.ttft_s) < MAX_SAMPLES:
            self.ttft_s.append((record.first_token_ns - record.scheduled_ns) / 1e9)
        if len(self.itl_s) < MAX_SAMPLES:
            stamps = record.chunk_ns[: MAX_SAMPLES + 1]
            self.itl_s.extend((b - a) / 1e9 for a, b in pairwise(stamps) if b > a)  # one read: no gap


class Ledger:
    """Turns exchanges into rows, each exactly once."""

    def __init__(self, to_record: ToRecord, rows: RowSink) -> None:
        self._to_record = to_record
        self._rows = rows
        self._finished: deque[tuple[Exchange, int]] = deque()
        self._kept_bytes = 0
        self._ns_per_byte = FIRST_GUESS_NS_PER_BYTE
        self._batch_rows = 0
        self._batch_stamps = 0
        self._batch_since_ns = 0
        self._flush_factor = 1.0  # how much longer than expected the last ones took
        self.tally = Tally()
        self.num_events = 0
        self.num_parsed_under_load = 0

    def __repr__(self) -> str:
        return f"<Ledger {len(self._finished)} to parse, {self._kept_bytes} bytes>"

    def add(self, exchange: Exchange) -> None:
        """Take a finished exchange; parse the oldest at once where too much is kept."""
        num_bytes = sum(map(len, exchange.chunks)) + STAMP_BYTES * len(exchange.chunks) + EXCHANGE_BYTES
        self._finished.append((exchange, num_bytes))
        self._kept_bytes += num_bytes
        while self._kept_bytes > MAX_KEPT_BYTES:
            self.num_parsed_under_load += 1
            self.parse_one()

    def idle_work(self, spare_ns: int) -> Callable[[], None] | None:
        """What can be done within `spare_ns`, by what it took the last times; None for nothing."""
        if spare_ns > self._flush_ns() * self._flush_factor and self._is_batch_due():
            return self.flush
        if self._finished and spare_ns > self._finished[0][1] * self._ns_per_byte:
            return self.parse_one
        return None

    def _is_batch_due(self) -> bool:
        if self._batch_rows >= BATCH_ROWS or self._batch_stamps >= BATCH_STAMPS:
            return True
        return self._batch_rows > 0 and now_ns() - self._batch_since_ns >= BATCH_AGE_NS

    def parse_one(self) -> None:
        """Make the oldest exchange a row."""
        exchange, num_bytes = self._finished.popleft()
        self._kept_bytes -= num_bytes
        begun_ns = now_ns()
        record = self._to_record(exchange)
        self._batch(record, begun_ns)
        self.tally.add(record)
        self.num_events += len(record.chunk_ns)
        is_slower = now_ns() - begun_ns > num_bytes * self._ns_per_byte
        self._ns_per_byte *= SLOWER if is_slower else FASTER

    def parse_all(self) -> None:
        """Make every exchange a row."""
        while self._finished:
            self.parse_one()

    def _batch(self, record: RequestRecord, at_ns: int) -> None:
        if self._batch_rows == 0:
            self._batch_since_ns = at_ns
        self._rows.append(record)
        self._batch_rows += 1
        self._batch_stamps += len(record.chunk_ns)
        if self._batch_stamps > MAX_BATCH_STAMPS:
            self.flush()

    def _flush_ns(self) -> int:
        return FLUSH_NS + FLUSH_NS_PER_STAMP * self._batch_stamps

    def flush(self) -> None:
        """Write the rows made since the last time."""
        begun_ns = now_ns()
        self._rows.flush()
        # a slow disk or processor is remembered at once, and forgotten slowly
        took = min((now_ns() - begun_ns) / self._flush_ns(), MOST_SLOW)
        self._flush_factor = max(took, self._flush_factor * FORGOTTEN, 1.0)
        self._batch_rows = self._batch_stamps = 0

    def take_tally(self) -> Tally:
        """What has ended since the last call."""
        tally, self.tally = self.tally, Tally()
        return tally
