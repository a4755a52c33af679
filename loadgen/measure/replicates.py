"""Several runs of one question, as samples of each other: the figures of each, and intervals over them.

Reads the summaries of finished runs and computes no latency of its own. A run whose measurement is invalid
is listed and left out of the figures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadgen.errors import RunFolderError
from loadgen.measure.backlog import is_steady
from loadgen.measure.metrics import UNITS
from loadgen.measure.slo import met_objectives
from loadgen.stats.replicates import OverRuns, over_runs
from loadgen.store import Run, load

REPEAT_SCHEMA_VERSION = 1
DOCUMENT = "repeat.json"
METRICS = tuple(UNITS)
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
RATES = ("ok_per_s", "output_tokens_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """What a comparison reads of one run. figures: `ttft.p99` -> value in SI units, where it is known.

    intervals: of those figures that have one within the run. reasons: why the measurement is invalid; empty
    where it is valid. met: which objectives on an aggregate, `ttft.p99`, held; None without samples.
    engine, causes_s: what the reference engine did, and where a mean request's time went.
    """

    folder: str
    seed: int
    plan_digest: str
    reasons: tuple[str, ...]
    is_stable: bool | None
    failed: int
    figures: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    met: dict[str, bool | None] = field(default_factory=dict)
    engine: dict[str, float] = field(default_factory=dict)
    causes_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> Replicate:
        """Read a finished run."""
        summary = run.summary
        if summary is None:
            raise RunFolderError(f"{run.path} has no summary: the run broke off")
        found = {
            f"{metric.removesuffix('_s')}.{statistic}": (summary["metrics"].get(metric) or {}).get(statistic)
            for metric in METRICS
            for statistic in STATISTICS
        }
        found |= {name.removesuffix("_per_s"): summary["rates"].get(name) for name in RATES}
        counts, slo = summary["counts"], summary["slo"]
        found |= {"goodput": slo["goodput_per_s"], "attained": slo["attained_fraction"]}
        num = counts.get("scheduled_in_window")
        found["errors.rate"] = 1 - counts["ok_in_window"] / num if num else None
        intervals = {
            f"{metric.removesuffix('_s')}.{statistic}": tuple(ends)
            for metric in METRICS
            for statistic, ends in ((summary["metrics"].get(metric) or {}).get("ci") or {}).items()
            if ends is not None
        }
        verdict = summary["verdict"]
        return cls(
            folder=run.path.name,
            seed=int((run.manifest.get("seeds") or {}).get("seed", 0)),
            plan_digest=str(run.manifest.get("plan_digest", "")),
            reasons=tuple(reason["code"] for reason in verdict["reasons"]),
            is_stable=is_steady(summary),
            failed=summary["counts"]["failed"],
            figures={name: value for name, value in found.items() if value is not None},
            intervals=intervals,
            met=met_objectives(slo),
            engine={name: value for name, value in summary["engine"].items() if value is not None},
            causes_s=dict((summary["attribution"] or {}).get("mean_s") or {}),
        )


def estimate(replicates: Sequence[Replicate]) -> dict[str, OverRuns]:
    """Every figure that all valid runs have, over those runs."""
    valid = [replicate for replicate in replicates if not replicate.reasons]
    names = [name for name in (valid[0].figures if valid else ()) if all(name in r.figures for r in valid)]
    found = {name: over_runs([replicate.figures[name] for replicate in valid]) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def describe_repeat(replicates: Sequence[Replicate]) -> dict[str, Any]:
    """The content of repeat.json. slo: in how many of the valid runs each objective held."""
    valid = [replicate for replicate in replicates if not replicate.reasons]
    held = {name: sum(bool(run.met.get(name)) for run in valid) for run in replicates for name in run.met}
    return {
        "schema_version": REPEAT_SCHEMA_VERSION,
        "figures": {name: asdict(value) for name, value in estimate(replicates).items()},
        "slo": [{"objective": name, "num_met": num, "num_runs": len(valid)} for name, num in held.items()],
        "runs": [asdict(replicate) for replicate in replicates],
    }


def load_replicates(folder: Path) -> list[Run]:
    """The runs of a folder that `--repeat` made, or the one run that it is, in order of name."""
    if (folder / "manifest.json").exists():
        return [load(folder)]
    inside = sorted(path.parent for path in folder.glob("*/manifest.json"))
    if not inside:
        raise RunFolderError(f"{folder} is no run folder, and holds none")
    return [load(path) for path in inside]


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON object; RunFolderError where there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise RunFolderError(f"cannot read {path}: {exc}") from exc
    if not isinstance(value, dict):
        raise RunFolderError(f"cannot read {path}: not a JSON object")
    return value
