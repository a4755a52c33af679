"""The figures by which a workload is known: rate, burstiness, quantiles of the lengths. Plain JSON-able
dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64] | NDArray[np.int32]


def length_figures(tokens: Ints) -> dict[str, float] | None:
    """Mean, p50, p90, p99 and max of a column of lengths; None for an empty one."""
    if not len(tokens):
        return None
    p50, p90, p99 = np.percentile(tokens, (50, 90, 99))
    return {
        "mean": float(tokens.mean()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": int(tokens.max()),
    }


def arrival_figures(arrival_ns: NDArray[np.int64]) -> dict[str, float | None]:
    """Span, rate and CV of the gaps; None where there are too few arrivals or no time between them."""
    gaps = np.diff(arrival_ns) / 1e9
    span_s = float(gaps.sum())
    mean = span_s / len(gaps) if len(gaps) else 0.0
    return {
        "span_s": span_s,
        "rate_per_s": 1 / mean if mean > 0 else None,
        "gap_cv": float(gaps.std() / mean) if mean > 0 and len(gaps) > 1 else None,
    }


def minute_figures(arrival_ns: NDArray[np.int64]) -> dict[str, float] | None:
    """How uneven whole minutes are: variance over mean of their counts (Poisson: 1), peak over mean."""
    num_minutes = int(arrival_ns[-1] // 60_000_000_000) if len(arrival_ns) else 0
    if num_minutes < 3:
        return None
    counts = np.bincount(arrival_ns // 60_000_000_000)[:num_minutes]
    mean = float(counts.mean())
    return {"variance_to_mean": float(counts.var()) / mean, "peak_to_mean": float(counts.max()) / mean}


def workload_figures(
    arrival_ns: NDArray[np.int64], input_tokens: Ints, output_tokens: Ints
) -> dict[str, Any]:
    return {
        **arrival_figures(arrival_ns),
        "input_tokens": length_figures(input_tokens),
        "output_tokens": length_figures(output_tokens),
    }


def session_figures(session: NDArray[np.int64], think_ns: NDArray[np.int64]) -> dict[str, Any] | None:
    """How many sessions and turns, and how many of these wait for an answer; None without sessions."""
    in_session, waits = session[session >= 0], think_ns[session >= 0] >= 0
    if not len(in_session):
        return None
    count = len(np.unique(in_session))
    return {
        "count": count,
        "turns_mean": len(in_session) / count,
        "closed_turns": int(waits.sum()),
        "open_turns": int((~waits).sum()),
    }


def profile(arrival_ns: NDArray[np.int64], input_tokens: Ints, output_tokens: Ints) -> dict[str, Any]:
    """Give what a picture of a workload shows.

    rate_per_s: mean rate in 60 equal parts of the span. gaps (those above 0), input_tokens, output_tokens:
        histograms by factors of 2. joint: for each fifth of the prompts by length, their range and the
        median answer.
    """
    counts, edges = np.histogram(arrival_ns / 1e9, bins=60)
    width_s = float(edges[1] - edges[0])
    gaps = np.diff(arrival_ns) / 1e9
    joint = []
    for rows in np.array_split(np.argsort(input_tokens, kind="stable"), 5):
        if len(rows):
            part = input_tokens[rows]
            joint.append([int(part.min()), int(part.max()), float(np.median(output_tokens[rows]))])
    return {
        "rate_per_s": (counts / width_s).tolist() if len(arrival_ns) > 1 else [],
        "gaps": _by_factors_of_two(gaps[gaps > 0]),
        "zero_gaps": int(np.sum(gaps == 0)),
        "input_tokens": _by_factors_of_two(input_tokens),
        "output_tokens": _by_factors_of_two(output_tokens),
        "joint": joint,
    }


def _by_factors_of_two(values: NDArray[Any]) -> list[list[float]]:
    """Count values in [2^k, 2^(k+1)): pairs of lower bound and count, without the empty ends."""
    powers, counts = np.unique(np.floor(np.log2(np.maximum(values, 1e-12))), return_counts=True)
    found = dict(zip(powers.astype(int).tolist(), counts.tolist(), strict=True))
    if not found:
        return []
    return [[2.0**power, found.get(power, 0)] for power in range(min(found), max(found) + 1)]
