"""What can be said from outside of a server that keeps no account: inference, and labelled as such.

Waiting before the first token is what the TTFT lasts beyond the curve of prompts that were computed alone:
fitted to requests with nobody else in flight, or, where there were too few, to the fastest for their length.
A gap is long at three medians. Long gaps that coincide across streams point at something that stops all of
them (a prompt's step, where a first token comes out as they end); long gaps alone at one stream (an eviction,
a retransmission). How often a first token would fall into such a gap by chance stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.attribution import Parts
from loadgen.measure.columns import Bools, Columns, Floats
from loadgen.measure.measured import Measured

MIN_REQUESTS = 40
MIN_SOLO = 20
NUM_BINS = 8
FASTEST = 0.05
LONG = 3.0
MAX_GAPS = 10_000_000  # of the first requests; more say nothing new


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloCurve:
    """TTFT of a prompt computed alone: seconds, a token, a squared token. method: what it was fitted to."""

    method: str
    num_requests: int
    coefficients: tuple[float, float, float]

    def at(self, prompt_tokens: Floats) -> Floats:
        return np.asarray(_powers(prompt_tokens) @ np.array(self.coefficients))


def infer(measured: Measured, server: dict[str, Any]) -> dict[str, Any]:
    """Compute the `inferred` of summary.json; empty where too little was seen. server: its own metrics."""
    columns, counted = measured.columns, measured.counted.copy()
    counted &= ~np.isnan(columns.first_token_ns) & ~np.isnan(columns.prompt_tokens)
    if counted.sum() < MIN_REQUESTS:
        return {}
    ttft_s = (columns.first_token_ns - columns.sent_ns)[counted] / 1e9
    prompts = columns.prompt_tokens[counted]
    curve = fit_solo_curve(prompts, ttft_s, is_alone(columns)[counted])
    solo_s = np.minimum(curve.at(prompts), ttft_s)
    lag_s = (columns.sent_ns - columns.scheduled_ns)[counted] / 1e9
    causes = {"client": lag_s, "solo_prefill": solo_s, "wait_before_first": ttft_s - solo_s}
    parts = Parts(latency_s=lag_s + ttft_s, causes=causes, weights=np.ones(len(ttft_s)))
    return {
        "solo": {
            "method": curve.method,
            "num_requests": curve.num_requests,
            "coefficients_s": list(curve.coefficients),
        },
        "mean_s": {name: float(values.mean()) for name, values in causes.items()},
        "ttft_s": parts.tail(),
        "gaps": infer_gaps(measured),
        "server": server_signs(server),
    }


def is_alone(columns: Columns) -> Bools:
    """Tell which requests had nobody else in flight from their send to their first token."""
    sent, ended, first = columns.sent_ns, columns.ended_ns, columns.first_token_ns
    known = ~np.isnan(sent)
    came_before = np.searchsorted(np.sort(sent[known]), first, "left")
    gone_before = np.searchsorted(np.sort(ended[known]), sent, "right")
    return np.asarray(known & (came_before - gone_before == 1))


def fit_solo_curve(prompt_tokens: Floats, ttft_s: Floats, alone: Bools) -> SoloCurve:
    """Fit seconds + a token + a squared token, none negative, to the medians of prompts of like length."""
    from scipy.optimize import nnls

    method, share, kept = "requests alone in flight", 0.5, alone
    if alone.sum() < MIN_SOLO:
        method, share, kept = "the fastest for their length", FASTEST, np.ones(len(alone), np.bool_)
    prompts, times = prompt_tokens[kept], ttft_s[kept]
    edges = np.quantile(prompts, np.linspace(0, 1, NUM_BINS + 1)[1:-1])
    group = np.searchsorted(edges, prompts, "left")
    found = [group == i for i in np.unique(group)]
    x = np.array([prompts[rows].mean() for rows in found])
    y = np.array([np.quantile(times[rows], share) for rows in found])
    rows = _powers(x)
    scale = rows.max(axis=0)
    solution, _ = nnls(rows / scale / y[:, None], np.ones(len(y)))
    base, slope, square = (float(value) for value in solution / scale)
    return SoloCurve(method=method, num_requests=int(kept.sum()), coefficients=(base, slope, square))


def _powers(prompt_tokens: Floats) -> Floats:
    return np.column_stack([np.ones(len(prompt_tokens)), prompt_tokens, prompt_tokens**2])


def infer_gaps(measured: Measured) -> dict[str, Any] | None:
    """Say how many gaps are long, and what happened elsewhere at the time; None without gaps."""
    gaps, columns = measured.gaps, measured.columns
    num = int(gaps.offsets[np.searchsorted(gaps.offsets, MAX_GAPS, "right") - 1])
    if num == 0:
        return None
    ns = gaps.ns[:num]
    median_ns = float(np.median(ns))
    at = np.flatnonzero(ns > LONG * median_ns)
    found = {"median_s": median_ns / 1e9, "num_long": len(at)}
    if not len(at):
        return found
    row = np.searchsorted(gaps.offsets, at, "right") - 1
    until = np.concatenate([[0], np.cumsum(ns, dtype=np.int64)])
    stream = np.flatnonzero(measured.counted)[row]
    ends = columns.first_token_ns[stream] + until[at + 1] - until[gaps.offsets[row]]
    lengths = ns[at].astype(np.float64)
    firsts = np.sort(columns.first_token_ns[~np.isnan(columns.first_token_ns)])
    slack = median_ns / 2  # stamps of one step come out one after the other
    num_firsts = np.searchsorted(firsts, ends + slack) - np.searchsorted(firsts, ends - lengths + slack)
    rate = len(firsts) / max(firsts[-1] - firsts[0], 1)
    return found | {
        "long_time_fraction": float(lengths.sum() / until[-1]),
        "coincide_fraction": float(coincides(stream, ends - lengths, ends).mean()),
        "first_token_fraction": float((num_firsts > 0).mean()),
        "first_token_by_chance": float((1 - np.exp(-rate * lengths)).mean()),
    }


def coincides(stream: NDArray[np.int64], starts: Floats, ends: Floats) -> Bools:
    """Tell which gaps share more than half of their time with a gap of another stream."""
    order = np.argsort(ends, kind="stable")
    stream, starts, ends = stream[order], starts[order], ends[order]
    found = np.zeros(len(ends), np.bool_)
    for shift in (1, 2):  # the neighbours in time, and one beyond where the neighbour is the same stream
        for a, b in ((slice(shift, None), slice(None, -shift)), (slice(None, -shift), slice(shift, None))):
            shared = np.minimum(ends[a], ends[b]) - np.maximum(starts[a], starts[b])
            found[a] |= (stream[a] != stream[b]) & (shared > 0.5 * (ends[a] - starts[a]))
    result = np.zeros(len(ends), np.bool_)
    result[order] = found
    return result


def server_signs(server: dict[str, Any]) -> dict[str, float]:
    """Return what the server's own metrics say of waiting and of memory, where it has them."""
    signs: dict[str, float | None] = {
        "queue_mean_s": (server.get("histograms", {}).get("queue_s") or {}).get("mean"),
        "num_preemptions": server.get("counters", {}).get("preemptions"),
        "waiting_max": (server.get("gauges", {}).get("waiting") or {}).get("max"),
        "kv_usage_max": (server.get("gauges", {}).get("kv_usage") or {}).get("max"),
    }
    return {name: value for name, value in signs.items() if value is not None}
