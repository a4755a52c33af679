"""The kinds of run that the verdict is held against: what the server does, what is asked, what runs beside.

The server has a processor and the highest priority, so that its log is true beside any load; the client has
the other one, and shares it with the load. Bundling kinds write several token events at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.busy import ALWAYS, IN_BURSTS, busy_loops
from benchmarks.runs import CLIENT_CPU, SERVER_CPU

BOTH = (SERVER_CPU, CLIENT_CPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of run. server, bench: flags; beside: (processes, work) on each of the client's processors.

    bundles: the server writes most tokens together with others, so that no gap between them is the truth.
    """

    name: str
    bench: str
    server: str = ""
    tokens_per_event: int = 1
    beside: tuple[int, str] | None = None
    server_cpu: int = SERVER_CPU
    client_cpus: tuple[int, ...] = (CLIENT_CPU,)
    bundles: bool = False
    is_realtime: bool = True

    @property
    def server_flags(self) -> list[str]:
        """What the golden server is started with."""
        events = ["--tokens-per-event", f"{self.tokens_per_event}"]
        return ["--realtime", "--cpu", f"{self.server_cpu}", *events, *self.server.split()]

    @contextlib.contextmanager
    def load_beside(self) -> Iterator[None]:
        """Run what runs beside the client until the block ends."""
        with contextlib.ExitStack() as stack:
            if self.beside is not None:
                for cpu in self.client_cpus:
                    stack.enter_context(busy_loops(cpu, *self.beside))
            yield


def _kind(name: str, rate: float, tokens: int, gap_ms: float, server: str = "", bench: str = "") -> Kind:
    load = f"--rate {rate:g} --duration 4s" if rate else "--requests 200"
    return Kind(
        name=name, bench=f"{load} --output-tokens {tokens} {bench}", server=f"--gap-ms {gap_ms} {server}"
    )


QUIET = (
    _kind("50/s, 64 tokens, 10 ms", 50, 64, 10),
    _kind("5/s, 256 tokens, 15 ms", 5, 256, 15, bench="--duration 8s"),
    _kind("20/s, 128 tokens, 1 ms", 20, 128, 1),
    _kind("40/s, 32 tokens, 50 ms", 40, 32, 50),
    _kind("200/s, 64 tokens, 10 ms", 200, 64, 10),
    _kind("100/s, 1 token", 100, 1, 10),
    _kind("100/s, 2 tokens, 5 ms", 100, 2, 5),
    _kind("500/s, 8 tokens, 5 ms", 500, 8, 5),
    _kind("1,500/s, 4 tokens, one worker", 1500, 4, 10),
    _kind("20,000 tokens/s: 312/s, 64 tokens", 312.5, 64, 10),
    replace(_kind("4 tokens an event, 20 ms", 50, 64, 20), tokens_per_event=4),
    _kind("chat, 16 tokens", 100, 16, 10, bench="--api chat"),
    _kind("end with the last token, one write", 100, 16, 10, "--tail-joined"),
    _kind("end right after, two writes", 100, 16, 10, "--tail-ms 0"),
    _kind("end 5 ms after", 100, 16, 10, "--tail-ms 5"),
    _kind("in steps of 20 ms", 100, 32, 20, "--in-steps"),
    _kind("jitter, sigma 0.5", 50, 64, 10, "--jitter 0.5"),
    _kind("jitter, sigma 1", 50, 32, 10, "--jitter 1"),
    _kind("bursty arrivals", 50, 32, 10, bench="--arrival gamma(cv=3)"),
    _kind("closed loop of 8", 0, 32, 5, bench="--concurrency 8"),
    _kind("httpx", 20, 32, 10, bench="--transport httpx"),
    replace(_kind("nothing pinned", 50, 64, 10), client_cpus=BOTH),
)
BUNDLING = (
    replace(_kind("gateway that buffers 50 ms", 20, 64, 10, "--buffer-ms 50"), bundles=True),
    replace(_kind("whole answer in one write", 50, 32, 5, "--events-per-write 999"), bundles=True),
    replace(_kind("two events a write", 50, 64, 10, "--events-per-write 2"), bundles=True),
    replace(_kind("three events a write", 50, 64, 10, "--events-per-write 3"), bundles=True),
    _kind("one gap in ten bundled: jitter, 5 ms buffer", 50, 64, 10, "--jitter 0.5 --buffer-ms 5"),
)
LOADED = (
    replace(_kind("a busy loop", 50, 64, 10), beside=(1, ALWAYS)),
    replace(_kind("8 busy loops", 50, 64, 10), beside=(8, ALWAYS)),
    replace(_kind("bursts of 50 ms each 500 ms", 100, 16, 10), beside=(1, IN_BURSTS)),
    replace(_kind("server on the client's processor", 50, 64, 10), server_cpu=CLIENT_CPU),
    replace(_kind("2 busy loops on each, not pinned", 20, 64, 10), beside=(2, ALWAYS), client_cpus=BOTH),
)
KINDS = (
    *QUIET,
    *BUNDLING,
    *LOADED,
    replace(_kind("8 busy loops, 500/s of 8 tokens", 500, 8, 5), beside=(8, ALWAYS)),
    *(replace(kind, name=f"{kind.name}, no real time", is_realtime=False) for kind in LOADED),
)
