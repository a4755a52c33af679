"""The metrics, each defined once: which values it pools, over which requests, in which unit. docs/metrics.md.

All are over the `ok` requests scheduled inside the window; `..._with_failures` count every request scheduled
there, one that failed as +inf. Latency runs from the scheduled instant. Undefined is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Bools, Columns, Floats, Window
from loadgen.measure.gaps import Gaps, Nanoseconds, Ranges
from loadgen.stats.moments import moments
from loadgen.stats.quantile import quantiles, weighted_quantiles

PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
STATISTICS = ("mean", "std", "min", *PERCENTILES, "max")
SURE_S = 0.001
SURE_SHARE = 0.05

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
    num_failed: how many of the values are +inf because their request failed. ranges: where values can lie
    that are not exact, in the same unit; None for what is no time.
    """

    values: Floats | Nanoseconds
    weights: NDArray[np.int64] | Floats | None = None
    num_failed: int = 0
    per_unit: float = 1.0
    ranges: Ranges | None = None

    @property
    def num_values(self) -> int:
        """How many values there are; levels, not their durations, where the weights are times."""
        if self.weights is None or self.weights.dtype == np.float64:
            return len(self.values)
        return int(self.weights.sum())

    def with_failures(self, num_failed: int) -> Sample:
        """The same values, one a request, and as many infinite ones as requests failed."""
        values = np.concatenate([self.values, np.full(num_failed, np.inf)])
        return replace(self, values=values, num_failed=num_failed)

    def quantiles(self, qs: Sequence[float]) -> list[float]:
        """Quantiles of at least one value, by the one rule of stats.quantile."""
        if self.weights is None:
            return [value / self.per_unit for value in quantiles(self.values.copy(), qs)]
        return [value / self.per_unit for value in weighted_quantiles(self.values, self.weights, qs)]

    def ends(self) -> tuple[float, float]:
        """The smallest and the largest of at least one value."""
        return float(self.values.min()) / self.per_unit, float(self.values.max()) / self.per_unit

    def extremes(self) -> tuple[Sample, Sample]:
        """The sample with all values as low, and with all as high, as they can be."""
        if self.ranges is None or len(self.ranges.at) == 0:
            return self, self
        return self._with(self.ranges.low), self._with(self.ranges.high)

    def _with(self, ends: NDArray[Any]) -> Sample:
        assert self.ranges is not None
        is_wider = self.values.dtype == np.uint32 and ends.max() > np.iinfo(np.uint32).max
        values: Any = self.values.astype(np.int64) if is_wider else self.values.copy()
        values[self.ranges.at] = ends
        return replace(self, values=values, ranges=None)

    def share_above(self, limit: float) -> float:
        """The share of at least one value that lies above a limit, each with its weight."""
        is_above = self.values > limit * self.per_unit * (1 + 1e-12)  # 0.015 s is 15,000,000 ns
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

    error: of each statistic, where the bounds of the stamps and the send lag let it lie. withheld: the code
    of the finding for which there are no figures.
    carries: the highest of p50, p90, p95 and p99 with ten independent values beyond it; None where none has.
    """

    unit: str
    n: int
    statistics: dict[str, float | None]
    num_failed: int | None = None
    error: dict[str, tuple[float, float]] = field(default_factory=dict)
    withheld: str | None = None
    ci: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    ci_method: str | None = None
    n_eff: float | None = None
    carries: str | None = None

    @property
    def client_limited(self) -> list[str]:
        """The statistics that the client's own error leaves unsure."""
        return [name for name, found in self.error.items() if not is_sure(self.statistics[name], found)]

    def to_json(self) -> dict[str, Any]:
        """The metric as it stands in summary.json."""
        failed = {} if self.num_failed is None else {"n_failed": self.num_failed}
        sureness = {"error": self.error, "client_limited": self.client_limited, "withheld": self.withheld}
        interval = {"ci": self.ci, "ci_method": self.ci_method, "n_eff": self.n_eff, "carries": self.carries}
        return {"unit": self.unit, "n": self.n, **failed, **self.statistics, **sureness, **interval}


def is_sure(value: float | None, error: tuple[float, float]) -> bool:
    """Whether a time in s is known to 1 ms or 5 % of it; one that is infinite either way is."""
    if value is None or not np.isfinite(value):
        return True
    return max(value - error[0], error[1] - value) <= max(SURE_S, SURE_SHARE * value)


def request_values(columns: Columns, counted: Bools, by_request: Mapping[str, Floats]) -> dict[str, Floats]:
    """The metrics that have one value a request, for the counted requests in order of index; NaN where
    undefined. by_request: as of `events.Events`, for these requests.
    """
    scheduled, sent = columns.scheduled_ns[counted], columns.sent_ns[counted]
    first, last = columns.first_token_ns[counted], last_ns(columns, counted)
    tokens = columns.output_tokens[counted]
    e2e = (last - scheduled) / 1e9
    return {
        "ttft_s": (first - scheduled) / 1e9,
        "ttft_from_send_s": (first - sent) / 1e9,
        "first_answer_s": (columns.first_answer_ns[counted] - scheduled) / 1e9,
        "tpot_s": per_token(last - first, tokens, by_request),
        "e2e_s": e2e,
        "e2e_from_send_s": (last - sent) / 1e9,
        "max_gap_s": by_request["max_gap_s"],
        "send_lag_s": (sent - scheduled) / 1e9,
        "recv_lag_s": columns.recv_lag_ns[counted] / 1e9,
        "connect_s": (columns.connected_ns[counted] - sent) / 1e9,
        "normalized_latency_s": np.divide(e2e, tokens, out=np.full(len(e2e), np.nan), where=tokens > 0),
        "output_tokens_per_request": tokens,
        "prompt_tokens_per_request": columns.prompt_tokens[counted],
    }


def request_ranges(
    columns: Columns, counted: Bools, by_request: Mapping[str, Floats], *, is_lag_ours: bool
) -> dict[str, tuple[Floats, Floats]]:
    """Where the values of `request_values` can lie that are times of the server: lowest and highest.

    Had a request left when it was due, its answer would have come earlier by up to what it was late: with
    is_lag_ours the low end is free of that, and of what held it back after its send. An answer without token
    events has the stamp of its end.
    """
    scheduled, sent = columns.scheduled_ns[counted], columns.sent_ns[counted]
    first, last = columns.first_token_ns[counted], last_ns(columns, counted)
    tokens, answer = columns.output_tokens[counted], columns.first_answer_ns[counted]
    first_low = _known_or(by_request["first_lower_ns"], first)
    answer_low = _known_or(by_request["answer_lower_ns"], answer)
    last_low = _known_or(by_request["last_lower_ns"], last)
    held = np.nan_to_num(columns.write_lag_ns[counted])
    from_ns = sent + held if is_lag_ours else scheduled
    e2e: tuple[Floats, Floats] = (last_low - from_ns) / 1e9, (last - scheduled) / 1e9
    return {
        "ttft_s": ((first_low - from_ns) / 1e9, (first - scheduled) / 1e9),
        "ttft_from_send_s": ((first_low - sent - held) / 1e9, (first - sent) / 1e9),
        "first_answer_s": ((answer_low - from_ns) / 1e9, (answer - scheduled) / 1e9),
        "tpot_s": (
            per_token(np.maximum(last_low - first, 0), tokens, by_request),
            per_token(last - first_low, tokens, by_request),
        ),
        "e2e_s": e2e,
        "e2e_from_send_s": ((last_low - sent - held) / 1e9, (last - sent) / 1e9),
        "max_gap_s": (by_request["max_gap_low_s"], by_request["max_gap_high_s"]),
        "normalized_latency_s": (e2e[0] / np.maximum(tokens, 1), e2e[1] / np.maximum(tokens, 1)),
    }


def last_ns(columns: Columns, counted: Bools) -> Floats:
    """When answers were over: an answer that was not streamed has no token events; it is complete with its
    body.
    """
    last = columns.last_token_ns[counted]
    return _known_or(last, columns.done_ns[counted])


def per_token(span_ns: Floats, tokens: Floats, by_request: Mapping[str, Floats]) -> Floats:
    """TPOT: the time from the first read that held a token to the last, over the tokens that came after the
    first; over all but one where the stream does not tell how many the first held. NaN where one read held
    all.
    """
    later = by_request["later_tokens"]
    later = _known_or(later, tokens - 1)
    several = (later > 0) & ~np.isnan(by_request["max_gap_s"])
    undefined = np.full(len(span_ns), np.nan)
    return np.asarray(np.divide(span_ns / 1e9, later, out=undefined, where=several), np.float64)


def _known_or(values: Floats, others: Floats) -> Floats:
    return np.asarray(np.where(np.isnan(values), others, values), np.float64)


def compute_samples(
    values: Mapping[str, Floats],
    ranges: Mapping[str, tuple[Floats, Floats]],
    gaps: Gaps,
    columns: Columns,
    window: Window,
) -> dict[str, Sample]:
    """Every metric's values; `values` and `ranges` are those of `request_values` and `request_ranges`."""
    samples = {name: _sample_of(value, ranges.get(name)) for name, value in values.items()}
    num_failed = int(window.holds(columns.scheduled_ns).sum()) - len(values["e2e_s"])
    for name in ("ttft", "e2e"):
        samples[f"{name}_with_failures_s"] = samples[f"{name}_s"].with_failures(num_failed)
    samples["event_gap_s"] = Sample(values=gaps.ns, per_unit=1e9, ranges=gaps.ranges)
    samples["itl_s"] = token_gaps(gaps, gaps.ranges)
    samples["in_flight"] = _in_flight(columns, window)
    return {name: samples[name] for name in UNITS}


def _sample_of(values: Floats, ends: tuple[Floats, Floats] | None) -> Sample:
    known = ~np.isnan(values)
    if ends is None:
        return Sample(values=values[known])
    low, high = (end[known] for end in ends)
    at = np.flatnonzero(low != high)
    return Sample(values=values[known], ranges=Ranges(at, low[at], high[at]))


def token_gaps(gaps: Gaps, ranges: Ranges) -> Sample:
    """A gap d before an event of k tokens is k token gaps of d / k; left out where k is unknown. ranges: of
    the gaps.
    """
    if gaps.tokens is None:
        return Sample(values=gaps.ns, per_unit=1e9, ranges=ranges)
    known = gaps.tokens > 0
    weights = gaps.tokens[known].astype(np.int64)
    kept = ranges.of(known, len(gaps.ns))
    share = weights[kept.at]
    return Sample(
        values=gaps.ns[known] / weights,
        weights=weights,
        per_unit=1e9,
        ranges=Ranges(kept.at, kept.low / share, kept.high / share),
    )


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
    statistics = _statistics(sample)
    error: dict[str, tuple[float, float]] = {}
    if sample.ranges is not None:
        lows, highs = (statistics if end is sample else _statistics(end) for end in sample.extremes())
        for one, value in statistics.items():
            low, high = lows[one], highs[one]
            if one != "std" and value is not None and low is not None and high is not None:
                error[one] = min(low, value), max(high, value)
    return MetricSummary(unit=UNITS[name], n=n, statistics=statistics, num_failed=num_failed, error=error)


def _statistics(sample: Sample) -> dict[str, float | None]:
    mean, std = sample.moments()
    low, high = sample.ends()
    values = [mean, std, low, *sample.quantiles(list(PERCENTILES.values())), high]
    finite = (value if value is not None and np.isfinite(value) else None for value in values)
    return dict(zip(STATISTICS, finite, strict=True))
