"""The load processes of one drive: started together, watched, stopped together.

Each gets its share of the plan beforehand and the same start instant, so that nothing is decided between
processes while requests leave. One that dies is noted, the others go on, and what it had written stays. The
parent draws progress from counts that the processes report a few times a second; it touches no request, and
does it on a thread of the least priority, for it may share a processor with a load process.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from loadgen.clock import now_ns
from loadgen.drive.config import DriveConfig, DriveResult, Progress, WorkerStats
from loadgen.drive.dispatch import split_limit, split_plan
from loadgen.drive.limits import check_descriptors, check_memory, check_ports, choose_workers
from loadgen.drive.messages import HELD_SIGNALS, Done, Ready, Report, Start, Stop, Task
from loadgen.drive.process import run_worker
from loadgen.errors import BenchError
from loadgen.priority import step_back
from loadgen.transport.sockets import parse_target, resolve_target
from loadgen.transport.tls import client_context
from workloads.plan import Plan

START_DELAY_NS = 200_000_000  # the parent may itself wait for a processor before it has told everybody
WATCH_S = 0.1
PROGRESS_NS = 250_000_000
START_TIMEOUT_NS = 120_000_000_000
STOP_TIMEOUT_NS = 60_000_000_000  # to write the rows of a stopped run
EXIT_TIMEOUT_S = 10.0
RECENT_SAMPLES = 1_000

OnProgress = Callable[[Progress], None]


class Worker:
    """The parent's view of one load process."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self.number = task.share.worker
        self.control: Connection
        self.control, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=run_worker, args=(task, theirs), name=f"bench-load-{self.number}", daemon=True
        )
        resource_tracker.ensure_running()  # its start would let the signals through
        # until the process can say what a signal means to it: Ctrl-C reaches the whole group
        held = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        theirs.close()
        self.is_ready = False
        self.has_ended = False
        self.num_sent = 0
        self.num_in_flight = 0
        self.stats: WorkerStats | None = None
        self.error: str | None = None

    def __repr__(self) -> str:
        return f"<Worker {self.number} pid={self.process.pid} ended={self.has_ended}>"

    def send(self, command: Start | Stop) -> None:
        """Tell the process something, unless it is gone."""
        try:
            self.control.send(command)
        except OSError:
            pass

    def reap(self) -> None:
        """Note how the process ended; one that hangs at its end is killed."""
        self.process.join(EXIT_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.has_ended = True
        self.num_in_flight = 0
        self.control.close()
        if self.stats is None:
            code = self.process.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self.error = f"load process {self.number} died ({how})"


class Crew:
    """Every load process of a drive, and what they have reported."""

    def __init__(self, tasks: list[Task]) -> None:
        self.workers = [Worker(task) for task in tasks]
        self.outcomes: Counter[str] = Counter()
        self.output_tokens = 0
        self.recent_send_lag_s: deque[float] = deque(maxlen=RECENT_SAMPLES)
        self.recent_ttft_s: deque[float] = deque(maxlen=RECENT_SAMPLES)
        self.recent_itl_s: deque[float] = deque(maxlen=RECENT_SAMPLES)

    @property
    def at_work(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.has_ended]

    def tell(self, command: Start | Stop) -> None:
        """Send a command to everyone at work."""
        for worker in self.at_work:
            worker.send(command)

    def listen(self) -> None:
        """Take in what was reported within the next moment."""
        by_control = {worker.control: worker for worker in self.at_work}
        by_sentinel = {worker.process.sentinel: worker for worker in self.at_work}
        for source in wait([*by_control, *by_sentinel], timeout=WATCH_S):
            if isinstance(source, Connection):
                self._hear(by_control[source])
            elif isinstance(source, int) and not by_sentinel[source].has_ended:
                self._hear(by_sentinel[source])
                by_sentinel[source].reap()

    def _hear(self, worker: Worker) -> None:
        if worker.has_ended:
            return
        try:
            while worker.control.poll():
                self._note(worker, worker.control.recv())
        except (EOFError, OSError):
            worker.reap()

    def _note(self, worker: Worker, message: object) -> None:
        if isinstance(message, Ready):
            worker.is_ready = True
        elif isinstance(message, Done):
            worker.stats = message.stats
        elif isinstance(message, Report):
            worker.num_sent = message.num_sent
            worker.num_in_flight = message.num_in_flight
            self.outcomes.update(message.tally.outcomes)
            self.output_tokens += message.tally.output_tokens
            self.recent_send_lag_s.extend(message.tally.send_lag_s)
            self.recent_ttft_s.extend(message.tally.ttft_s)
            self.recent_itl_s.extend(message.tally.itl_s)

    def kill(self) -> None:
        """End whoever is still there."""
        for worker in self.at_work:
            worker.process.kill()
            worker.reap()

    def progress(self, plan: Plan, epoch_ns: int) -> Progress:
        """Where the drive stands."""
        num_sent = sum(worker.num_sent for worker in self.workers)
        return Progress(
            elapsed_s=(now_ns() - epoch_ns) / 1e9,
            num_planned=len(plan),
            num_sent=num_sent,
            num_in_flight=sum(worker.num_in_flight for worker in self.workers),
            num_ended=self.outcomes.total(),
            outcomes=dict(self.outcomes),
            output_tokens=self.output_tokens,
            recent_send_lag_s=tuple(self.recent_send_lag_s),
            recent_ttft_s=tuple(self.recent_ttft_s),
            recent_itl_s=tuple(self.recent_itl_s),
            is_draining=num_sent == len(plan),
        )


def drive(
    plan: Plan, config: DriveConfig, *, folder: Path, on_progress: OnProgress, stop: threading.Event
) -> DriveResult:
    """Send the plan; every request that was sent or given up is a row in `folder` when this returns.

    `stop` ends the run early: what is in flight is cancelled, what was not due is unsent. Raises UsageError
    before anything is sent where the system's limits do not allow the plan.
    """
    check_descriptors(plan, config)
    check_ports(plan, config)
    check_memory(plan)
    aside = ThreadPoolExecutor(1, "bench-watch", initializer=step_back)  # progress never delays a send
    crew = Crew(_tasks(plan, config, folder))
    try:
        _await_ready(crew, stop)
        epoch_ns = now_ns() + START_DELAY_NS
        epoch_wall = datetime.now(UTC) + timedelta(microseconds=START_DELAY_NS / 1000)
        if not stop.is_set():
            crew.tell(Start(epoch_ns))
        watching = aside.submit(_watch, crew, plan, epoch_ns, on_progress, stop)
        interrupted = watching.result()
    finally:
        crew.kill()
        aside.shutdown()
    on_progress(crew.progress(plan, epoch_ns))
    return DriveResult(
        epoch_ns=epoch_ns,
        epoch_wall=epoch_wall.isoformat(timespec="microseconds"),
        ended_ns=now_ns(),
        num_rows=crew.outcomes.total(),
        interrupted=interrupted,
        load_model=_load_model(config),
        worker_errors=[
            f"{worker.error}: requests that it had not written are lost"
            for worker in crew.workers
            if worker.error
        ],
        workers=[worker.stats for worker in crew.workers if worker.stats],
    )


def _tasks(plan: Plan, config: DriveConfig, folder: Path) -> list[Task]:
    # a proxy looks names up itself, so that only our own sockets need an address
    resolve = resolve_target if config.transport == "raw" else parse_target
    targets = tuple(map(resolve, (config.url, *config.more_urls)))
    if any(target.scheme == "https" for target in targets):
        client_context(config.ca_file, verify=config.verify)  # an unusable file ends it here
    num_workers = choose_workers(plan, config)
    caps = split_limit(config.max_in_flight, num_workers)
    slots = split_limit(config.concurrency, num_workers)
    return [
        Task(
            share=share,
            config=config,
            targets=targets,
            folder=folder,
            limit=caps[share.worker],
            concurrency=slots[share.worker],
            cpu=config.pin[share.worker % len(config.pin)] if config.pin else None,
        )
        for share in split_plan(plan, num_workers)
    ]


def _await_ready(crew: Crew, stop: threading.Event) -> None:
    give_up_ns = now_ns() + START_TIMEOUT_NS
    while not all(worker.is_ready for worker in crew.workers) and not stop.is_set():
        crew.listen()
        dead = [worker.error for worker in crew.workers if worker.error]
        if dead and not stop.is_set():
            raise BenchError(f"{dead[0]} before the run started; its own words stand above")
        if now_ns() > give_up_ns:
            raise BenchError(f"load processes were not ready within {START_TIMEOUT_NS // 10**9} s")


def _watch(crew: Crew, plan: Plan, epoch_ns: int, on_progress: OnProgress, stop: threading.Event) -> bool:
    """Listen until everyone has ended; return whether the run was stopped."""
    progress_at_ns = 0
    give_up_ns: int | None = None
    while crew.at_work:
        if stop.is_set() and give_up_ns is None:
            crew.tell(Stop(epoch_ns))
            give_up_ns = now_ns() + STOP_TIMEOUT_NS
        if give_up_ns is not None and now_ns() > give_up_ns:
            break
        crew.listen()
        if now_ns() >= progress_at_ns:
            on_progress(crew.progress(plan, epoch_ns))
            progress_at_ns = now_ns() + PROGRESS_NS
    return give_up_ns is not None


def _load_model(config: DriveConfig) -> str:
    if config.concurrency is not None:
        return f"closed loop, {config.concurrency} at a time"
    if config.max_in_flight is not None:
        return f"open loop, capped at {config.max_in_flight} in flight"
    return "open loop"
