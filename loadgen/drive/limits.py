"""What the system must allow before a run: descriptors, ports and memory; raised, or refused.

An open loop may need a connection for every request that is in flight, and nobody knows beforehand how many
those are. What can be known is refused here; a request that finds nothing left later is a failed row, not a
missing one.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np

from loadgen.drive.config import DriveConfig
from loadgen.errors import UsageError
from workloads.plan import Plan

SPARE_DESCRIPTORS = 64
MOST_DESCRIPTORS = 1 << 20  # Linux's own bound (fs.nr_open), where the hard limit names none
HOLD_S = 10  # a request is expected to hold its connection for less
TIME_WAIT_S = 60
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
MEMORY_FILE = Path("/proc/meminfo")
BYTES_PER_WORD = 48  # of a prompt while it is made: draws, a list of words, the text, its JSON, the payload
REQUESTS_PER_WORKER_S = 1_000
TOKENS_PER_WORKER_S = 10_000


def peak_arrivals(plan: Plan, window_s: float) -> int:
    """The most requests due within any `window_s`."""
    arrival_ns = plan.arrival_ns
    if len(arrival_ns) == 0:
        return 0
    ends = np.searchsorted(arrival_ns, arrival_ns + int(window_s * 1e9), side="left")
    return int((ends - np.arange(len(arrival_ns))).max())


def check_descriptors(plan: Plan, config: DriveConfig) -> None:
    """Lift the soft limit to the hard one; UsageError where even that is too low for the plan."""
    limit = raise_descriptor_limit()
    cap = config.concurrency or config.max_in_flight or len(plan)
    num_in_flight = min(peak_arrivals(plan, HOLD_S), cap)
    if num_in_flight + SPARE_DESCRIPTORS > limit:
        raise UsageError(
            f"this plan can have {num_in_flight} requests in flight, but a process may open {limit} files: "
            "raise the limit (ulimit -Hn), or lower --rate, or cap with --max-in-flight"
        )


def raise_descriptor_limit() -> int:
    """Let this process and its children open as many files as they may; return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft in (wanted, resource.RLIM_INFINITY):
        return wanted
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def check_ports(plan: Plan, config: DriveConfig) -> None:
    """Refuse fresh connections at a rate for which one address has too few local ports (60 s each)."""
    if not config.fresh_connections or config.concurrency is not None:
        return
    num_ports = count_ports()
    needed = peak_arrivals(plan, TIME_WAIT_S)
    if num_ports is not None and needed > num_ports:
        raise UsageError(
            f"--fresh-connections: {needed} connections are due within {TIME_WAIT_S} s, but there are "
            f"{num_ports} local ports (net.ipv4.ip_local_port_range): lower --rate or keep connections alive"
        )


def check_memory(plan: Plan) -> None:
    """Refuse a prompt that would not fit the memory that is free while it is made."""
    longest = int(plan.prompt_tokens.max(initial=0))
    needed_bytes, free_bytes = longest * BYTES_PER_WORD, free_memory_bytes()
    if free_bytes is not None and needed_bytes > free_bytes:
        raise UsageError(
            f"a prompt of {longest:,} tokens takes some {needed_bytes >> 20:,} MiB to make, and "
            f"{free_bytes >> 20:,} MiB are free; shorten --input-tokens, or give it a max="
        )


def free_memory_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not say."""
    try:
        words = MEMORY_FILE.read_text().partition("MemAvailable:")[2].split()
        return int(words[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None


def count_ports() -> int | None:
    """How many local ports the system gives out; None where it does not say."""
    try:
        low, high = map(int, PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        return None
    return high - low + 1


def usable_cpus() -> list[int]:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def choose_workers(plan: Plan, config: DriveConfig) -> int:
    """As many load processes as asked for, else as the plan's rates call for; never more than can be used."""
    num_cpus = len(config.pin or usable_cpus())
    wanted = config.workers
    if wanted is None:
        span_s = max(plan.span_s, 1.0)
        load = max(
            len(plan) / span_s / REQUESTS_PER_WORKER_S,
            float(plan.output_tokens.sum()) / span_s / TOKENS_PER_WORKER_S,
        )
        wanted = min(int(np.ceil(load)), num_cpus)
    cap = min(config.concurrency or len(plan), config.max_in_flight or len(plan), len(plan))
    return max(min(wanted, cap), 1)
