"""Figures of finished runs as one side of a gate: a baseline that lives in a repository, or a run repeated.

Holds what `bench check` needs and no rows: every figure of each run by the plan that it ran, so that a run of
the same plans is compared pair by pair; the workload, so that nothing else is; the noise of the machine where
it was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from loadgen.errors import RunFolderError, UsageError
from loadgen.measure.assertions import SHARES, Assertion, Estimate
from loadgen.measure.measured import OF_AN_ANSWER
from loadgen.measure.replicates import Replicate, read_document
from loadgen.stats.paired import compare_paired
from loadgen.stats.replicates import over_runs
from loadgen.store import Run

BASELINE_SCHEMA_VERSION = 1
NOISE_SCHEMA_VERSION = 1
MIN_PAIRS_OF_NOISE = 4
# flags in which runs of one question differ
OF_EACH_RUN = ("seed", "name", "out", "repeat", "json", "quiet", "wide", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Runs as a gate reads them. noise: by figure, what two equal runs differ by (95 %); empty if unknown."""

    name: str
    workload: dict[str, Any]
    replicates: tuple[Replicate, ...]
    noise: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, runs: Sequence[Run], noise: Mapping[str, float] | None = None) -> Figures:
        """Read finished runs of one workload."""
        workloads = [run.plan_source.get("workload") or {} for run in runs]
        if any(workload != workloads[0] for workload in workloads):
            raise UsageError(
                f"{name} holds runs of different workloads: {_difference(workloads[0], workloads)}"
            )
        asked = [_asked(run) for run in runs]
        if any(flags != asked[0] for flags in asked):
            raise UsageError(
                f"{name} holds several arms ({_difference(asked[0], asked)}), not one sample: check one "
                "of its runs, or compare arms with bench compare --gate"
            )
        replicates = tuple(Replicate.of(run) for run in runs)
        return cls(name=name, workload=workloads[0], replicates=replicates, noise=dict(noise or {}))

    @property
    def valid(self) -> list[Replicate]:
        return [replicate for replicate in self.replicates if not replicate.reasons]

    @property
    def faults(self) -> tuple[str, ...]:
        """Codes of what makes the runs unfit; one invalid run of several is left out instead."""
        if len(self.valid) > len(self.replicates) / 2:
            return ()
        return tuple(sorted({reason for replicate in self.replicates for reason in replicate.reasons}))

    def estimate(self, assertion: Assertion) -> Estimate:
        """The figure that an assertion is about, over the runs."""
        name = figure_of(assertion)
        found_each = [figure_with_failures(replicate.figures, assertion) for replicate in self.valid]
        values = [value for value in found_each if value is not None]
        if not values or inf in values:
            return Estimate(value=None, is_on_failure=bool(values))
        if name in SHARES:
            return Estimate(value=fmean(values))
        if len(values) == 1:
            return Estimate(value=values[0], interval=self.valid[0].intervals.get(name))
        found = over_runs(values)
        assert found is not None
        return Estimate(value=found.value, interval=found.interval)

    def to_json(self) -> dict[str, Any]:
        """The content of a baseline file."""
        from dataclasses import asdict

        return {
            "schema_version": BASELINE_SCHEMA_VERSION,
            "kind": "bench baseline",
            "name": self.name,
            "workload": self.workload,
            "noise": self.noise,
            "runs": [asdict(replicate) for replicate in self.replicates],
        }


def _asked(run: Run) -> dict[str, Any]:
    """The flags of a run that its replicates share; empty for a run that was imported."""
    config = run.manifest.get("config") or {}
    return {name: entry["value"] for name, entry in config.items() if name not in OF_EACH_RUN}


def figure_of(assertion: Assertion) -> str:
    """`ttft.p99`, or the subject that has no statistic."""
    if assertion.statistic is None:
        return assertion.subject
    return f"{assertion.subject.removesuffix('_s')}.{assertion.statistic}"


def figure_with_failures(figures: Mapping[str, float], assertion: Assertion) -> float | None:
    """What an assertion is held against in one run: infinite where it falls on a request that failed."""
    name = figure_of(assertion)
    is_of_all = assertion.statistic == "min" or assertion.subject not in OF_AN_ANSWER
    if is_of_all or not figures.get("errors.rate"):
        return figures.get(name)
    among_all = name.replace(".", "_with_failures.", 1)
    if assertion.statistic in ("mean", "std", "max") or assertion.subject in ("ttft_s", "e2e_s"):
        return figures.get(among_all, inf)
    return figures.get(name)


def read_baseline(path: Path) -> Figures:
    """Read a baseline file; RunFolderError where it is none."""
    document = read_document(path)
    if document.get("kind") != "bench baseline" or document.get("schema_version") != BASELINE_SCHEMA_VERSION:
        raise RunFolderError(f"{path} is not a baseline: make one with bench runs export RUN --baseline")
    replicates = tuple(
        Replicate(
            **{
                **run,
                "reasons": tuple(run["reasons"]),
                "intervals": {name: tuple(ends) for name, ends in run["intervals"].items()},
            }
        )
        for run in document["runs"]
    )
    return Figures(
        name=document["name"],
        workload=document["workload"],
        replicates=replicates,
        noise=document["noise"],
    )


def paired_ratio(ours: Figures, theirs: Figures, name: str) -> tuple[float, tuple[float, float]] | None:
    """Ratio and interval over runs of the same plans; None where fewer than two plans are shared."""
    other = {replicate.plan_digest: replicate.figures for replicate in theirs.valid}
    pairs = [
        (other[replicate.plan_digest][name], replicate.figures[name])
        for replicate in ours.valid
        if name in replicate.figures and name in other.get(replicate.plan_digest, {})
    ]
    if len(pairs) < 2 or min(map(min, pairs)) <= 0:
        return None
    base, new = np.array(pairs, np.float64).T
    found = compare_paired(base, new, margin=0.0)
    return found.ratio, found.interval


def check_same_workload(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuse a baseline of another workload; what is not known (an imported run) is not held against it."""
    if ours and theirs and ours != theirs:
        raise UsageError(
            f"the baseline measured another workload ({_difference(theirs, [ours])}): measure the same, or "
            "make a new baseline"
        )


def _difference(one: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    for other in others:
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                return f"{name} {one.get(name)} against {other.get(name)}"
    return "none"


def check_margin(assertion: Assertion, noise: Mapping[str, float], num_pairs: int) -> None:
    """Refuse a margin that equal runs would break by chance."""
    name = figure_of(assertion)
    floor = noise.get(name)
    if floor is None or not assertion.is_vs_baseline:
        return
    margin, limit = abs(assertion.limit - 1), floor / sqrt(num_pairs)
    if margin < limit:
        wanted = int((floor / margin) ** 2) + 1 if margin > 0 else None
        more = f", or measure more: --repeat {wanted}" if wanted and wanted <= 100 else ""
        raise UsageError(
            f"{assertion.text!r}: equal runs of this machine differ by up to {100 * limit:.1f} % in {name} "
            f"(bench doctor --aa); allow that much{more}"
        )


def describe_noise(floors: Mapping[str, float], num_pairs: int, machine: Mapping[str, Any]) -> dict[str, Any]:
    """The content of noise.json."""
    return {
        "schema_version": NOISE_SCHEMA_VERSION,
        "kind": "bench noise",
        "num_pairs": num_pairs,
        "confidence": 0.95,
        "machine": dict(machine),
        "floors": dict(floors),
    }


def read_noise(path: Path) -> dict[str, float]:
    """Read the floors of noise.json."""
    document = read_document(path)
    if document.get("kind") != "bench noise" or document.get("schema_version") != NOISE_SCHEMA_VERSION:
        raise RunFolderError(f"{path} is not what bench doctor --aa writes")
    floors: dict[str, float] = document["floors"]
    return floors
