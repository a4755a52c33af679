from __future__ import annotations

import pytest

from loadgen.drive import ledger as ledger_module
from loadgen.drive.ledger import Ledger
from loadgen.drive.requests import MAX_READY, ReadyRequests
from loadgen.records import Outcome, RequestRecord
from loadgen.transport.base import Exchange

LONG_NS = 10**12


class Rows:
    """A sink that remembers what was flushed when."""

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.batches: list[list[int]] = []
        self.num_rows = 0

    def append(self, record: RequestRecord) -> None:
        self.pending.append(record.index)
        self.num_rows += 1

    def flush(self) -> None:
        self.batches.append(self.pending)
        self.pending = []

    def close(self) -> None:
        self.flush()


def to_record(exchange: Exchange) -> RequestRecord:
    """A row with one stamp a chunk, 5 ms apart."""
    stamps = [exchange.scheduled_ns + 5_000_000 * (i + 1) for i in range(len(exchange.chunks))]
    return RequestRecord(
        index=exchange.index,
        scheduled_ns=exchange.scheduled_ns,
        prompt_tokens_planned=1,
        output_tokens_planned=1,
        output_tokens=len(stamps),
        chunk_ns=stamps,
        first_token_ns=stamps[0],
        outcome=Outcome.OK if exchange.error is None else Outcome.RESET,
    )


def exchange_of(index: int, num_chunks: int = 3, error: str | None = None) -> Exchange:
    exchange = Exchange(index=index, request_id=f"r-{index}", scheduled_ns=0, error=error)
    exchange.chunks = [b"x" * 100] * num_chunks
    return exchange


def make() -> tuple[Ledger, Rows]:
    rows = Rows()
    return Ledger(to_record, rows), rows


def test_exchanges_become_rows_in_order_each_once() -> None:
    ledger, rows = make()
    for index in range(5):
        ledger.add(exchange_of(index))
    ledger.parse_one()
    assert rows.pending == [0]
    ledger.parse_all()
    assert rows.pending == [0, 1, 2, 3, 4]
    assert ledger.num_parsed_under_load == 0
    assert ledger.num_events == 15


def test_nothing_is_done_in_a_moment_too_short_for_it() -> None:
    ledger, _ = make()
    ledger.add(exchange_of(0))
    assert ledger.idle_work(0) is None
    assert ledger.idle_work(LONG_NS) == ledger.parse_one


def test_one_slow_answer_does_not_stop_the_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, _ = make()
    clock = iter(range(0, 10**15, 10_000))  # every reading 10 us after the one before
    monkeypatch.setattr(ledger_module, "now_ns", lambda: next(clock))
    for index in range(200):
        ledger.add(exchange_of(index))
    for _ in range(150):
        ledger.parse_one()
    assert ledger.idle_work(100_000) is not None
    monkeypatch.setattr(ledger_module, "now_ns", lambda: next(clock) * 10_000)  # the CPU is lost for 100 ms
    ledger.parse_one()
    ledger.flush()
    assert ledger.idle_work(100_000) is not None
    for _ in range(40):
        ledger.parse_one()
    ledger.flush()
    assert ledger.idle_work(100_000) is None  # every one is slow: the estimate follows


def test_a_slow_write_waits_for_a_longer_moment_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(ledger: Ledger) -> None:
        for index in range(ledger_module.BATCH_ROWS):
            ledger.add(exchange_of(index))
        ledger.parse_all()

    ledger, _ = make()
    fill(ledger)
    assert ledger.idle_work(1_000_000) == ledger.flush
    clock = iter(range(0, 10**15, 8_000_000))
    monkeypatch.setattr(ledger_module, "now_ns", lambda: next(clock))
    ledger.flush()  # it took 8 ms
    fill(ledger)
    assert ledger.idle_work(1_000_000) is None
    assert ledger.idle_work(20_000_000) == ledger.flush


def test_beyond_the_bound_the_oldest_is_parsed_at_once_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_KEPT_BYTES", 4_400)
    ledger, rows = make()
    for index in range(4):
        ledger.add(exchange_of(index))  # 2,120 bytes each with what request and chunks cost
    assert rows.pending == [0, 1]
    assert ledger.num_parsed_under_load == 2


def test_a_batch_is_written_when_it_is_full_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, rows = make()
    ledger.add(exchange_of(0))
    ledger.parse_all()
    assert ledger.idle_work(LONG_NS) is None
    monkeypatch.setattr(ledger_module, "BATCH_AGE_NS", 0)
    assert ledger.idle_work(LONG_NS) == ledger.flush
    assert ledger.idle_work(ledger_module.FLUSH_NS) is None
    ledger.flush()
    assert rows.batches == [[0]]
    assert ledger.idle_work(LONG_NS) is None
    monkeypatch.setattr(ledger_module, "BATCH_AGE_NS", LONG_NS)
    for index in range(ledger_module.BATCH_ROWS):
        ledger.add(exchange_of(index))
    ledger.parse_all()
    assert ledger.idle_work(LONG_NS) == ledger.flush


def test_a_batch_that_grows_too_large_is_written_whatever_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_BATCH_STAMPS", 10)
    ledger, rows = make()
    for index in range(4):
        ledger.add(exchange_of(index))
    ledger.parse_all()
    assert rows.batches == [[0, 1, 2, 3]]


def test_the_tally_counts_every_outcome_and_samples_only_good_ones() -> None:
    ledger, _ = make()
    ledger.add(exchange_of(0))
    ledger.add(exchange_of(1, error="broken"))
    ledger.parse_all()
    tally = ledger.take_tally()
    assert dict(tally.outcomes) == {"ok": 1, "reset": 1}
    assert tally.output_tokens == 6
    assert tally.ttft_s == [0.005]
    assert tally.itl_s == [0.005, 0.005]
    assert not ledger.take_tally().outcomes


def test_requests_are_ready_in_order_and_a_miss_is_made_and_counted() -> None:
    made: list[int] = []

    def render(position: int) -> bytes:
        made.append(position)
        return b"%d" % position

    ready = ReadyRequests(render, range(MAX_READY + 3))
    ready.fill()
    assert made == list(range(MAX_READY))
    assert not ready.has_room()
    assert [ready.take(i) for i in range(MAX_READY)] == [b"%d" % i for i in range(MAX_READY)]
    assert ready.num_late == 0
    assert ready.take(MAX_READY) == b"%d" % MAX_READY
    assert ready.num_late == 1
    ready.fill()
    assert made == list(range(MAX_READY + 3))
    assert not ready.has_room()


def test_a_turn_is_made_ready_once_its_instant_is_known() -> None:
    ready = ReadyRequests(lambda position: b"%d" % position, [0, 3])
    ready.fill()
    assert not ready.has_room()
    ready.expect(2)
    ready.expect(1)
    ready.fill_one()
    assert (ready.take(2), ready.num_late) == (b"2", 0)
    assert (ready.take(1), ready.num_late) == (b"1", 1)
    assert (ready.take(0), ready.take(3), ready.num_late) == (b"0", b"3", 1)
    assert not ready.has_room()


def test_the_bytes_kept_ready_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.drive.requests.MAX_READY_BYTES", 10_000)
    ready = ReadyRequests(lambda _: b"x" * 3_000, range(100))
    ready.fill()
    assert [len(ready.take(i)) for i in range(4)] == [3_000] * 4
    assert ready.num_late == 0
    ready.take(4)
    assert ready.num_late == 1
