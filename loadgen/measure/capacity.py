"""What a run says of a rate: does every objective hold, by how much, and is the backlog steady?

Objectives of a capacity are percentiles and means. Failed requests count as infinitely slow; a run with more
than 1 % of them fails, and so does one whose backlog grows, whatever its figures. A percentile on few
requests is no fault here: replicates, not requests, are the samples. But a run must be long enough to show
what the queue comes to: ten answers long, with so many independent values that its empty start is forgotten.
Where the client itself was late or slow, a rate is decided only if its error cannot have decided it; any
other fault decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import exp, inf, isfinite, log
from typing import Any

from loadgen.errors import RunFolderError, UsageError
from loadgen.measure.backlog import Trend
from loadgen.measure.error import figure_of
from loadgen.measure.measured import Measured, measure
from loadgen.measure.metrics import UNITS
from loadgen.measure.options import MeasureOptions
from loadgen.measure.slo import Objective, parse_slo
from loadgen.stats.capacity import ANSWERS, HEADROOM, Answer, Capacity, Evidence, Trial
from loadgen.stats.intervals import independent_values, independent_values_of_mean
from loadgen.store import Run
from loadgen.units import format_rate, format_seconds

CAPACITY_SCHEMA_VERSION = 1
MAX_FAILED_SHARE = 0.01
MIN_REQUESTS = 10  # of a run, a probe too
# of figures, not of the run; where nothing is answered the rate is too high
ABOUT_PERCENTILES = ("too_few_samples", "not_steady", "no_answers")
OF_THE_CLIENT = ("client_late", "client_slow")  # faults whose size is known
SMALLEST = 1e-9
VALUE_OF_QUANTILE, VALUE_OF_TAIL = 0.4, 8.0  # in values of a mean; chosen by coverage on queues


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the requests of a run say of a rate, whatever the client did. margin: of the figures alone."""

    figures: list[float | None]
    margin: float
    is_stable: bool | None
    is_healthy: bool
    num_values: float
    shortfall: float
    served_per_s: float | None
    answer_s: float

    @classmethod
    def of(cls, measured: Measured, objectives: Sequence[Objective]) -> Said:
        """Hold the figures against their limits; judge the backlog, and whether the run was long enough."""
        length_s = measured.window.end_ns / 1e9
        backlog = measured.backlog(is_judged=True)
        trend = Trend.UNDECIDED if backlog is None else backlog.trend
        is_stable = None if trend == Trend.UNDECIDED else trend == Trend.STEADY
        num_failed = measured.num_scheduled - int(measured.counted.sum())
        failed_share = num_failed / max(measured.num_scheduled, 1)
        is_healthy = is_stable is not False and failed_share <= MAX_FAILED_SHARE
        found = [compare_with_limit(measured, one, failed_share) for one in objectives]
        margin = max((margin for _, margin in found), default=inf)
        answer_s = measured.samples["e2e_s"].moments()[0] or 0.0
        needed_s = ANSWERS / HEADROOM * answer_s  # a first answer is shorter
        if backlog is not None and is_healthy and margin <= 0:
            needed_s = max(needed_s, backlog.needed_s or 0.0)
        return cls(
            figures=[figure for figure, _ in found],
            margin=margin,
            is_stable=is_stable,
            is_healthy=is_healthy,
            num_values=min(count_values(measured, one) for one in objectives),
            shortfall=0.0 if is_stable is False else needed_s / max(length_s, SMALLEST),
            served_per_s=served_per_s(measured) if is_stable is False else None,
            answer_s=answer_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPoint:
    """One run of a search. figures: by objective, in the metric's unit; None where there is none.

    margin: log(figure / limit), the worst of all objectives; None where passes is not told by a figure.
    passes: None where the measurement is not valid. length_s and what follows: as the search
    reads them (stats.capacity).
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
    passes: bool | None
    length_s: float = 0.0
    num_values: float = 0.0
    shortfall: float = 0.0
    served_per_s: float | None = None
    answer_s: float = 0.0

    @classmethod
    def of(
        cls, run: Run, trial: Trial, objectives: Sequence[Objective], *, seed: int, seconds: float
    ) -> CapacityPoint:
        """Judge a finished run."""
        summary = run.summary
        assert summary is not None
        measured = measure(run, MeasureOptions.of(run.manifest))
        said = Said.of(measured, objectives)
        reasons = tuple(reason["code"] for reason in summary["verdict"]["reasons"])
        passes = decide(said.margin, reasons, said.is_healthy)
        if passes is not None and set(reasons) & set(OF_THE_CLIENT):
            seen = [(figure_of(measured, one.metric, str(one.statistic)), one.limit) for one in objectives]
            met = [figure.meets(limit) if figure.range else None for figure, limit in seen]
            passes = passes if (all(met) if passes else False in met) else None
        margin = said.margin if said.is_healthy else inf
        return cls(
            rate_per_s=trial.rate_per_s,
            replicate=trial.replicate,
            is_probe=trial.is_probe,
            seed=seed,
            folder=run.path.name,
            reasons=reasons,
            is_stable=said.is_stable,
            failed=summary["counts"]["failed"],
            requests=summary["counts"]["scheduled"],
            seconds=seconds,
            figures={o.label: figure for o, figure in zip(objectives, said.figures, strict=True)},
            margin=margin if isfinite(margin) else None,
            passes=passes if measured.num_scheduled else None,
            length_s=trial.length_s,
            num_values=said.num_values,
            shortfall=said.shortfall,
            served_per_s=said.served_per_s,
            answer_s=said.answer_s,
        )

    def evidence(self) -> Evidence:
        """The point as the search reads it."""
        margin = inf if self.margin is None else self.margin
        return Evidence(
            trial=Trial(
                rate_per_s=self.rate_per_s,
                length_s=self.length_s,
                replicate=self.replicate,
                is_probe=self.is_probe,
            ),
            margin=None if self.passes is None else margin,
            served_per_s=self.served_per_s,
            num_values=self.num_values,
            shortfall=self.shortfall,
            answer_s=self.answer_s,
        )


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
) -> tuple[float | None, float]:
    """Figure and log(figure / limit).

    A percentile counts the failed as infinite: it is read at q / (1 - failed share) of those that did not.
    """
    sample = measured.samples[objective.metric]
    if sample.num_failed:  # its values hold the failed ones already
        failed_share = 0.0
    if sample.num_values == 0:
        return None, inf
    share = objective.percentile
    if share is None:
        figure = sample.moments()[0]
    else:
        level = share / (1 - failed_share) if failed_share < 1 else 1.0
        figure = sample.quantiles([level])[0] if level < 1 else None
    if figure is None or not isfinite(figure):
        return None, inf
    return figure, log(max(figure, SMALLEST) / objective.limit)


def count_values(measured: Measured, objective: Objective) -> float:
    """How many independent values the figure rests on, a percentile counted as the mean is.

    A run starts empty, and a queue fills in some multiple of the time over which its waits depend on each
    other: where independent values are few, the figure is too low, and few of the tail miss its worst.
    """
    pool = measured.pool(objective.metric) or measured.pool("e2e_s")
    if pool is None or len(pool.values) < 2:
        return 1.0
    if objective.percentile is None:
        return independent_values_of_mean(pool)
    weight = min(VALUE_OF_QUANTILE, VALUE_OF_TAIL * (1 - objective.percentile))
    return weight * independent_values(pool, objective.percentile)


def served_per_s(measured: Measured) -> float:
    """Answers per second in the second half of the schedule, when the server had filled."""
    end_ns = measured.window.end_ns
    ended = measured.columns.ended_ns[measured.columns.is_ok]
    return float(((ended >= end_ns / 2) & (ended < end_ns)).sum() / (end_ns / 2e9))


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
            if capacity.shortfall is not None and capacity.shortfall > 1:
                known += f"; {_say_length(capacity.shortfall, capacity.length_s)}"
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


def _say_length(shortfall: float, length_s: float | None) -> str:
    longer = f"runs {shortfall:.2g} times as long would tell"
    return (
        f"{longer} ({format_seconds(length_s * shortfall)} instead of {format_seconds(length_s)})"
        if length_s
        else longer
    )


def read_points(document: dict[str, Any], path: str) -> list[CapacityPoint]:
    """The points of a capacity.json, to go on from."""
    if document.get("schema_version") != CAPACITY_SCHEMA_VERSION:
        raise RunFolderError(f"{path} has another schema version than {CAPACITY_SCHEMA_VERSION}")
    known = {item.name for item in fields(CapacityPoint)}
    points = [{name: value for name, value in point.items() if name in known} for point in document["points"]]
    return [CapacityPoint(**{**point, "reasons": tuple(point["reasons"])}) for point in points]
