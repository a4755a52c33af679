"""The same log in the words of other tools: each figure as that tool defines and names it, to be quoted
beside it.

A tool's figures are over every ok request of the run: none of them leaves out a warm-up by itself. Where they
count latency from the send, a queue in front of the client is not in it. Held against the tools themselves
(tests/real_tools); events without tokens (role, finish, usage) are never gaps here.

    vllm       `vllm bench serve`: per-event ITL, linear percentiles, population deviation
    sglang     `sglang.bench_serving`: per-token ITL, E2E to the end of the stream
    aiperf     AIPerf and GenAI-Perf: ITL is one mean per request
    guidellm   ITL and TPOT are means per request, weighted by tokens; TPOT includes the first token
    mlperf     LoadGen, Server scenario: from the scheduled instant, percentile by truncated index
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Columns, Floats
from loadgen.measure.gaps import Gaps
from loadgen.stats.moments import moments
from loadgen.stats.quantile import interpolated_quantiles, weighted_quantiles

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Log:
    """Every ok request of a run, one value each, seconds from its start; NaN where unknown.

    first_s: NaN for an answer that was not streamed. step_ns, step_tokens: from stamp to stamp, pooled, and
    the tokens of the event that ended each.
    """

    scheduled_s: Floats
    sent_s: Floats
    first_s: Floats
    last_s: Floats
    done_s: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    step_ns: NDArray[Any]
    step_tokens: NDArray[np.uint16] | None

    def rate(self, amount: float, end_s: Floats) -> float | None:
        """Something per second, from the first send to the last of these instants."""
        span_s = float(end_s.max() - self.sent_s.min()) if len(self.sent_s) else 0.0
        return float(amount) / span_s if span_s > 0 else None


def read_log(columns: Columns, steps: Gaps) -> Log:
    """Gather the log. steps: of all ok requests, whatever the window."""
    ok = columns.is_ok
    done, last = columns.ended_ns[ok] / 1e9, columns.last_token_ns[ok] / 1e9
    return Log(
        scheduled_s=columns.scheduled_ns[ok] / 1e9,
        sent_s=columns.sent_ns[ok] / 1e9,
        first_s=columns.first_token_ns[ok] / 1e9,
        last_s=np.where(np.isnan(last), done, last),
        done_s=done,
        prompt_tokens=columns.prompt_tokens[ok],
        output_tokens=columns.output_tokens[ok],
        step_ns=steps.ns,
        step_tokens=steps.tokens,
    )


def vllm(log: Log) -> Figures:
    """`vllm bench serve --save-result`, its names and units. What has no first chunk has failed there."""
    is_answer = ~np.isnan(log.first_s)
    sent, first, last = (values[is_answer] for values in (log.sent_s, log.first_s, log.last_s))
    tokens, prompts = log.output_tokens[is_answer], log.prompt_tokens[is_answer]
    return {
        **_vllm_statistics("ttft", first - sent),
        **_vllm_statistics("tpot", _per_gap(last - first, tokens)),
        **_vllm_statistics("itl", log.step_ns, 1e6),
        **_vllm_statistics("e2el", last - sent),
        "duration": float(log.done_s.max() - log.sent_s.min()) if len(log.sent_s) else 0.0,
        "request_throughput": log.rate(len(sent), log.done_s),
        "output_throughput": log.rate(np.nansum(tokens), log.done_s),
        "total_token_throughput": log.rate(np.nansum(tokens) + np.nansum(prompts), log.done_s),
    }


def sglang(log: Log) -> Figures:
    """`python -m sglang.bench_serving`, its names and units. An answer in one piece has it all at its end."""
    latency = log.done_s - log.sent_s
    first = np.where(np.isnan(log.first_s), log.done_s, log.first_s)
    steps_ns = log.step_ns
    if log.step_tokens is not None:
        tokens = np.maximum(log.step_tokens, 1)
        steps_ns = np.repeat(steps_ns / tokens, tokens)
    return {
        **_vllm_statistics("ttft", first - log.sent_s),
        **_vllm_statistics("tpot", _per_gap(log.done_s - first, log.output_tokens)),
        **_vllm_statistics("itl", steps_ns, 1e6),
        **_vllm_statistics("e2e_latency", latency),
        "duration": float(log.done_s.max() - log.sent_s.min()) if len(log.sent_s) else 0.0,
        "request_throughput": log.rate(len(log.sent_s), log.done_s),
        "input_throughput": log.rate(np.nansum(log.prompt_tokens), log.done_s),
        "output_throughput": log.rate(np.nansum(log.output_tokens), log.done_s),
        "concurrency": log.rate(latency.sum(), log.done_s),
    }


def aiperf(log: Log) -> Figures:
    """AIPerf and GenAI-Perf, their names; milliseconds. Their run ends with the last token."""
    itl = _per_gap(log.last_s - log.first_s, log.output_tokens)
    return {
        "time_to_first_token": _aiperf_statistics(log.first_s - log.sent_s, 1e-3),
        "inter_token_latency": _aiperf_statistics(itl, 1e-3),
        "request_latency": _aiperf_statistics(log.last_s - log.sent_s, 1e-3),
        "output_token_throughput_per_user": _aiperf_statistics(1 / itl[itl > 0]),
        "request_throughput": log.rate(len(log.sent_s), log.last_s),
        "output_token_throughput": log.rate(np.nansum(log.output_tokens), log.last_s),
    }


def guidellm(log: Log) -> Figures:
    """guidellm, its names; milliseconds, request latency in seconds. What was not streamed has gaps of 0."""
    tokens = log.output_tokens
    itl = np.where(np.isnan(log.first_s), 0.0, _per_gap(log.last_s - log.first_s, tokens))
    tpot = np.divide(log.last_s - log.sent_s, tokens, out=np.full(len(tokens), np.nan), where=tokens > 0)
    ones = np.ones(len(tokens))
    return {
        "time_to_first_token_ms": _weighted_statistics(1e3 * (log.first_s - log.sent_s), ones),
        "inter_token_latency_ms": _weighted_statistics(1e3 * itl, tokens - 1),
        "time_per_output_token_ms": _weighted_statistics(1e3 * tpot, tokens),
        "request_latency": _weighted_statistics(log.done_s - log.sent_s, ones),
    }


def mlperf(log: Log) -> Figures:
    """MLPerf LoadGen, Server scenario with tokens, by the keys of its detail log."""
    figures: Figures = {}
    for values, mean, percentile in (
        (log.last_s - log.scheduled_s, "mean_latency_ns", "{}_percentile_latency_ns"),
        (
            log.first_s - log.scheduled_s,
            "first_token_mean_latency_ns",
            "first_token_{}_percentile_latency_ns",
        ),
        (
            _per_gap(log.last_s - log.first_s, log.output_tokens),
            "time_to_output_token_mean",
            "time_per_output_token_{}_percentile_ns",
        ),
    ):
        known = np.sort(values[~np.isnan(values)])
        figures[f"result_{mean}"] = 1e9 * float(known.mean()) if len(known) else None
        for percent in (50, 90, 99, 99.9):
            key = f"result_{percentile.format(f'{percent:.2f}')}"
            figures[key] = 1e9 * float(known[int(len(known) * percent / 100)]) if len(known) else None
    span_s = float(log.last_s.max() - log.scheduled_s.min()) if len(log.last_s) else 0.0
    for key, amount in (
        ("samples_per_sec", len(log.sent_s) - 1),  # their intervals
        ("tokens_per_second", np.nansum(log.output_tokens)),
    ):
        figures[f"result_completed_{key}"] = float(amount) / span_s if span_s > 0 else None
    return figures


DIALECTS: Mapping[str, Callable[[Log], Figures]] = {
    "vllm": vllm,
    "sglang": sglang,
    "aiperf": aiperf,
    "guidellm": guidellm,
    "mlperf": mlperf,
}


def speak(log: Log) -> dict[str, Figures]:
    """The log in every dialect; a figure without values is None."""
    return {name: dialect(log) for name, dialect in DIALECTS.items()}


def _per_gap(span_s: Floats, tokens: Floats) -> Floats:
    """A span over the number of its token gaps; NaN with a single token or an unknown number."""
    undefined: Floats = np.full(len(tokens), np.nan)
    return np.divide(span_s, tokens - 1, out=undefined, where=tokens > 1)


def _vllm_statistics(name: str, values: NDArray[Any], per_ms: float = 1e-3) -> Figures:
    keys = ("mean", "std", "min", "max", "median", "p90", "p95", "p99")
    found = dict(zip(keys, _linear_statistics(values, per_ms), strict=True))
    return {f"{key}_{name}_ms": value for key, value in found.items() if key not in ("min", "max")}


def _aiperf_statistics(values: Floats, per_unit: float = 1.0) -> Figures:
    keys = ("avg", "std", "min", "max", "p50", "p90", "p95", "p99")
    return dict(zip(keys, _linear_statistics(values, per_unit), strict=True))


def _linear_statistics(values: NDArray[Any], per_unit: float) -> list[float | None]:
    """Mean, population deviation, smallest, largest, and interpolated quantiles of the known values."""
    known = values[~np.isnan(values)] if values.dtype == np.float64 else values
    if len(known) == 0:
        return [None] * 8
    total, mean, squares = moments(known)
    quantiles = interpolated_quantiles(known.copy(), (0.5, 0.9, 0.95, 0.99))
    found = [mean, float(np.sqrt(squares / total)), float(known.min()), float(known.max()), *quantiles]
    return [value / per_unit for value in found]


def _weighted_statistics(values: Floats, weights: Floats) -> Figures:
    is_known = ~np.isnan(values) & (weights > 0)
    values, weights = values[is_known], weights[is_known]
    keys = ("mean", "median", "std_dev", "p90", "p95", "p99", "max")
    if len(values) == 0:
        return dict.fromkeys(keys)
    mean = float(np.average(values, weights=weights))
    deviation = float(np.sqrt(np.average(np.square(values - mean), weights=weights)))
    median, *tail = weighted_quantiles(values, weights, [0.5, 0.9, 0.95, 0.99])
    return dict(zip(keys, [mean, median, deviation, *tail, float(values.max())], strict=True))
