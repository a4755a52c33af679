"""The workload: what is asked for, checked as a whole and turned into a plan.

A workload is a value. `plan(seed)` is pure: the same workload and seed give the same plan in any process.
Every purpose draws from its own named stream (workloads.streams). What came of the wish stands in
`Plan.source`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.arrivals import Extent, parse_arrival
from workloads.errors import WorkloadError, unknown_name
from workloads.figures import workload_figures
from workloads.lengths import parse_law, sample_pairs
from workloads.limits import OVER_CONTEXT, ContextLimit, OverContext
from workloads.plan import Plan
from workloads.replay import ZERO_OUTPUT, Replay, ZeroOutput
from workloads.streams import Streams
from workloads.traces import BadRows

MAX_REQUESTS = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What to send and when.

    arrival: a process, such as `poisson` or `gamma(cv=2)`, at a mean of rate_per_s for duration_s;
        num_requests, where given, takes the place of the duration.
    dist: the family of the lengths; input_tokens, output_tokens: a mean (`64`) or a law in full, such as
        `lognormal(median=32, p99=128)`. rank_correlation: Spearman's, between the two.
    trace: recorded arrivals and lengths in place of all that. trace_window: seconds from the file's first
        row.
    context_tokens: the most that prompt and answer may take; over_context says what to do beyond.
    exact_count: pin the number of arrivals to rate times duration (else it is random, as in production).
    """

    name: str = "default"
    arrival: str = "poisson"
    rate_per_s: float | None = None
    duration_s: float | None = 30.0
    num_requests: int | None = None
    exact_count: bool = False
    dist: str = "lognormal"
    input_tokens: str | None = None
    output_tokens: str | None = None
    rank_correlation: float = 0.0
    context_tokens: int | None = None
    over_context: OverContext = "error"
    trace: Path | None = None
    trace_window: tuple[float, float | None] | None = None
    trace_speed: float = 1.0
    length_scale: float = 1.0
    bad_rows: BadRows = "error"
    zero_output: ZeroOutput = "drop"

    def check(self) -> None:
        """Raise WorkloadError for the first value that cannot be, without reading or drawing anything."""
        _positive("the rate", self.rate_per_s)
        _positive("the duration", self.duration_s)
        _positive("the number of requests", self.num_requests)
        _positive("the context", self.context_tokens)
        _positive("the trace speed", self.trace_speed)
        _positive("the length scale", self.length_scale)
        _one_of("over-context policy", self.over_context, OVER_CONTEXT)
        _one_of("zero-output policy", self.zero_output, ZERO_OUTPUT)
        _one_of("bad-rows policy", self.bad_rows, ("error", "drop"))
        if self.context_tokens == 1:
            raise WorkloadError("a context of 1 token holds no prompt and answer; give 2 or more")
        if not -1 <= self.rank_correlation <= 1:
            raise WorkloadError(
                f"the rank correlation must lie between -1 and 1, not {self.rank_correlation:g}"
            )
        if self.trace is not None:
            self._check_trace()
            return
        process = parse_arrival(self.arrival)
        if self.rate_per_s is None and process.needs_rate:
            raise WorkloadError(f"{self.arrival} needs a rate: give requests per second, such as --rate 20")
        if self.duration_s is None and self.num_requests is None:
            raise WorkloadError("give a duration or a number of requests")
        parse_law(self.input_tokens, self.dist)
        parse_law(self.output_tokens, self.dist)

    def _check_trace(self) -> None:
        if self.rate_per_s is not None:
            raise WorkloadError("a trace has its own rate; leave --rate out and change it with --trace-speed")
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
        plan = self._drawn(streams) if self.trace is None else self._replay().plan(streams)
        if not len(plan):
            raise WorkloadError("not one request falls into this duration; raise the rate or the duration")
        return plan.with_source(
            workload=self.to_dict(),
            seed=seed,
            realised=workload_figures(plan.arrival_ns, plan.prompt_tokens, plan.output_tokens),
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {
            "trace": None if self.trace is None else str(self.trace),
            "trace_window": None if self.trace_window is None else list(self.trace_window),
        }

    def _limit(self) -> ContextLimit:
        return ContextLimit(context_tokens=self.context_tokens, policy=self.over_context)

    def _replay(self) -> Replay:
        assert self.trace is not None
        return Replay(
            path=Path(self.trace),
            window_s=self.trace_window,
            speed=self.trace_speed,
            length_scale=self.length_scale,
            num_requests=self.num_requests,
            bad_rows=self.bad_rows,
            zero_output=self.zero_output,
            limit=self._limit(),
        )

    def _drawn(self, streams: Streams) -> Plan:
        expected = (self.rate_per_s or 0) * (self.duration_s or 0)
        if (self.num_requests or expected) > MAX_REQUESTS:
            raise WorkloadError(f"this plan has more than {MAX_REQUESTS:,} requests; shorten it")
        extent = Extent(
            rate_per_s=self.rate_per_s,
            duration_s=self.duration_s or 30.0,
            num_requests=self.num_requests,
            exact_count=self.exact_count,
        )
        arrival_ns = parse_arrival(self.arrival).sample(streams, extent)
        laws = parse_law(self.input_tokens, self.dist), parse_law(self.output_tokens, self.dist)
        rngs = streams.generator("lengths/input"), streams.generator("lengths/output")
        again = streams.generator("lengths/resample")
        inputs, outputs = sample_pairs(laws, self.rank_correlation, rngs, len(arrival_ns))
        fitted = self._limit().fit(
            inputs,
            outputs,
            lambda n: sample_pairs(laws, self.rank_correlation, (again, again), n),
            lambda i: f"request {i}",
        )
        kept = fitted.kept
        return Plan.of(
            arrival_ns[kept],
            fitted.input_tokens[kept].astype(np.int32),
            fitted.output_tokens[kept].astype(np.int32),
            {
                "limits": fitted.counts,
                "law_means": {"input_tokens": laws[0].mean, "output_tokens": laws[1].mean},
            },
        )


def _positive(what: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise WorkloadError(f"{what} must be above 0, not {value:g}")


def _one_of(kind: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown_name(kind, value, known)
