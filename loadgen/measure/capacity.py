"""What a run says of a rate: does every objective hold, by how much, and is the backlog steady?

Objectives of a capacity are percentiles and means. Failed requests count as infinitely slow; a run with more
than 1 % of them fails, and so does one whose backlog grows, whatever its figures. A percentile on few
requests is no fault here: replicates, not requests, are the samples. Where the client itself was late or
slow, a rate is decided only if its error cannot have decided it; any other fault decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp, inf, isfinite, log
from typing import Any

from loadgen.errors import RunFolderError, UsageError
from loadgen.measure.backlog import is_steady
from loadgen.measure.error import figure_of
from loadgen.measure.measured import Measured, measure
from loadgen.measure.metrics import UNITS
from loadgen.measure.options import MeasureOptions
from loadgen.measure.slo import Objective, parse_slo
from loadgen.stats.capacity import Answer, Capacity, Evidence, Trial
from loadgen.store import Run
from loadgen.units import format_rate

CAPACITY_SCHEMA_VERSION = 1
MAX_FAILED_SHARE = 0.01
# of figures, not of the run; where nothing is answered the rate is too high
ABOUT_PERCENTILES = ("too_few_samples", "not_steady", "no_answers")
OF_THE_CLIENT = ("client_late", "client_slow")  # faults whose size is known
SMALLEST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPoint:
    """One run of a search. figures: by objective, in the metric's unit; None where there is none.

    margin: log(figure / limit), the worst of all objectives; None where passes is not told by a figure.
    passes: None where the measurement is not valid.
    """

    rate_per_s: float
    replicate: int
    is_probe: bool
    seed: int
    folder: str
    reasons: tuple[str, ...]
    is_stable: bool | None
    failed: int
    requests: int
    seconds: float
    figures: dict[str, float | None]
    margin: float | None
    excess: float | None
    passes: bool | None

    @classmethod
    def of(
        cls, run: Run, trial: Trial, objectives: Sequence[Objective], *, seed: int, seconds: float
    ) -> CapacityPoint:
        """Judge a finished run."""
        summary = run.summary
        assert summary is not None
        measured = measure(run, MeasureOptions.of(run.manifest))
        reasons = tuple(reason["code"] for reason in summary["verdict"]["reasons"])
        is_stable = is_steady(summary)
        num = measured.num_scheduled
        num_failed = num - int(measured.counted.sum())
        is_healthy = is_stable is not False and num_failed <= MAX_FAILED_SHARE * num
        found = [compare_with_limit(measured, one, num_failed / max(num, 1)) for one in objectives]
        figures = [figure for figure, _, _ in found]
        margin = max((m for _, m, _ in found), default=inf)
        passes = decide(margin, reasons, is_healthy)
        if passes is not None and set(reasons) & set(OF_THE_CLIENT):
            seen = [(figure_of(measured, one.metric, str(one.statistic)), one.limit) for one in objectives]
            met = [figure.meets(limit) if figure.range else None for figure, limit in seen]
            passes = passes if (all(met) if passes else False in met) else None
        margin = margin if is_healthy else inf
        return cls(
            rate_per_s=trial.rate_per_s,
            replicate=trial.replicate,
            is_probe=trial.is_probe,
            seed=seed,
            folder=run.path.name,
            reasons=reasons,
            is_stable=is_stable,
            failed=summary["counts"]["failed"],
            requests=summary["counts"]["scheduled"],
            seconds=seconds,
            figures={o.label: figure for o, figure in zip(objectives, figures, strict=True)},
            margin=margin if isfinite(margin) else None,
            excess=max((e for _, _, e in found), default=None) if isfinite(margin) else None,
            passes=passes if num else None,
        )

    def evidence(self) -> Evidence:
        """The point as the search reads it."""
        trial = Trial(rate_per_s=self.rate_per_s, replicate=self.replicate, is_probe=self.is_probe)
        if self.passes is None:
            return Evidence(trial=trial, margin=None)
        return Evidence(trial=trial, margin=inf if self.margin is None else self.margin, excess=self.excess)


def decide(margin: float, reasons: Sequence[str], is_healthy: bool) -> bool | None:
    """Whether a rate passes; None where a fault is not one of the client's timing, or where only the backlog
    fails it: that may be the client's.
    """
    faults = set(reasons) - set(ABOUT_PERCENTILES)
    if faults - set(OF_THE_CLIENT) or (faults and not is_healthy and margin <= 0):
        return None
    return is_healthy and margin <= 0


def compare_with_limit(
    measured: Measured, objective: Objective, failed_share: float
) -> tuple[float | None, float, float]:
    """Figure, log(figure / limit), and the same of what averages over runs without bias.

    A percentile counts the failed as infinite: it is read at q / (1 - failed share) of those that did not.
    """
    sample = measured.samples[objective.metric]
    if sample.num_failed:  # its values hold the failed ones already
        failed_share = 0.0
    if sample.num_values == 0:
        return None, inf, inf
    share = objective.percentile
    if share is None:
        mean = sample.moments()[0]
        if mean is None:
            return None, inf, inf
        margin = log(max(mean, SMALLEST) / objective.limit)
        return mean, margin, margin
    beyond = sample.share_above(objective.limit) * (1 - failed_share) + failed_share
    excess = log(max(beyond, SMALLEST) / (1 - share))
    level = share / (1 - failed_share) if failed_share < 1 else 1.0
    if level >= 1:
        return None, inf, excess
    figure = sample.quantiles([level])[0]
    if not isfinite(figure):
        return None, inf, excess
    return figure, log(max(figure, SMALLEST) / objective.limit), excess


def parse_objectives(lines: Sequence[str]) -> list[Objective]:
    """Read the objectives of a capacity; UsageError for what cannot bound one."""
    if not lines:
        raise UsageError("say what must hold: --slo ttft.p99=500ms --slo itl.p99=50ms")
    objectives = [parse_slo(line) for line in lines]
    for line, objective in zip(lines, objectives, strict=True):
        if objective.percentile is None and objective.statistic != "mean":
            name = objective.metric.removesuffix("_s")
            raise UsageError(
                f"--slo {line!r}: a capacity needs a percentile or a mean, such as {name}.p99=..."
            )
        if not objective.limit > 0:
            raise UsageError(f"--slo {line!r}: the limit must be above 0")
    return objectives


def describe(capacity: Capacity, points: Sequence[CapacityPoint], lines: Sequence[str]) -> dict[str, Any]:
    """The content of capacity.json; `capacity` is null where no rate passes."""
    facts = asdict(capacity)
    answer = facts.pop("answer")
    return {
        "schema_version": CAPACITY_SCHEMA_VERSION,
        "slo": list(lines),
        "answer": str(answer),
        "sentence": say(capacity, lines),
        "capacity": None if capacity.answer == Answer.NONE else facts,
        "limits": {o.label: {"limit": o.limit, "unit": UNITS[o.metric]} for o in map(parse_slo, lines)},
        "num_requests": sum(point.requests for point in points),
        "points": [asdict(point) for point in points],
    }


def say(capacity: Capacity, lines: Sequence[str]) -> str:
    """The answer in words."""
    objective = " and ".join(line.replace("=", " <= ") for line in lines)
    low, high = capacity.low_per_s, capacity.high_per_s
    match capacity.answer:
        case Answer.NONE:
            return f"no passing rate: {objective} does not hold at the lowest rate tried"
        case Answer.ABOVE:
            assert low is not None
            return f"{objective} holds up to the highest rate tried, {format_rate(low)}"
        case Answer.BRACKET:
            assert low is not None
            return (
                f"{objective} held at {format_rate(low)} and not at {high:.4g}: one replicate, "
                "so that no confidence can be stated"
            )
        case Answer.UNDECIDED:
            known = "nothing was decided" if low is None else f"it held at {format_rate(low)}"
            return f"undecided where {objective} stops to hold: {known}"
    assert low is not None
    assert high is not None
    assert capacity.confidence is not None
    half = exp(log(high / low) / 2) - 1
    return (
        f"{objective} holds up to a rate between {low:.4g} and {high:.4g} requests/s "
        f"({100 * capacity.confidence:.0f} % confidence, ±{100 * half:.1f} %, "
        f"{capacity.num_replicates} replicates)"
    )


def read_points(document: dict[str, Any], path: str) -> list[CapacityPoint]:
    """The points of a capacity.json, to go on from."""
    if document.get("schema_version") != CAPACITY_SCHEMA_VERSION:
        raise RunFolderError(f"{path} has another schema version than {CAPACITY_SCHEMA_VERSION}")
    return [CapacityPoint(**{**point, "reasons": tuple(point["reasons"])}) for point in document["points"]]
