"""A sweep over rates as one table: latency against rate and throughput, and where the server saturates.

Reads the summaries of finished runs; computes no latency of its own. Saturation is told by the backlog: the
highest rate at which it is steady, the lowest at which it grows. Undecided rates say nothing.
The knee is where throughput / latency, Kleinrock's power (1979), is largest: beyond it latency is paid for
little more throughput. Where a rate has several runs, a point stands for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from loadgen.measure.backlog import is_steady
from loadgen.measure.slo import met_objectives
from loadgen.stats.replicates import over_runs
from loadgen.units import format_rate

SWEEP_SCHEMA_VERSION = 1
STATISTICS = ("mean", "p50", "p90", "p99")
METRICS = ("ttft_s", "itl_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One rate: what was asked, what came of it. latency: metric -> statistic -> seconds, None unknown.

    intervals: of one run, or over the runs where there are several. is_stable: None where the run does not
    tell. met: which objectives on an aggregate held, None unknown.
    """

    rate_per_s: float
    folder: str
    status: str
    reasons: tuple[str, ...]
    is_stable: bool | None
    offered_per_s: float | None
    ok_per_s: float | None
    output_tokens_per_s: float | None
    goodput_per_s: float | None
    failed: int
    latency: dict[str, dict[str, float | None]]
    intervals: dict[str, dict[str, list[float] | None]]
    runs: tuple[str, ...] = ()
    met: dict[str, bool | None] = field(default_factory=dict)

    @classmethod
    def of(cls, rate_per_s: float, folder: str, summary: dict[str, Any]) -> SweepPoint:
        """Take what a sweep shows from a run's summary."""
        verdict, rates, metrics = summary["verdict"], summary["rates"], summary["metrics"]
        return cls(
            rate_per_s=rate_per_s,
            folder=folder,
            status=verdict["status"],
            reasons=tuple(reason["code"] for reason in verdict["reasons"]),
            is_stable=is_steady(summary),
            offered_per_s=rates["offered_per_s"],
            ok_per_s=rates["ok_per_s"],
            output_tokens_per_s=rates["output_tokens_per_s"],
            goodput_per_s=summary["slo"]["goodput_per_s"],
            failed=summary["counts"]["failed"],
            latency={name: {s: metrics[name].get(s) for s in STATISTICS} for name in METRICS},
            intervals={name: dict(metrics[name].get("ci") or {}) for name in METRICS},
            runs=(folder,),
            met=met_objectives(summary["slo"]),
        )

    @classmethod
    def of_replicates(cls, points: Sequence[SweepPoint]) -> SweepPoint:
        """Merge the runs of one rate: geometric means, intervals over the valid runs."""
        if len(points) == 1:
            return points[0]
        valid = [point for point in points if point.status == "valid"] or list(points)
        over = {
            name: {s: over_runs(_known(p.latency[name][s] for p in valid)) for s in STATISTICS}
            for name in METRICS
        }
        return cls(
            rate_per_s=points[0].rate_per_s,
            folder=points[0].folder,
            status="valid" if all(point.status == "valid" for point in points) else "invalid",
            reasons=tuple(sorted({reason for point in points for reason in point.reasons})),
            is_stable=_together([point.is_stable for point in valid]),
            offered_per_s=_mean(p.offered_per_s for p in valid),
            ok_per_s=_mean(p.ok_per_s for p in valid),
            output_tokens_per_s=_mean(p.output_tokens_per_s for p in valid),
            goodput_per_s=_mean(p.goodput_per_s for p in valid),
            failed=sum(point.failed for point in points),
            latency={n: {s: f.value if f else None for s, f in found.items()} for n, found in over.items()},
            intervals={
                n: {s: list(f.interval) if f and f.interval else None for s, f in found.items()}
                for n, found in over.items()
            },
            runs=tuple(run for point in points for run in point.runs),
            met={name: all(point.met.get(name) for point in valid) for name in valid[0].met},
        )


def _together(found: Sequence[bool | None]) -> bool | None:
    """Several runs of one rate: what those that tell it agree on."""
    told = {is_stable for is_stable in found if is_stable is not None}
    return told.pop() if len(told) == 1 else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Between which rates the backlog starts to grow; None where no point says so."""

    stable_per_s: float | None
    unstable_per_s: float | None

    def sentence(self) -> str:
        """The finding in words."""
        if self.stable_per_s is None:
            if self.unstable_per_s is None:
                return "where it saturates is undecided: no valid run was long enough to tell"
            return f"no rate was steady: saturation lies below {format_rate(self.unstable_per_s)}"
        if self.unstable_per_s is None:
            return f"the backlog was steady up to {format_rate(self.stable_per_s)}: saturation lies above"
        return (
            f"saturation lies between {format_rate(self.stable_per_s)} (backlog steady) "
            f"and {format_rate(self.unstable_per_s)} (backlog grows)"
        )


def find_saturation(points: Sequence[SweepPoint]) -> Saturation:
    """Bracket saturation. A point that is invalid, or undecided, says nothing about the server."""
    judged = sorted(
        (p for p in points if p.status == "valid" and p.is_stable is not None), key=lambda p: p.rate_per_s
    )
    unstable = [p.rate_per_s for p in judged if not p.is_stable]
    first_unstable = unstable[0] if unstable else None
    stable = [
        p.rate_per_s
        for p in judged
        if p.is_stable and (first_unstable is None or p.rate_per_s < first_unstable)
    ]
    return Saturation(stable_per_s=stable[-1] if stable else None, unstable_per_s=first_unstable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """The rate with the most throughput per latency. is_at_end: no rate was measured beyond it."""

    rate_per_s: float
    is_at_end: bool

    def sentence(self) -> str:
        """The finding in words."""
        where = ", the end of the rates measured" if self.is_at_end else ""
        return f"knee at {format_rate(self.rate_per_s)}{where} (most throughput per mean latency)"


def find_knee(points: Sequence[SweepPoint]) -> Knee | None:
    """Find the valid point with the largest ok requests per second over mean E2E; None below three points."""
    powers = sorted(
        (point.rate_per_s, point.ok_per_s / mean)
        for point in points
        if point.status == "valid" and point.ok_per_s is not None and (mean := point.latency["e2e_s"]["mean"])
    )
    if len(powers) < 3:
        return None
    best = max(range(len(powers)), key=lambda i: powers[i][1])
    return Knee(rate_per_s=powers[best][0], is_at_end=best in (0, len(powers) - 1))
