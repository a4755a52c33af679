"""What this machine can measure: its limits, and the client's own error at growing token rates.

Decides what is worth a warning and from which rate on the client errs by more than a millisecond. The error
is seen, not estimated: a golden server of our own streams on a known schedule and logs its writes, and the
rows of a real drive are held against that log. It says nothing about networks or the server to be measured.
"""

from __future__ import annotations

import select
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadgen.clock import RealtimeOffset
from loadgen.drive import DriveConfig, drive
from loadgen.drive.limits import count_ports, raise_descriptor_limit, usable_cpus
from loadgen.environment import describe_environment
from loadgen.errors import BenchError
from loadgen.golden.judge import JUDGED_COLUMNS, judge, quantile_ms
from loadgen.golden.process import GOLDEN, ServerProcess, start_server
from loadgen.priority import HOW_TO_PERMIT, NOT_PERMITTED, StepForward
from loadgen.store import RunFolder, load
from loadgen.transport.sockets import start_stamping
from workloads import Workload

LIMIT_MS = 1.0
LADDER_TOKENS_PER_S = (1_000, 3_000, 10_000, 20_000, 40_000)
LADDER_OUTPUT_TOKENS = 64
STEP_S = 3.0
DRAIN_S = 5.0
TTFT_MS = 20.0
GAP_MS = 10.0
PRESSURE_PERCENT = 20.0
FEW_DESCRIPTORS = 4_096
UNTOLD = "not told by this system"
GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")


class Check(NamedTuple):
    """One fact about the machine; `advice` is empty where nothing needs to be done."""

    name: str
    value: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the client did at one rate: sizes of its errors, how late it sent, what it cost.

    alone_fraction: events with an exact stamp. server_late_ms: how punctual the judge itself was, p99.
    """

    rate_per_s: float
    output_tokens: int
    num_requests: int
    ttft_error_p50_ms: float | None
    ttft_error_p99_ms: float | None
    itl_error_p50_ms: float | None
    itl_error_p99_ms: float | None
    send_lag_p99_ms: float | None
    alone_fraction: float
    cpu_us_per_token: float
    workers: int
    server_late_ms: float | None

    @property
    def tokens_per_s(self) -> float:
        return self.rate_per_s * self.output_tokens

    @property
    def error_ms(self) -> float | None:
        """The larger of the p99 errors; None where nothing could be judged."""
        known = [e for e in (self.ttft_error_p99_ms, self.itl_error_p99_ms) if e is not None]
        return max(known, default=None)

    @property
    def is_judged_fairly(self) -> bool:
        """Whether the server was punctual enough for the client to be blamed."""
        return self.server_late_ms is not None and self.server_late_ms < LIMIT_MS / 2

    @property
    def is_within_limit(self) -> bool:
        """Whether both p99 errors and the send lag stay below a millisecond."""
        values = (self.error_ms, self.send_lag_p99_ms)
        return all(value is not None and value < LIMIT_MS for value in values)


def check_machine() -> list[Check]:
    """Look at what bounds a measurement here; nothing is sent anywhere."""
    environment = describe_environment()
    return [
        check_cpus(len(usable_cpus()), environment["machine"]["cpu_governor"]),
        check_pressure(environment["cpu_pressure"]),
        check_descriptors(raise_descriptor_limit()),
        Check("local ports", str(count_ports() or UNTOLD)),
        check_clock(environment["clock_source"], RealtimeOffset().width_ns),
        check_stamps(),
        check_real_time(),
    ]


def check_real_time() -> Check:
    """Whether load processes may go before other work while they send."""
    with StepForward() as step:
        if not step.refusal:
            return Check("real-time", f"granted ({step.words})")
        advice = "\n".join(HOW_TO_PERMIT) if step.refusal == NOT_PERMITTED else ""
        return Check("real-time", f"{step.refusal}; {step.words} instead", advice)


def check_cpus(num_cpus: int, governor: str | None) -> Check:
    """Client and server need a processor each, at a steady clock."""
    advice = ""
    if num_cpus < 2:
        advice = "one processor: client and server share it; measure a server on another machine"
    elif governor not in (None, "performance"):
        advice = "set the governor to performance: a clock that scales makes latencies of its own"
    return Check("processors", f"{num_cpus} usable, governor {governor or UNTOLD}", advice)


def check_pressure(pressure: dict[str, float] | None) -> Check:
    """Work that waits for a processor is work that is measured late."""
    if pressure is None:
        return Check("CPU pressure", UNTOLD)
    percent, advice = pressure["avg10_percent"], ""
    if percent > PRESSURE_PERCENT:
        advice = "other work waits for processors: stop it, or measure elsewhere"
    return Check("CPU pressure", f"{percent:g} % of the last 10 s", advice)


def check_descriptors(limit: int) -> Check:
    """Each request in flight holds one."""
    advice = "each request in flight needs one: raise the hard limit (ulimit -Hn)"
    return Check("file descriptors", f"{limit:,}", advice if limit < FEW_DESCRIPTORS else "")


def check_clock(source: str | None, pairing_ns: int) -> Check:
    """Every stamp is a reading of this clock; pairing_ns: how well kernel stamps are brought over to it."""
    advice = "" if source in (None, *GOOD_CLOCKS) else "this clock source is slow to read; tsc is better"
    return Check("clock", f"{source or UNTOLD}, paired to {pairing_ns} ns", advice)


def check_stamps() -> Check:
    """Whether the kernel says when bytes arrived, or only our own reads do."""
    if (stamping := start_stamping()) is None:
        advice = "stamps are those of our own reads: keep a processor free for the load process"
        return Check("receive stamps", "user space", advice)
    stamping.close()
    return Check("receive stamps", "kernel")


def climb(stop: threading.Event, *, realtime: bool = True) -> Iterator[Step]:
    """Drive the ladder of token rates, lowest first; ends early where `stop` is set."""
    with start_golden() as server:
        for tokens_per_s in LADDER_TOKENS_PER_S:
            step = drive_step(
                server, tokens_per_s / LADDER_OUTPUT_TOKENS, LADDER_OUTPUT_TOKENS, stop, realtime
            )
            if stop.is_set():
                return
            yield step


def try_planned(
    rate_per_s: float, output_tokens: int, stop: threading.Event, *, realtime: bool = True
) -> Step:
    """Drive the rate and the mean length that somebody means to measure."""
    with start_golden() as server:
        return drive_step(server, rate_per_s, output_tokens, stop, realtime)


def start_golden() -> AbstractContextManager[ServerProcess]:
    """Start the server that the client is held against, on a processor of its own where there are two.

    Raises BenchError on a system that the server cannot run on.
    """
    if not hasattr(select, "epoll"):
        raise BenchError("the known server needs Linux (epoll): nothing but the limits can be told here")
    cpus = usable_cpus()
    flags = ["--ttft-ms", f"{TTFT_MS}", "--gap-ms", f"{GAP_MS}"]
    return start_server(GOLDEN, *flags, *(["--cpu", f"{cpus[0]}"] if len(cpus) > 1 else []))


def drive_step(
    server: ServerProcess, rate_per_s: float, output_tokens: int, stop: threading.Event, realtime: bool
) -> Step:
    """Drive one rate for a few seconds and judge what the client recorded."""
    workload = Workload(
        rate_per_s=rate_per_s,
        duration_s=STEP_S,
        dist="fixed",
        input_tokens="32",
        output_tokens=f"{output_tokens}",
    )
    plan = workload.plan(seed=0)
    with tempfile.TemporaryDirectory(prefix="bench-doctor-") as out:
        folder = RunFolder.create(Path(out), "doctor")
        config = DriveConfig(
            url=server.url,
            model="golden",
            seed=0,
            nonce=0,
            run_id=folder.run_id,
            workers=None,
            pin=tuple(usable_cpus()[1:]) or None,
            realtime=realtime,
            drain_timeout_s=DRAIN_S,
        )
        folder.write_plan(plan)
        folder.write_manifest({"status": "running"})
        result = drive(plan, config, folder=folder.path, on_progress=lambda _: None, stop=stop)
        folder.compact_requests(plan)
        folder.write_manifest({"status": "complete"})
        rows = load(folder.path).rows.read([*JUDGED_COLUMNS, "scheduled_ns"])
        errors = judge(rows, server.take_log(), run_id=folder.run_id, epoch_ns=result.epoch_ns)
        sent = rows.filter(rows["sent_ns"].is_valid())
        lags_ns = sent["sent_ns"].to_numpy() - sent["scheduled_ns"].to_numpy()
    num_events = sum(worker.num_events for worker in result.workers)
    return Step(
        rate_per_s=rate_per_s,
        output_tokens=output_tokens,
        num_requests=errors.num_requests,
        ttft_error_p50_ms=quantile_ms(errors.ttft_ns, 0.5),
        ttft_error_p99_ms=quantile_ms(errors.ttft_ns, 0.99),
        itl_error_p50_ms=quantile_ms(errors.gap_ns, 0.5),
        itl_error_p99_ms=quantile_ms(errors.gap_ns, 0.99),
        send_lag_p99_ms=quantile_ms(lags_ns.astype(np.int64), 0.99),
        alone_fraction=errors.alone_fraction,
        cpu_us_per_token=sum(worker.cpu_s for worker in result.workers) / max(num_events, 1) * 1e6,
        workers=len(result.workers),
        server_late_ms=quantile_ms(errors.lateness_ns, 0.99),
    )
