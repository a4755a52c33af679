"""study.json: every experiment with its runs, figures, charts and verdicts, ready to be laid out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from loadgen.study.catalogue import CHARTS, RULES
from loadgen.study.model import Conducted, MissingFigureError, Outcome, Results, judge

STUDY_SCHEMA_VERSION = 1
DOCUMENT = "study.json"
CURVE_COMMAND = "python -m reference_engine.decode_curve --contexts=144 --json"
HOW = {
    "simulated": "simulated: virtual time, the engine's own scheduler, a cost model in place of the model",
    "live": "live: the torch engine, measured over HTTP on this machine",
    "device": "live: the torch engine's decode steps on this machine, without a server",
}


def describe_study(conducted: Sequence[Conducted], facts: dict[str, Any]) -> dict[str, Any]:
    """Judge every claim, and return the content of study.json."""
    described = [describe_experiment(one) for one in conducted]
    return {"schema_version": STUDY_SCHEMA_VERSION, **facts, "experiments": described}


def describe_experiment(conducted: Conducted) -> dict[str, Any]:
    """Lay out one experiment; what is not known is null."""
    experiment, outcomes = conducted.experiment, conducted.outcomes
    pairs = [column.split() for column in experiment.columns.values()]
    return {
        "name": experiment.name,
        "title": experiment.title,
        "text": experiment.text,
        "kind": experiment.kind,
        "how": HOW[experiment.kind],
        "skipped": conducted.skipped,
        "num_runs": len(outcomes),
        "num_requests": sum(int(outcome.figures.get("num_requests", 0)) for outcome in outcomes),
        "num_seeds": len({outcome.seed for outcome in outcomes}),
        "columns": [
            {"label": label, "figure": figure, "unit": "".join(unit) or "number"}
            for label, (figure, *unit) in zip(experiment.columns, pairs, strict=True)
        ],
        "rows": [
            {
                "arm": arm,
                "command": CURVE_COMMAND
                if experiment.kind == "device"
                else f"bench run {experiment.command(arm)}",
                "values": [_mean(outcomes, arm, figure) for figure, *_ in pairs],
                "runs": [
                    {"folder": run.folder, "seed": run.seed, "reasons": list(run.reasons)}
                    for run in outcomes
                    if run.arm == arm
                ],
            }
            for arm in Results(outcomes).arms()
        ],
        "charts": list(_charts(conducted)),
        "claims": [
            {"claim": claim.text, "section": claim.section, **asdict(judge(claim, conducted, RULES))}
            for claim in experiment.claims
        ],
    }


def _mean(outcomes: Sequence[Outcome], arm: str, figure: str) -> float | None:
    found = [run.figures[figure] for run in outcomes if run.arm == arm and figure in run.figures]
    return fmean(found) if found else None


def _charts(conducted: Conducted) -> Iterable[dict[str, Any]]:
    for name in () if conducted.num_missing else conducted.experiment.charts:
        try:
            yield asdict(CHARTS[name](Results(conducted.outcomes)))
        except MissingFigureError:
            continue  # one of its runs was not made
