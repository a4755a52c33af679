"""The same log in the words of other tools: each figure as that tool defines and names it, to be quoted
beside it.

A tool's figures are over every ok request of the run: none of them leaves out a warm-up by itself. Where they
count latency from the send, a queue in front of the client is not in it. Definitions are written from
knowledge of the tools and worked by hand in the tests, not yet held against the installed tools; events
without tokens (role, finish, usage) are never gaps here.

    vllm       `vllm bench serve`: per-event ITL, linear percentiles, population deviation
    sglang     `sglang.bench_serving`: per-token ITL, E2E to the end of the stream
    aiperf     AIPerf and GenAI-Perf: ITL is one mean per request
    guidellm   ITL and TPOT are means per request, weighted by tokens; TPOT includes the first token
    mlperf     LoadGen, Server scenario: from the scheduled instant, percentile by truncated index
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Columns, Floats
from loadgen.measure.events import Gaps
from loadgen.stats.moments import moments
from loadgen.stats.quantile import interpolated_quantiles, weighted_quantiles

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Log:
    """Every ok request of a run, one value each, seconds from its start; NaN where unknown.

    gap_s, gap_tokens: pooled gaps between token-bearing events, and the tokens of the event that ended each.
    duration_s: from the first send to the end of the last request.
    """

    scheduled_s: Floats
    sent_s: Floats
    first_s: Floats
    last_s: Floats
    done_s: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    gap_s: Floats
    gap_tokens: NDArray[np.uint16] | None
    duration_s: float


def read_log(columns: Columns, gaps: Gaps) -> Log:
    """Gather the log. gaps: of all ok requests, whatever the window."""
    ok = columns.is_ok
    sent, done = columns.sent_ns[ok] / 1e9, columns.ended_ns[ok] / 1e9
    last = columns.last_token_ns[ok] / 1e9
    return Log(
        scheduled_s=columns.scheduled_ns[ok] / 1e9,
        sent_s=sent,
        first_s=columns.first_token_ns[ok] / 1e9,
        last_s=np.where(np.isnan(last), done, last),
        done_s=done,
        prompt_tokens=columns.prompt_tokens[ok],
        output_tokens=columns.output_tokens[ok],
        gap_s=gaps.seconds,
        gap_tokens=gaps.tokens,
        duration_s=float(done.max() - sent.min()) if len(sent) else 0.0,
    )


def vllm(log: Log) -> Figures:
    """`vllm bench serve --save-result`, its names and units."""
    return {
        **_vllm_statistics("ttft", log.first_s - log.sent_s),
        **_vllm_statistics("tpot", _per_gap(log.last_s - log.first_s, log.output_tokens)),
        **_vllm_statistics("itl", log.gap_s),
        **_vllm_statistics("e2el", log.last_s - log.sent_s),
        "duration": log.duration_s,
        "request_throughput": _rate(len(log.sent_s), log),
        "output_throughput": _rate(np.nansum(log.output_tokens), log),
        "total_token_throughput": _rate(np.nansum(log.output_tokens) + np.nansum(log.prompt_tokens), log),
    }


def sglang(log: Log) -> Figures:
    """`python -m sglang.bench_serving`, its names and units."""
    latency = log.done_s - log.sent_s
    return {
        **_vllm_statistics("ttft", log.first_s - log.sent_s),
        **_vllm_statistics("tpot", _per_gap(log.done_s - log.first_s, log.output_tokens)),
        **_vllm_statistics("itl", _token_gaps(log)),
        **_vllm_statistics("e2e_latency", latency),
        "duration": log.duration_s,
        "request_throughput": _rate(len(log.sent_s), log),
        "input_throughput": _rate(np.nansum(log.prompt_tokens), log),
        "output_throughput": _rate(np.nansum(log.output_tokens), log),
        "concurrency": _rate(latency.sum(), log),
    }


def aiperf(log: Log) -> Figures:
    """AIPerf and GenAI-Perf, their names; milliseconds."""
    latency = log.last_s - log.sent_s
    itl = _per_gap(log.last_s - log.first_s, log.output_tokens)
    return {
        "time_to_first_token": _aiperf_statistics(1e3 * (log.first_s - log.sent_s)),
        "inter_token_latency": _aiperf_statistics(1e3 * itl),
        "request_latency": _aiperf_statistics(1e3 * latency),
        "output_token_throughput_per_user": _aiperf_statistics(1 / itl[itl > 0]),
        "request_throughput": _rate(len(log.sent_s), log),
        "output_token_throughput": _rate(np.nansum(log.output_tokens), log),
    }


def guidellm(log: Log) -> Figures:
    """guidellm, its names; milliseconds, request latency in seconds."""
    tokens = log.output_tokens
    itl = _per_gap(log.last_s - log.first_s, tokens)
    tpot = np.divide(log.last_s - log.sent_s, tokens, out=np.full(len(tokens), np.nan), where=tokens > 0)
    ones = np.ones(len(tokens))
    return {
        "time_to_first_token_ms": _weighted_statistics(1e3 * (log.first_s - log.sent_s), ones),
        "inter_token_latency_ms": _weighted_statistics(1e3 * itl, tokens - 1),
        "time_per_output_token_ms": _weighted_statistics(1e3 * tpot, tokens),
        "request_latency": _weighted_statistics(log.done_s - log.sent_s, ones),
    }


def mlperf(log: Log) -> Figures:
    """MLPerf LoadGen, Server scenario with tokens; nanoseconds."""
    figures: Figures = {}
    for name, values in (
        ("first_token_latency", log.first_s - log.scheduled_s),
        ("time_per_output_token", _per_gap(log.last_s - log.first_s, log.output_tokens)),
        ("latency", log.last_s - log.scheduled_s),
    ):
        known = np.sort(values[~np.isnan(values)])
        figures[f"mean_{name}_ns"] = 1e9 * float(known.mean()) if len(known) else None
        for percent in (50, 90, 99, 99.9):
            index = int(len(known) * percent / 100)
            figures[f"{percent}_percentile_{name}_ns"] = 1e9 * float(known[index]) if len(known) else None
    figures["completed_samples_per_second"] = _rate(len(log.sent_s), log)
    figures["completed_tokens_per_second"] = _rate(np.nansum(log.output_tokens), log)
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


def _token_gaps(log: Log) -> Floats:
    """Each gap before an event of k tokens as k equal ones; one for an event of unknown tokens."""
    if log.gap_tokens is None:
        return log.gap_s
    tokens = np.maximum(log.gap_tokens, 1)
    return np.asarray(np.repeat(log.gap_s / tokens, tokens))


def _rate(amount: float, log: Log) -> float | None:
    return float(amount) / log.duration_s if log.duration_s > 0 else None


def _vllm_statistics(name: str, values_s: Floats) -> Figures:
    found = _linear_statistics(values_s, (0.5, 0.9, 0.95, 0.99))
    keys = ("mean", "std", "min", "max", "median", "p90", "p95", "p99")
    named = {key: None if value is None else 1e3 * value for key, value in zip(keys, found, strict=True)}
    return {f"{key}_{name}_ms": value for key, value in named.items() if key not in ("min", "max")}


def _aiperf_statistics(values: Floats) -> Figures:
    keys = ("avg", "std", "min", "max", "p50", "p90", "p95", "p99")
    return dict(zip(keys, _linear_statistics(values, (0.5, 0.9, 0.95, 0.99)), strict=True))


def _linear_statistics(values: Floats, qs: Sequence[float]) -> list[float | None]:
    """Mean, population deviation, smallest, largest, and interpolated quantiles of the known values."""
    is_known = ~np.isnan(values)
    known = values if is_known.all() else values[is_known]
    if len(known) == 0:
        return [None] * (4 + len(qs))
    total, mean, squares = moments(known)
    ends = float(known.min()), float(known.max())
    return [mean, float(np.sqrt(squares / total)), *ends, *interpolated_quantiles(known.copy(), qs)]


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
