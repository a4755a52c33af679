"""The workload: what is asked for, checked as a whole and turned into a plan.

A workload is a value. `plan(seed)` is pure: the same workload and seed give the same plan in any process.
Every purpose draws from its own named stream (workloads.streams). What came of the wish stands in
`Plan.source`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from workloads.arrivals import parse_arrival
from workloads.draw import draw, superpose
from workloads.errors import WorkloadError, unknown_name
from workloads.figures import session_figures, workload_figures
from workloads.lengths import parse_law
from workloads.limits import OVER_CONTEXT, OverContext
from workloads.plan import Plan
from workloads.prefixes import hit_tokens, parse_prefixes
from workloads.prompts import DRAWN
from workloads.replay import ZERO_OUTPUT, ZeroOutput, replay
from workloads.sessions import parse_sessions
from workloads.streams import Streams
from workloads.traces import BadRows, ReadOptions

MAX_RATE_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What to send and when.

    arrival: a process, such as `poisson` or `gamma(cv=2)`, at a mean of rate_per_s for duration_s;
        num_requests, where given, takes the place of the duration. exact_count: pin the number of arrivals to
        rate times duration (else it is random, as in production).
    dist: the family of the lengths; input_tokens, output_tokens: a mean (`64`) or a law in full, such as
        `lognormal(median=32, p99=128)`; rank_correlation: Spearman's, between the two. lengths_from: a
        recorded file whose rows are drawn instead, prompt and answer together. length_scale multiplies all
        of them.
    prompts: `words` (each one token), `token-ids`, or a file of texts that are sent as they are.
    sessions, prefixes: see the modules of these names. A turn's prompt is prefix, history and own text.
    context_tokens: the most that prompt and answer may take; over_context says what to do beyond.
    clients: workloads laid over each other, each with its share of rate_per_s (or a rate of its own).
    trace: recorded arrivals and lengths in place of all that; the fields after it say which rows, how fast,
        and how to read the file (lengths_from too). trace_window: seconds from the file's first row.
    about: where the figures come from, for a reader; it changes nothing.
    """

    name: str = "default"
    about: str = ""
    arrival: str = "poisson"
    rate_per_s: float | None = None
    duration_s: float | None = 30.0
    num_requests: int | None = None
    exact_count: bool = False
    dist: str = "lognormal"
    input_tokens: str | None = None
    output_tokens: str | None = None
    rank_correlation: float = 0.0
    lengths_from: Path | None = None
    length_scale: float = 1.0
    prompts: str = "words"
    sessions: str | None = None
    prefixes: str | None = None
    context_tokens: int | None = None
    over_context: OverContext = "error"
    share: float = 1.0
    clients: tuple[Workload, ...] = ()
    trace: Path | None = None
    trace_window: tuple[float, float | None] | None = None
    trace_speed: float = 1.0
    trace_thin: float = 1.0
    trace_copies: int = 1
    dequantize: bool = False
    trace_columns: str | None = None
    time_unit: str | None = None
    block_tokens: int | None = None
    bad_rows: BadRows = "error"
    zero_output: ZeroOutput = "drop"

    def check(self) -> None:
        """Raise WorkloadError for the first value that cannot be, without reading or drawing anything."""
        for what, value in (
            ("the rate", self.rate_per_s), ("the duration", self.duration_s), ("the share", self.share),
            ("the number of requests", self.num_requests), ("the context", self.context_tokens),
            ("the trace speed", self.trace_speed), ("the length scale", self.length_scale),
            ("the thinning", self.trace_thin), ("the number of copies", self.trace_copies),
            ("the block size", self.block_tokens),
        ):  # fmt: skip
            if value is not None and not (math.isfinite(value) and value > 0):
                raise WorkloadError(f"{what} must be above 0, not {value:g}")
        if self.rate_per_s is not None and self.rate_per_s > MAX_RATE_PER_S:
            raise WorkloadError(f"the rate must be at most one request a nanosecond, not {self.rate_per_s:g}")
        for kind, chosen, known in (
            ("over-context policy", self.over_context, OVER_CONTEXT),
            ("zero-output policy", self.zero_output, ZERO_OUTPUT),
            ("bad-rows policy", self.bad_rows, ("error", "drop")),
        ):
            if chosen not in known:
                raise unknown_name(kind, chosen, known)
        if self.context_tokens == 1:
            raise WorkloadError("a context of 1 token holds no prompt and answer; give 2 or more")
        self.read_options().check()
        if self.has_texts:
            self._check_texts()
        if self.trace is not None:
            self._check_trace()
        elif self.clients:
            self._check_clients()
        else:
            self._check_synthetic()

    def _check_synthetic(self) -> None:
        process = parse_arrival(self.arrival)
        if self.rate_per_s is None and process.needs_rate:
            raise WorkloadError(f"{self.arrival} needs a rate: give requests per second, such as --rate 20")
        if self.duration_s is None and self.num_requests is None:
            raise WorkloadError("give a duration or a number of requests")
        if not -1 <= self.rank_correlation <= 1:
            raise WorkloadError(f"rank_correlation must lie between -1 and 1, not {self.rank_correlation:g}")
        if self.lengths_from is not None and (self.input_tokens or self.output_tokens):
            raise WorkloadError("give the lengths either by law or from a file, not both")
        if self.lengths_from is None:
            parse_law(self.input_tokens, self.dist)
            parse_law(self.output_tokens, self.dist)
        if self.sessions is not None:
            parse_sessions(self.sessions)
            if self.over_context == "resample":
                raise WorkloadError("a history cannot be drawn again; choose --over-context clip or drop")
        if self.prefixes is not None:
            parse_prefixes(self.prefixes)

    def _check_texts(self) -> None:
        others = ("trace", "clients", "sessions", "prefixes", "lengths_from", "input_tokens")
        if other := next((name for name in others if getattr(self, name)), None):
            raise WorkloadError(f"a file of prompts has its own lengths and history: leave {other} out")
        if self.over_context in ("clip", "resample"):
            raise WorkloadError("a text is sent as it is; choose --over-context drop")

    def _check_clients(self) -> None:
        names = [client.name for client in self.clients]
        if len(set(names)) < len(names):
            raise WorkloadError(f"each client needs a name of its own, not {', '.join(names)}")
        if any(c.clients or c.trace or c.prompts != "words" for c in self.clients):
            raise WorkloadError("a client is a synthetic workload: it has no clients, trace or prompts")
        for client in self._clients():
            client.check()

    def _check_trace(self) -> None:
        if self.rate_per_s is not None:
            raise WorkloadError("a trace has its own rate; leave --rate out and change it with --trace-speed")
        if self.clients or self.sessions or self.prefixes or self.lengths_from:
            raise WorkloadError("a trace brings its own clients, sessions, prefixes and lengths")
        if self.trace_thin > 1:
            raise WorkloadError(f"the thinning keeps a fraction: at most 1, not {self.trace_thin:g}")
        if self.trace_window is not None:
            start, end = self.trace_window
            if not (math.isfinite(start) and start >= 0) or (end is not None and not end > start):
                until = "" if end is None else f"{end:g}s"
                raise WorkloadError(
                    f"the trace window {start:g}:{until} is empty or starts before 0; write 0:60s"
                )

    def plan(self, seed: int) -> Plan:
        """Draw or read the plan; raises WorkloadError with one clear line."""
        if seed < 0:
            raise WorkloadError(f"the seed must be 0 or more, not {seed}")
        self.check()
        streams = Streams(seed)
        if self.trace is not None:
            plan = replay(self, streams)
        elif self.clients:
            plan = self._superposed(streams)
        else:
            plan = draw(self, streams)
        if not len(plan):
            raise WorkloadError("not one request falls into this duration; raise the rate or the duration")
        hits = hit_tokens(plan.prefix_blocks, plan.prefix_offsets, plan.block_tokens, plan.prompt_tokens)
        return plan.with_source(
            workload=self.to_dict(),
            seed=seed,
            law_means=self._law_means(),
            realised={
                **workload_figures(plan.arrival_ns, plan.prompt_tokens, plan.output_tokens),
                "ideal_hit_rate": int(hits.sum()) / int(plan.prompt_tokens.sum(dtype="int64")),
                "sessions": session_figures(plan.session, plan.think_ns),
            },
        )

    def _superposed(self, streams: Streams) -> Plan:
        """Draw every client; where the requests are counted, for as long as they all together need."""
        clients, wanted = self._clients(), self.num_requests
        rates = [client.rate_per_s or 0 for client in clients]
        is_endless = all(rates) and not any(client.arrival == "at-once" for client in clients)
        until_s = 1.1 * wanted / sum(rates) + 1 if wanted is not None and is_endless else None
        for doublings in range(12):
            if until_s is not None:
                spans = {"num_requests": None, "duration_s": until_s * 2**doublings}
                clients = [replace(client, **spans) for client in clients]
            drawn = [draw(client, streams.child(f"clients/{client.name}")) for client in clients]
            if until_s is None or wanted is None or sum(map(len, drawn)) >= wanted:
                break
        return superpose(drawn, wanted)

    def _law_means(self) -> dict[str, float] | None:
        """The mean lengths that the laws imply, truncation included, before scale and limits."""
        if self.trace or self.clients or self.lengths_from or self.has_texts:
            return None
        laws = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return {side: parse_law(text, self.dist).mean for side, text in laws.items()}

    def to_dict(self) -> dict[str, Any]:
        """What makes this workload, JSON-able; `files.workload_of` takes it back.

        Defaults are left out, but for the process and the family that its own draws come from.
        """
        given: dict[str, Any] = {}
        draws = () if self.trace is not None or self.clients else ("arrival", "dist")
        for item in fields(self):
            value = getattr(self, item.name)
            if value == item.default and item.name not in draws:
                continue
            if isinstance(value, Path):
                value = str(value)
            elif isinstance(value, tuple):
                value = [part.to_dict() if isinstance(part, Workload) else part for part in value]
            given[item.name] = value
        return given

    def read_options(self) -> ReadOptions:
        """How the recorded file of this workload is read."""
        return ReadOptions(
            columns=self.trace_columns,
            time_unit=self.time_unit,
            block_tokens=self.block_tokens,
            bad_rows=self.bad_rows,
        )

    @property
    def has_texts(self) -> bool:
        """Whether prompts are texts of a file."""
        return self.prompts not in DRAWN

    def _clients(self) -> list[Workload]:
        """The clients with what they inherit: rate by share, extent, limits and scale."""
        total = sum(client.share for client in self.clients if client.rate_per_s is None)
        inherited = []
        for client in self.clients:
            rate = client.rate_per_s
            if rate is None and self.rate_per_s is not None:
                rate = self.rate_per_s * client.share / total
            inherited.append(
                replace(
                    client,
                    rate_per_s=rate,
                    duration_s=self.duration_s,
                    num_requests=self.num_requests,
                    exact_count=self.exact_count,
                    length_scale=client.length_scale * self.length_scale,
                    context_tokens=client.context_tokens or self.context_tokens,
                    over_context=self.over_context if client.over_context == "error" else client.over_context,
                )
            )
        return inherited
