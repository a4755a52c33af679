"""One load process: a loop that sends what is due, lets the network happen, and parses when it has time.

Decides only the order of work: due requests first, then deadlines, then sockets, and what can wait
(parsing, rendering, reports) in moments long enough for it. Which request is due is decided in `dispatch`,
what an answer means in `interpret`. The garbage collector is off in the loop and runs only in long idle
moments.
"""

from __future__ import annotations

import gc
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from loadgen.clock import now_ns
from loadgen.drive.config import DriveConfig, WorkerStats
from loadgen.drive.deadlines import Deadlines, Timeouts
from loadgen.drive.dispatch import NEVER_NS, ClosedSchedule, Due, OpenSchedule, Schedule
from loadgen.drive.ledger import Ledger, RowSink
from loadgen.drive.messages import HELD_SIGNALS, Done, Ready, Report, Start, Stop, Task
from loadgen.drive.requests import ReadyRequests, RequestBodies
from loadgen.endpoints.base import Endpoint
from loadgen.interpret import PlanRow, has_token_since, to_record
from loadgen.priority import StepForward, waited_ns
from loadgen.records import RequestRecord
from loadgen.redaction import redact, secrets_of
from loadgen.transport.base import End, Exchange, Transport, TransportConfig

HOUSE_NS = 50_000_000
REPORT_NS = 250_000_000
CLOCK_NS = 1_000_000_000
COLLECT_NS = 10_000_000_000
COLLECT_MOMENT_NS = 30_000_000  # idle for at least this long before the garbage collector may run
IDLE_MOMENT_NS = 200_000  # beside what the work itself takes
RENDER_NS = 100_000
MAX_BURST = 32  # requests sent between two looks at the sockets

STOPPED = "the run was stopped"


class LoadProcess:
    """The state of a load process."""

    def __init__(self, task: Task, control: Connection, rows: RowSink) -> None:
        config, share = task.config, task.share
        self._task = task
        self._control = control
        self._rows = rows
        self._endpoint = config.endpoint
        self._transport = open_transport(task, self._on_end)
        bodies = RequestBodies(share, config, self._endpoint)
        self._ready = ReadyRequests(
            lambda position: self._transport.render(
                self._request_id(position), bodies.body(position), int(share.session[position])
            ),
            np.flatnonzero(share.think_ns < 0).tolist(),
        )
        self._secrets = secrets_of(dict(config.headers))
        self._ledger = Ledger(self._to_record, rows)
        self._live: dict[int, Exchange] = {}
        self._deadlines = Deadlines(_timeouts(config), self._live, self._has_token_since)
        self._outbox = select.poll()
        self._outbox.register(control, select.POLLOUT)
        self._epoch_ns = 0
        self._must_stop = False
        self._drain_at_ns = NEVER_NS
        self._report_at_ns = self._clock_at_ns = self._collect_at_ns = 0
        self._step = StepForward(is_wanted=config.realtime)
        self.stats = WorkerStats(worker=share.worker)

    def run(self) -> None:
        """Get ready, wait for the start, send the share, leave every row on disk."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)
        self._ready.fill()
        gc.collect()
        gc.freeze()
        gc.disable()
        cpu_s, waited = time.process_time(), waited_ns()
        with self._step:  # or the start itself comes late
            self._control.send(Ready())
            command = self._receive()
            if isinstance(command, Start | Stop):
                self._epoch_ns = command.epoch_ns
            self._schedule = self._open_schedule()
            self._loop()
        self.stats.scheduling = self._step.words
        if waited is not None and (now_waited := waited_ns()) is not None:
            self.stats.wait_s = (now_waited - waited) / 1e9
        self._end_live(STOPPED if self._must_stop else self._not_drained())
        for due in self._schedule.rest():
            self._ledger.add(self._exchange(due, End.UNSENT, f"{STOPPED} before this request was sent"))
        self._ledger.parse_all()
        self._transport.close()
        self._rows.close()
        self.stats.cpu_s = time.process_time() - cpu_s
        with suppress(OSError):  # a parent that is gone: the rows are on disk
            self._control.send(Report(self.stats.num_sent, 0, self._ledger.take_tally()))
            self._control.send(Done(self._final_stats()))

    def _open_schedule(self) -> Schedule:
        task = self._task
        if task.concurrency is not None:
            return ClosedSchedule(task.share, self._epoch_ns, task.concurrency)
        return OpenSchedule(task.share, self._epoch_ns, task.limit)

    def _loop(self) -> None:
        house_at_ns = 0
        transport, schedule, deadlines = self._transport, self._schedule, self._deadlines
        while True:
            now = now_ns()
            if now >= house_at_ns:
                self._keep_house(now)
                house_at_ns = now + HOUSE_NS
            if self._is_over(now):
                return
            if deadlines.next_ns() <= now:
                self._give_up(now)
            if schedule.next_ns() <= now:
                self._send_due()
                transport.wait(0)
                continue
            busy_at_ns = min(schedule.next_ns(), deadlines.next_ns())
            work = self._idle_work(busy_at_ns - now)
            if work is None:
                until = min(busy_at_ns, house_at_ns)
                transport.wait(until)
            elif not transport.wait(0):
                work()

    def _send_due(self) -> None:
        for _ in range(MAX_BURST):
            due = self._schedule.take(now_ns())
            if due is None:
                break
            self._send(due)

    def _send(self, due: Due) -> None:
        exchange = self._exchange(due)
        payload = self._ready.take(due.position)
        self._live[exchange.index] = exchange
        self._transport.send(exchange, payload)
        stats = self.stats
        assert exchange.sent_ns is not None
        stats.num_sent += 1
        stats.send_lag_max_ns = max(stats.send_lag_max_ns, exchange.sent_ns - due.scheduled_ns)
        stats.peak_in_flight = max(stats.peak_in_flight, len(self._live))
        if exchange.ended_ns is None:
            self._deadlines.watch(exchange)
        if stats.num_sent == len(self._task.share):
            self._drain_at_ns = exchange.sent_ns + int(self._task.config.drain_timeout_s * 1e9)

    def _exchange(self, due: Due, ended: End = End.UNSENT, error: str | None = None) -> Exchange:
        return Exchange(
            index=int(self._task.share.index[due.position]),
            request_id=self._request_id(due.position),
            session=int(self._task.share.session[due.position]),
            scheduled_ns=due.scheduled_ns,
            worker=self._task.share.worker,
            ended=ended,
            error=error,
        )

    def _request_id(self, position: int) -> str:
        return f"{self._task.config.run_id}-{self._task.share.index[position]}"

    def _on_end(self, exchange: Exchange) -> None:
        assert exchange.ended_ns is not None
        del self._live[exchange.index]
        # What this answer releases counts from its arrival: reading it late is no think time.
        is_whole = exchange.ended is End.COMPLETE and exchange.stamps
        ended_ns = exchange.stamps[-1] if is_whole else exchange.ended_ns
        after = self._schedule.on_end(self._task.share.position_of(exchange.index), ended_ns)
        if after is not None:
            self._ready.expect(after)
        self._ledger.add(exchange)

    def _give_up(self, now: int) -> None:
        self._transport.wait(0)  # what has arrived and was not read yet may hold the token
        for expired in self._deadlines.expired(now):
            self._transport.end(expired.exchange, expired.end, expired.error)

    def _is_over(self, now: int) -> bool:
        has_sent_all = self.stats.num_sent == len(self._task.share)
        return self._must_stop or (has_sent_all and (not self._live or now >= self._drain_at_ns))

    def _end_live(self, error: str) -> None:
        for exchange in list(self._live.values()):
            self._transport.end(exchange, End.CANCELLED, error)

    def _not_drained(self) -> str:
        return f"still in flight {self._task.config.drain_timeout_s:g} s after the last request was sent"

    def _idle_work(self, moment_ns: int) -> Callable[[], None] | None:
        """What can be done within `moment_ns` and leave room; None for: wait."""
        spare_ns = moment_ns - IDLE_MOMENT_NS
        if spare_ns <= 0:
            return None
        if self._ready.has_room() and spare_ns > RENDER_NS:
            return self._ready.fill_one
        return self._ledger.idle_work(spare_ns)

    def _keep_house(self, now: int) -> None:
        """Listen to the parent, report, look after the clock and the garbage; each seldom."""
        if self._control.poll():
            self._receive()
        if now >= self._report_at_ns:
            self._report_at_ns = now + REPORT_NS
            self._report()
        if now >= self._clock_at_ns:
            self._clock_at_ns = now + CLOCK_NS
            self._transport.check_clock()
            self._step.look()
        if now >= self._collect_at_ns and self._schedule.next_ns() - now > COLLECT_MOMENT_NS:
            self._collect_at_ns = now + COLLECT_NS
            gc.collect(1)

    def _report(self) -> None:
        if not self._outbox.poll(0):
            return  # the parent does not listen at the moment, and nobody may wait for it
        try:
            self._control.send(Report(self.stats.num_sent, len(self._live), self._ledger.take_tally()))
        except OSError:
            self._stop()

    def _receive(self) -> object:
        """The parent's next command; one that is gone wants us to stop."""
        try:
            command: object = self._control.recv()
        except (EOFError, OSError):
            command = Stop()
        if isinstance(command, Stop):
            self._stop()
        return command

    def _stop(self) -> None:
        self._must_stop = True

    def _to_record(self, exchange: Exchange) -> RequestRecord:
        share = self._task.share
        at = share.position_of(exchange.index)
        row = PlanRow(
            index=exchange.index,
            session=int(share.session[at]),
            turn=int(share.turn[at]),
            request_class=share.classes[share.class_id[at]],
            prompt_tokens=int(share.prompt_tokens[at]),
            output_tokens=int(share.output_tokens[at]),
        )
        record = record_of(exchange, self._endpoint, self._epoch_ns, row)
        if record.error:
            record.error = redact(record.error, self._secrets)
        return record

    def _has_token_since(self, exchange: Exchange, first_chunk: int) -> bool:
        return has_token_since(exchange.chunks, first_chunk, self._endpoint)

    def _final_stats(self) -> WorkerStats:
        stats, counts = self.stats, self._transport.counts
        stats.num_rows = self._rows.num_rows
        stats.num_events = self._ledger.num_events
        stats.parsed_under_load = self._ledger.num_parsed_under_load
        stats.rendered_late = self._ready.num_late
        for item in fields(counts):
            setattr(stats, item.name, getattr(counts, item.name))
        stats.max_rss_bytes = max_rss_bytes()
        return stats


def max_rss_bytes() -> int:
    """The most memory this process has held. Linux's getrusage would count the parent's before exec."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split(None, 1)[0]) * 1024
    except (OSError, ValueError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def record_of(exchange: Exchange, endpoint: Endpoint, epoch_ns: int, row: PlanRow) -> RequestRecord:
    """The row of an exchange. A mistake of ours in reading one answer costs that row, not the run."""
    try:
        return to_record(exchange, endpoint, epoch_ns=epoch_ns, row=row)
    except Exception as exc:
        unread = replace(exchange, chunks=[], stamps=[], reads_ns=[], since_ns=[], ended=End.MALFORMED)
        unread.error = f"bench could not read this answer, please report it: {exc!r}"
        return to_record(unread, endpoint, epoch_ns=epoch_ns, row=row)


def open_transport(task: Task, on_end: Callable[[Exchange], None]) -> Transport:
    """The transport that the configuration names."""
    config = task.config
    transport_config = TransportConfig(
        targets=task.targets,
        prefers_least_busy=config.balance == "least-in-flight",
        path=config.endpoint.path,
        headers=config.headers,
        fresh_connections=config.fresh_connections,
        verify_tls=config.verify,
        ca_file=config.ca_file,
    )
    if config.transport == "httpx":
        from loadgen.transport.httpx_transport import HttpxTransport

        return HttpxTransport(transport_config, on_end)
    from loadgen.transport.raw import RawTransport

    return RawTransport(transport_config, on_end)


def _timeouts(config: DriveConfig) -> Timeouts:
    return Timeouts(
        connect_ns=int(config.connect_timeout_s * 1e9),
        first_token_ns=int(config.first_token_timeout_s * 1e9),
        stall_ns=int(config.stall_timeout_s * 1e9),
        total_ns=int(config.timeout_s * 1e9),
    )
