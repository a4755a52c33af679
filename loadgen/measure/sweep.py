"""A sweep over rates as one table: latency against rate and throughput, and where the server saturates.

Reads the summaries of finished runs; computes no latency of its own. Saturation is told by the backlog: the
highest rate at which it did not grow, and the lowest at which it did. Rates between the two are undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SWEEP_SCHEMA_VERSION = 1
STATISTICS = ("p50", "p90", "p99")
METRICS = ("ttft_s", "itl_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One rate: what was asked, what came of it. latency: metric -> statistic -> seconds, None unknown."""

    rate_per_s: float
    folder: str
    status: str
    reasons: tuple[str, ...]
    is_stable: bool
    offered_per_s: float | None
    ok_per_s: float | None
    output_tokens_per_s: float | None
    goodput_per_s: float | None
    failed: int
    latency: dict[str, dict[str, float | None]]
    intervals: dict[str, dict[str, list[float] | None]]

    @classmethod
    def of(cls, rate_per_s: float, folder: str, summary: dict[str, Any]) -> SweepPoint:
        """Take what a sweep shows from a run's summary."""
        verdict, rates, metrics = summary["verdict"], summary["rates"], summary["metrics"]
        return cls(
            rate_per_s=rate_per_s,
            folder=folder,
            status=verdict["status"],
            reasons=tuple(reason["code"] for reason in verdict["reasons"]),
            is_stable=all(finding["code"] != "unstable" for finding in verdict["findings"]),
            offered_per_s=rates["offered_per_s"],
            ok_per_s=rates["ok_per_s"],
            output_tokens_per_s=rates["output_tokens_per_s"],
            goodput_per_s=summary["slo"]["goodput_per_s"],
            failed=summary["counts"]["failed"],
            latency={name: {s: metrics[name].get(s) for s in STATISTICS} for name in METRICS},
            intervals={name: dict(metrics[name].get("ci") or {}) for name in METRICS},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Between which rates the backlog starts to grow; None where no point says so."""

    stable_per_s: float | None
    unstable_per_s: float | None

    def sentence(self) -> str:
        """The finding in words."""
        if self.unstable_per_s is None:
            return "the backlog did not grow at any rate: saturation lies above the highest"
        if self.stable_per_s is None:
            return f"the backlog grew at every rate: saturation lies below {self.unstable_per_s:g} requests/s"
        return (
            f"saturation lies between {self.stable_per_s:g} requests/s (backlog steady) "
            f"and {self.unstable_per_s:g} requests/s (backlog grows)"
        )


def find_saturation(points: Sequence[SweepPoint]) -> Saturation:
    """Bracket saturation. A point whose measurement is invalid says nothing about the server."""
    judged = sorted((p for p in points if p.status == "valid"), key=lambda p: p.rate_per_s)
    unstable = [p.rate_per_s for p in judged if not p.is_stable]
    first_unstable = unstable[0] if unstable else None
    stable = [
        p.rate_per_s
        for p in judged
        if p.is_stable and (first_unstable is None or p.rate_per_s < first_unstable)
    ]
    return Saturation(stable_per_s=stable[-1] if stable else None, unstable_per_s=first_unstable)
