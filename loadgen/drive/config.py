"""What a drive is told, and what it tells: plain values that cross processes.

Nothing here decides anything; meanings and units only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from loadgen.endpoints.base import Endpoint
from loadgen.endpoints.openai import Completions
from loadgen.priority import NORMAL
from loadgen.transport.base import TransportCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveConfig:
    """How a plan is sent.

    endpoint: the API, with what is known of the server.
    prompts: `words`, `token-ids`, or the file whose texts the plan numbers. prompt_offset: tokens that the
    target adds to every prompt (template, BOS); taken off the words sent. tokens_per_word: 1 wherever a word
    is a token.
    more_urls: further targets that share the load, by turns of the index or to the least busy.
    workers: load processes; None chooses by the plan and the processors. pin: the processors they may use.
    realtime: ask the system to let them go before other work while they send.
    max_in_flight: a cap; requests above it leave late and are charged for it. concurrency: a closed loop, in
    which a request is due when one before it ends, whatever its arrival in the plan.
    """

    url: str
    more_urls: tuple[str, ...] = ()
    balance: str = "round-robin"  # or least-in-flight
    endpoint: Endpoint = field(default_factory=Completions)
    model: str
    headers: tuple[tuple[str, str], ...] = ()
    prompts: str = "words"
    prompt_offset: int = 0
    tokens_per_word: float = 1.0
    seed: int
    nonce: int
    run_id: str
    workers: int | None = 1
    pin: tuple[int, ...] | None = None
    realtime: bool = True
    fresh_connections: bool = False
    transport: str = "raw"  # or httpx
    verify: bool = True
    ca_file: str | None = None
    max_in_flight: int | None = None
    concurrency: int | None = None
    connect_timeout_s: float = 10.0
    first_token_timeout_s: float = 60.0
    stall_timeout_s: float = 30.0
    timeout_s: float = 600.0
    drain_timeout_s: float = 60.0


@dataclass(slots=True, kw_only=True)
class WorkerStats(TransportCounts):
    """One load process's account of itself, and of its transport.

    scheduling: the words of priority.StepForward. wait_s: how long the loop was ready to run and did not;
    None: not told. cpu_s: of the loop and of what was parsed after it.
    parsed_under_load: answers parsed while streams waited, for want of memory. rendered_late: requests made
    only when they were due.
    """

    worker: int
    num_sent: int = 0
    num_rows: int = 0
    send_lag_max_ns: int = 0
    peak_in_flight: int = 0
    scheduling: str = NORMAL
    cpu_s: float = 0.0
    wait_s: float | None = None
    max_rss_bytes: int = 0
    num_events: int = 0
    parsed_under_load: int = 0
    rendered_late: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a drive stands. Tokens and samples come from requests that have ended, never from live streams.

    outcomes: ended requests by outcome. recent_...: samples of the last reports, for live percentiles and the
    verdict so far; TTFT from the scheduled instant.
    """

    elapsed_s: float
    num_planned: int
    num_sent: int
    num_in_flight: int
    num_ended: int
    outcomes: dict[str, int]
    output_tokens: int
    recent_send_lag_s: tuple[float, ...]
    recent_ttft_s: tuple[float, ...]
    recent_itl_s: tuple[float, ...]
    is_draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveResult:
    """What happened. Instants are CLOCK_MONOTONIC ns; `epoch_wall` is the start on the wall clock (ISO)."""

    epoch_ns: int
    epoch_wall: str
    ended_ns: int
    num_rows: int
    interrupted: bool
    load_model: str
    worker_errors: list[str] = field(default_factory=list)
    workers: list[WorkerStats] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """The same as JSON-able values, for the manifest."""
        return asdict(self)
