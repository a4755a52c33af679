"""The metrics, each defined once: which values it pools, over which requests, in which unit. docs/metrics.md.

All are over the `ok` requests scheduled inside the window; `..._with_failures` count every request scheduled
there, one that failed as +inf. Latency runs from the scheduled instant. Undefined is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Bools, Columns, Floats, Window
from loadgen.measure.events import Gaps, Nanoseconds
from loadgen.stats.moments import moments
from loadgen.stats.quantile import quantiles, weighted_quantiles

PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
STATISTICS = ("mean", "std", "min", *PERCENTILES, "max")

UNITS: Mapping[str, str] = {
    "ttft_s": "s",
    "ttft_from_send_s": "s",
    "ttft_with_failures_s": "s",
    "first_answer_s": "s",
    "itl_s": "s",
    "event_gap_s": "s",
    "tpot_s": "s",
    "e2e_s": "s",
    "e2e_from_send_s": "s",
    "e2e_with_failures_s": "s",
    "max_gap_s": "s",
    "send_lag_s": "s",
    "recv_lag_s": "s",
    "connect_s": "s",
    "normalized_latency_s": "s/token",
    "output_tokens_per_request": "tokens",
    "prompt_tokens_per_request": "tokens",
    "in_flight": "requests",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """The values of one metric, in its unit times `per_unit`: gaps are whole nanoseconds.

    weights: whole numbers where a value stands for that many equal ones, floats where it held for that long.
    num_failed: how many of the values are +inf because their request failed.
    """

    values: Floats | Nanoseconds
    weights: NDArray[np.int64] | Floats | None = None
    num_failed: int = 0
    per_unit: float = 1.0

    @property
    def num_values(self) -> int:
        """How many values there are; levels, not their durations, where the weights are times."""
        if self.weights is None or self.weights.dtype == np.float64:
            return len(self.values)
        return int(self.weights.sum())

    def with_failures(self, num_failed: int) -> Sample:
        """The same values, one a request, and as many infinite ones as requests failed."""
        values = np.concatenate([self.values, np.full(num_failed, np.inf)])
        return Sample(values=values, num_failed=num_failed)

    def quantiles(self, qs: Sequence[float]) -> list[float]:
        """Quantiles of at least one value, by the one rule of stats.quantile."""
        if self.weights is None:
            return [value / self.per_unit for value in quantiles(self.values.copy(), qs)]
        return [value / self.per_unit for value in weighted_quantiles(self.values, self.weights, qs)]

    def ends(self) -> tuple[float, float]:
        """The smallest and the largest of at least one value."""
        return float(self.values.min()) / self.per_unit, float(self.values.max()) / self.per_unit

    def share_above(self, limit: float) -> float:
        """The share of at least one value that lies above a limit, each with its weight."""
        is_above = self.values > round(limit * self.per_unit, 3)  # 0.015 s is 15,000,000 ns
        return float(np.average(is_above, weights=self.weights))

    def moments(self) -> tuple[float | None, float | None]:
        """Mean and sample standard deviation; None where a value is infinite, and for the spread of one
        value.
        """
        if self.num_failed:
            return None, None
        total, mean, squares = moments(self.values, self.weights)
        lost = 0 if self.weights is not None and self.weights.dtype == np.float64 else 1
        deviation = float(np.sqrt(squares / (total - lost))) / self.per_unit if total > lost else None
        return mean / self.per_unit, deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """One metric, summed up. A statistic that does not exist is None; one that falls on a failure is None
    too.

    carries: the highest of p50, p90, p95 and p99 with ten independent values beyond it; None where none has.
    """

    unit: str
    n: int
    statistics: dict[str, float | None]
    num_failed: int | None = None
    ci: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    ci_method: str | None = None
    n_eff: float | None = None
    carries: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The metric as it stands in summary.json."""
        failed = {} if self.num_failed is None else {"n_failed": self.num_failed}
        interval = {
            "ci": self.ci,
            "ci_method": self.ci_method,
            "n_eff": self.n_eff,
            "carries": self.carries,
        }
        return {"unit": self.unit, "n": self.n, **failed, **self.statistics, **interval}


def request_values(columns: Columns, counted: Bools, max_silence_s: Floats) -> dict[str, Floats]:
    """The metrics that have one value a request, for the counted requests in order of index; NaN where
    undefined.
    """
    scheduled, sent = columns.scheduled_ns[counted], columns.sent_ns[counted]
    first, last = columns.first_token_ns[counted], columns.last_token_ns[counted]
    # an answer that was not streamed has no token events; it is complete with its body
    last = np.where(np.isnan(last), columns.done_ns[counted], last)
    tokens = columns.output_tokens[counted]
    e2e = (last - scheduled) / 1e9
    undefined = np.full(len(e2e), np.nan)
    return {
        "ttft_s": (first - scheduled) / 1e9,
        "ttft_from_send_s": (first - sent) / 1e9,
        "first_answer_s": (columns.first_answer_ns[counted] - scheduled) / 1e9,
        "tpot_s": np.divide((last - first) / 1e9, tokens - 1, out=undefined.copy(), where=tokens > 1),
        "e2e_s": e2e,
        "e2e_from_send_s": (last - sent) / 1e9,
        "max_gap_s": max_silence_s,
        "send_lag_s": (sent - scheduled) / 1e9,
        "recv_lag_s": columns.recv_lag_ns[counted] / 1e9,
        "connect_s": (columns.connected_ns[counted] - sent) / 1e9,
        "normalized_latency_s": np.divide(e2e, tokens, out=undefined, where=tokens > 0),
        "output_tokens_per_request": tokens,
        "prompt_tokens_per_request": columns.prompt_tokens[counted],
    }


def compute_samples(
    values: Mapping[str, Floats], gaps: Gaps, columns: Columns, window: Window
) -> dict[str, Sample]:
    """Every metric's values; `values` are those of `request_values`."""
    samples = {name: Sample(values=value[~np.isnan(value)]) for name, value in values.items()}
    num_failed = int(window.holds(columns.scheduled_ns).sum()) - len(values["e2e_s"])
    for name in ("ttft", "e2e"):
        samples[f"{name}_with_failures_s"] = samples[f"{name}_s"].with_failures(num_failed)
    samples["event_gap_s"] = Sample(values=gaps.ns, per_unit=1e9)
    samples["itl_s"] = _token_gaps(gaps)
    samples["in_flight"] = _in_flight(columns, window)
    return {name: samples[name] for name in UNITS}


def _token_gaps(gaps: Gaps) -> Sample:
    """A gap d before an event of k tokens is k token gaps of d / k; left out where k is unknown."""
    if gaps.tokens is None:
        return Sample(values=gaps.ns, per_unit=1e9)
    known = gaps.tokens > 0
    weights = gaps.tokens[known].astype(np.int64)
    return Sample(values=gaps.ns[known] / weights, weights=weights, per_unit=1e9)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """A step function: `level[i]` from `time_ns[i]` up to `time_ns[i + 1]`."""

    time_ns: Floats
    level: NDArray[np.int64]


def in_flight_steps(columns: Columns) -> Steps:
    """Requests in flight at the client, exactly: from each send to the end of that request."""
    sent = ~np.isnan(columns.sent_ns)
    starts, ends = columns.sent_ns[sent], columns.ended_ns[sent]
    times = np.concatenate([starts, ends])
    changes = np.concatenate([np.ones(len(starts), np.int64), -np.ones(len(ends), np.int64)])
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(changes[order])
    last_at_time = np.append(times[1:] != times[:-1], True) if len(times) else np.zeros(0, np.bool_)
    return Steps(time_ns=times[last_at_time], level=level[last_at_time])


def _in_flight(columns: Columns, window: Window) -> Sample:
    steps = in_flight_steps(columns)
    if not window.length_s > 0:
        return Sample(values=np.zeros(0))
    edges = np.concatenate([[window.start_ns], steps.time_ns[window.holds(steps.time_ns)], [window.end_ns]])
    level_before = np.concatenate([[0], steps.level])
    levels = level_before[np.searchsorted(steps.time_ns, edges[:-1], side="right")]
    return Sample(values=levels.astype(np.float64), weights=np.diff(edges))


def summarize_sample(name: str, sample: Sample) -> MetricSummary:
    """Sum up one metric."""
    num_failed = sample.num_failed if name.endswith("_with_failures_s") else None
    n = sample.num_values
    if n == 0:
        nothing: dict[str, float | None] = dict.fromkeys(STATISTICS)
        return MetricSummary(unit=UNITS[name], n=0, statistics=nothing, num_failed=num_failed)
    mean, std = sample.moments()
    low, high = sample.ends()
    statistics = [mean, std, low, *sample.quantiles(list(PERCENTILES.values())), high]
    finite = [value if value is not None and np.isfinite(value) else None for value in statistics]
    return MetricSummary(
        unit=UNITS[name], n=n, statistics=dict(zip(STATISTICS, finite, strict=True)), num_failed=num_failed
    )
