"""Fits a synthetic workload to a recorded one, and says how well it fits.

Arrivals: several processes are tried (poisson, gamma, weibull, a rate that moves in steps, on-off); each is
drawn a few times over the same span, and the one whose gaps and counts come nearest is taken. Lengths: no
single family fits production traffic, so quantiles are taken, as many as it needs; lognormal and gamma are
fitted beside them to show by how much they miss. What is not fitted (sessions, prefixes, a dependence that
no rank correlation expresses) is said in the notes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.arrivals import Extent, parse_arrival
from workloads.errors import WorkloadError
from workloads.laws import Gamma, Law, Lognormal, Quantiles
from workloads.replay import trace_facts
from workloads.spec import Workload
from workloads.streams import Streams
from workloads.traces import TraceTable

Floats = NDArray[np.float64]
MAX_KS = 0.015
MAX_QUANTILES = 48
NUM_DRAWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A workload, its goodness of fit (pairs of [recorded, fitted], KS distances), and notes for the user."""

    workload: Workload
    goodness: dict[str, Any]
    notes: tuple[str, ...]


def fit_table(table: TraceTable, name: str) -> Fit:
    """Fit the rows of a table (100 or more)."""
    if len(table) < 100:
        raise WorkloadError(f"{table.path}: {len(table)} rows are too few to fit; 100 are needed")
    facts = trace_facts(table)
    rho = _rank_correlation(table)
    goodness: dict[str, Any] = {}
    notes = [f"fitted to {facts['rows']['kept']} rows of {table.format.name} format"]
    arrival, rate, duration_s = "poisson", None, 30.0
    if table.format.arrival is not None:
        if facts["tick_s"]:
            notes.append(f"times come in ticks of {facts['tick_s']:g} s: fit with --dequantize")
        times = table.arrival_ns / 1e9
        duration_s = math.ceil(times[-1])
        rate = round((len(times) - 1) / float(times[-1]), 4)
        arrival, goodness["arrival"] = _fit_arrival(times, rate)
    inputs, goodness["input_tokens"] = _fit_lengths(table.input_tokens)
    outputs, goodness["output_tokens"] = _fit_lengths(table.output_tokens)
    goodness["rank_correlation"] = rho
    if hit_rate := facts["prefix"]["ideal_hit_rate"]:
        notes.append(f"shared prefixes (ideal hit rate {hit_rate:.1%}) are not fitted")
    if facts["sessions"]:
        notes.append("sessions are not fitted: each turn became a request of its own")
    notes.append(
        "prompt and answer are tied by their ranks alone; lengths_from = FILE keeps the recorded pairs"
    )
    workload = Workload(
        name=name,
        arrival=arrival,
        rate_per_s=rate,
        duration_s=duration_s,
        input_tokens=inputs,
        output_tokens=outputs,
        rank_correlation=rho,
    )
    return Fit(workload=workload, goodness=goodness, notes=tuple(notes))


def _fit_lengths(tokens: NDArray[np.int64]) -> tuple[str, dict[str, Any]]:
    """Take quantiles, one more wherever the law misses most, until it misses by no more than MAX_KS."""
    values, counts = np.unique(np.maximum(tokens, 1), return_counts=True)
    recorded = np.cumsum(counts) / len(tokens)
    points = {0.0: float(values[0]), 1.0: float(values[-1])}
    # The tail carries much of the mean, and little of the distance by which the other points are chosen.
    for tail in recorded[np.searchsorted(recorded, (0.5, 0.9, 0.99, 0.999))]:
        points[float(tail)] = float(values[np.searchsorted(recorded, tail)]) + 0.5
    points[1.0] = float(values[-1])
    while True:
        levels = np.array(sorted(points))
        law = Quantiles(levels, np.array([points[level] for level in levels]))
        misfit = np.abs(recorded - law.cdf(values + 0.5))[:-1]
        if len(points) >= MAX_QUANTILES or misfit.max(initial=0.0) <= MAX_KS:
            break
        worst = int(np.argmax(misfit))
        # Half a token up: drawn below this level, a length rounds to this value or less.
        points[round(float(recorded[worst]), 5)] = float(values[worst]) + 0.5
    named = [f"p{level * 100:.6g}={value:g}" for level, value in sorted(points.items())]
    named[0], named[-1] = f"min={points[0.0]:g}", f"max={points[1.0]:g}"
    logs = np.log(np.maximum(tokens, 1))
    families: dict[str, Law] = {
        "lognormal": Lognormal(math.exp(float(logs.mean())), max(float(logs.std()), 1e-6)),
        "gamma": Gamma(float(tokens.mean()), float(tokens.mean() ** 2 / max(tokens.var(), 1e-9))),
    }
    at = values + 0.5
    misses = {name: float(np.abs(recorded - other.cdf(at)).max()) for name, other in families.items()}
    ks = float(misfit.max(initial=0.0))
    means = [float(tokens.mean()), law.mean]
    return f"empirical({', '.join(named)})", {"ks": ks, "mean": means, "ks_of_families": misses}


def _rank_correlation(table: TraceTable) -> float:
    from scipy.stats import spearmanr

    if len(np.unique(table.input_tokens)) < 2 or len(np.unique(table.output_tokens)) < 2:
        return 0.0
    return round(float(spearmanr(table.input_tokens, table.output_tokens).statistic), 3)


def _fit_arrival(times: Floats, rate: float) -> tuple[str, dict[str, Any]]:
    gaps = np.diff(times)
    cv = min(max(round(float(gaps.std() / gaps.mean()), 3), 0.02), 50)
    candidates = ["poisson", f"gamma(cv={cv})", f"weibull(cv={cv})", *_onoffs(gaps), _steps(times)]
    scores = {text: _compare(times, text, rate) for text in candidates}
    # Of those that come about as near as the nearest, the simplest: they are listed in that order.
    nearest = min(score["distance"] for score in scores.values())
    best = next(text for text in candidates if scores[text]["distance"] <= nearest + 0.05)
    tried = {
        text.partition("(")[0]: score["distance"] for text, score in sorted(scores.items(), reverse=True)
    }
    return best, scores[best] | {"tried": tried}


def _steps(times: Floats) -> str:
    """A rate for every stretch of 200 arrivals or more, at most 24, and the CV of the gaps that remains."""
    num_steps = int(np.clip(len(times) // 200, 1, 24))
    edges = np.linspace(0, times[-1], num_steps + 1)
    counts = np.histogram(times, edges)[0]
    rates = counts / (times[-1] / num_steps)
    gaps = np.diff(np.interp(times, edges, np.append(0, np.cumsum(counts))))
    cv = float(gaps.std() / gaps.mean())
    parts = [f"{edge:.0f}s:{rate:.4g}" for edge, rate in zip(edges, rates, strict=False)]
    return f"steps({', '.join(parts)}, cv={min(max(cv, 0.02), 50):.3g})"


def _onoffs(gaps: Floats) -> list[str]:
    """On-off processes for several lengths of gap above which the source counts as off."""
    found = []
    for limit in gaps.mean() * np.array([3, 6, 12, 25, 50]):
        pauses, others = gaps[gaps > limit], gaps[gaps <= limit]
        if len(pauses) < 5 or not others.any():
            break
        cv = float(others.std() / others.mean())
        on, off = others.sum() / len(pauses), pauses.mean()
        found.append(f"onoff(on={on:.4g}s, off={off:.4g}s, cv={min(max(cv, 0.02), 50):.3g})")
    return found


def _compare(times: Floats, text: str, rate: float) -> dict[str, Any]:
    """Draw the process over the same span and compare gaps and counts; `distance` sums the misfits."""
    from scipy.stats import ks_2samp

    span_s = float(times[-1])
    extent = Extent(rate_per_s=rate, duration_s=span_s)
    process = parse_arrival(text)
    runs = [process.sample(Streams(seed, "fit/"), extent) / 1e9 for seed in range(NUM_DRAWS)]
    runs = [run for run in runs if len(run) > 2]
    if not runs:
        return {"distance": math.inf}
    gaps, drawn = np.diff(times), np.concatenate([np.diff(run) for run in runs])
    cvs = [float(np.diff(run).std() / np.diff(run).mean()) for run in runs]
    cv = [float(gaps.std() / gaps.mean()), float(np.median(cvs))]
    dispersion = [_dispersion(times, span_s), float(np.median([_dispersion(run, span_s) for run in runs]))]
    ks = float(ks_2samp(gaps, drawn, method="asymp").statistic)
    distance = _log_ratio(cv) + _log_ratio(dispersion) / 2 + 2 * ks
    return {"distance": distance, "gap_cv": cv, "dispersion": dispersion, "gap_ks": ks}


def _dispersion(times: Floats, span_s: float) -> float:
    """Variance over mean of the counts in 60 equal windows."""
    counts = np.histogram(times, 60, (0, span_s))[0]
    return float(counts.var() / max(counts.mean(), 1e-9))


def _log_ratio(pair: list[float]) -> float:
    return abs(math.log(max(pair[0], 1e-3) / max(pair[1], 1e-3)))
