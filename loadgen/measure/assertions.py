"""Assertions on a run: `ttft.p99 < 400ms`, `errors.rate < 0.1%`, `itl.p99 vs baseline <= +5% (floor 0.2ms)`.

Each is decided on its own: pass, fail, undecided (the interval holds the limit) or invalid (the measurement
is, or there are no samples). An unknown metric or statistic is a usage error; nothing passes by being absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, hypot, log
from typing import Any, Protocol

from loadgen.errors import (
    EXIT_GATE_FAILED,
    EXIT_INVALID,
    EXIT_OK,
    EXIT_UNDECIDED,
    UsageError,
)
from loadgen.measure.error import SURE_FRACTION, figure_of
from loadgen.measure.measured import Measured, measure
from loadgen.measure.metrics import UNITS
from loadgen.measure.options import MeasureOptions
from loadgen.measure.slo import (
    Objective,
    check_statistic,
    parse_limit,
    parse_metric,
    parse_percentile,
)
from loadgen.measure.summary import summarize_measured
from loadgen.stats.intervals import MIN_TAIL_EVENTS, mean_interval, quantile_interval
from loadgen.store import Run
from loadgen.units import format_seconds, parse_duration

SHARES = ("errors.rate", "attained")
SUBJECTS = (*SHARES, "goodput")
OF_SINGLE_FIGURES = (
    "too_few_samples",
    "client_late",
    "client_slow",
)  # faults that each figure has or has not
_ASSERTION = re.compile(
    r"\s*(?P<subject>\w+(?:\.[a-z]+[0-9.]*)?)\s*(?P<versus>vs\s+baseline)?\s*(?P<relation><=|>=|<|>)\s*"
    r"(?P<limit>[^()\s][^()]*?)\s*(?:\(\s*floor\s+(?P<floor>[^()]+?)\s*\))?\s*"
)


class Decision(StrEnum):
    """How an assertion ended."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """What must hold. subject: a metric's name in summary.json, or one of SUBJECTS.

    limit: in the metric's unit; against a baseline the ratio allowed (`+5%` is 1.05). floor: a difference to
    the baseline below this never fails.
    """

    text: str
    subject: str
    statistic: str | None
    relation: str
    limit: float
    is_vs_baseline: bool = False
    floor: float = 0.0

    def holds(self, value: float) -> bool:
        """Whether a value satisfies the relation to the limit."""
        return {
            "<": value < self.limit,
            "<=": value <= self.limit,
            ">": value > self.limit,
            ">=": value >= self.limit,
        }[self.relation]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertionResult:
    """value: what was seen, a ratio against a baseline; interval: where it may truly lie, None if unknown."""

    assertion: Assertion
    decision: Decision
    value: float | None
    interval: tuple[float, float] | None
    message: str


def parse_assertion(text: str) -> Assertion:
    """Read one assertion; UsageError says what is wrong with it."""
    match = _ASSERTION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"not an assertion: {text!r}; write METRIC.STAT < VALUE, such as 'ttft.p99 < 400ms', "
            "or 'itl.p99 vs baseline <= +5%'"
        )
    subject, statistic = match["subject"], None
    if subject not in SUBJECTS:
        name, _, statistic = subject.partition(".")
        subject = parse_metric(name, SUBJECTS)
        if not statistic:
            raise UsageError(f"{text!r} names no statistic; write {name}.p99, {name}.mean or the like")
        check_statistic(statistic)
    if match["versus"]:
        limit = 1 + _parse_change(match["limit"])
    elif subject in SHARES:
        limit = _parse_share(match["limit"])
    elif subject == "goodput":
        limit = _parse_number(match["limit"].removesuffix("/s"))
    else:
        limit = parse_limit(subject, match["limit"])
    if match["floor"] and not match["versus"]:
        raise UsageError(f"{text!r}: a floor belongs to a comparison with the baseline")
    return Assertion(
        text=text.strip(),
        subject=subject,
        statistic=statistic,
        relation=match["relation"],
        limit=limit,
        is_vs_baseline=match["versus"] is not None,
        floor=_parse_floor(subject, match["floor"]),
    )


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"not a number: {text!r}") from None


def _parse_share(text: str) -> float:
    share = _parse_number(text[:-1]) / 100 if text.endswith("%") else _parse_number(text)
    if not 0 <= share <= 1:
        raise UsageError(f"not a share: {text!r}; write 0.1% or 0.001")
    return share


def _parse_change(text: str) -> float:
    if not text.endswith("%"):
        raise UsageError(f"not a change against the baseline: {text!r}; write +5% or -10%")
    return _parse_number(text[:-1]) / 100


def _parse_floor(subject: str, text: str | None) -> float:
    if text is None:
        return 0.0
    return parse_duration(text) if UNITS.get(subject, "").startswith("s") else _parse_number(text)


class Side(Protocol):
    """One side of a gate: a run that is judged, or the figures of several. faults: what makes it invalid."""

    @property
    def name(self) -> str: ...

    @property
    def faults(self) -> tuple[str, ...]: ...

    def estimate(self, assertion: Assertion) -> Estimate: ...


Ratio = tuple[float, tuple[float, float]]


def check(
    run: Run | Side,
    assertions: Sequence[Assertion],
    baseline: Run | Side | None = None,
    paired: Callable[[Assertion], Ratio | None] = lambda _: None,
) -> list[AssertionResult]:
    """Decide every assertion on a run or several, against a baseline where it names one.

    paired: ratio and interval of a figure over runs of the same plans, where both sides have such runs.
    """
    if baseline is None and any(assertion.is_vs_baseline for assertion in assertions):
        raise UsageError("an assertion compares with a baseline: give one with --baseline DIR")
    ours = judge_for(run, assertions) if isinstance(run, Run) else run
    theirs = judge_for(baseline, assertions) if isinstance(baseline, Run) else baseline
    return [decide(assertion, ours, theirs, paired(assertion)) for assertion in assertions]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """A run with its figures; faults: codes of what makes all of it invalid."""

    name: str
    measured: Measured
    summary: dict[str, Any]
    faults: tuple[str, ...]

    def estimate(self, assertion: Assertion) -> Estimate:
        """The figure that an assertion is about."""
        subject, statistic = assertion.subject, assertion.statistic
        if statistic is None:
            return self._share_or_rate(subject)
        share = parse_percentile(statistic)
        sample = self.measured.sample_for(subject)
        figure = figure_of(self.measured, subject, statistic)
        pool = self.measured.pool(subject)
        found = Estimate(value=figure.value, error=None if figure.is_sure else figure.range)
        if figure.value is None or pool is None or len(pool.values) == 0:
            return replace(found, is_on_failure=figure.value is None and sample.num_failed > 0)
        if statistic == "mean":
            return replace(found, interval=mean_interval(pool))
        if share is None:
            return found
        # of the successes alone, the percentile of all is a higher one
        tail = quantile_interval(pool, share * sample.num_values / (sample.num_values - sample.num_failed))
        return replace(found, interval=tail.bounds, num_tail_events=tail.num_tail_events)

    def _share_or_rate(self, subject: str) -> Estimate:
        measured, slo = self.measured, self.summary["slo"]
        if subject == "errors.rate":
            n = measured.num_scheduled
            return Estimate(value=1 - float(measured.counted.sum()) / n if n else None)
        value: float | None = slo["attained_fraction" if subject == "attained" else "goodput_per_s"]
        low, high = slo["attained_error"] or (0.0, 0.0)
        if value is None or high - low <= SURE_FRACTION:
            return Estimate(value=value)
        scale = 1.0 if subject == "attained" else measured.num_scheduled / measured.rated_s
        return Estimate(value=value, error=(low * scale, high * scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """value: None without samples. num_tail_events: of a percentile, what it rests on; None for others.

    is_on_failure: infinite, for it falls on a request that failed. error: where the client's own error lets
    it lie; None where it is sure.
    """

    value: float | None
    is_on_failure: bool = False
    error: tuple[float, float] | None = None
    interval: tuple[float, float] | None = None
    num_tail_events: float | None = None

    @property
    def is_too_thin(self) -> bool:
        """A percentile on too few independent values to be asserted."""
        return self.num_tail_events is not None and self.num_tail_events < MIN_TAIL_EVENTS


def judge_for(run: Run, assertions: Sequence[Assertion]) -> Judged:
    """Measure a run with the percentiles that the assertions name."""
    named = tuple(
        Objective(metric=assertion.subject, statistic=assertion.statistic, limit=assertion.limit)
        for assertion in assertions
        if assertion.statistic and parse_percentile(assertion.statistic)
    )
    options = MeasureOptions.of(run.manifest)
    options = replace(options, named=options.named + named)
    measured = measure(run, options)
    summary = summarize_measured(run, measured, options)
    codes = {reason["code"] for reason in summary["verdict"]["reasons"]}
    faults = tuple(sorted(codes - set(OF_SINGLE_FIGURES)))
    return Judged(name=run.path.name, measured=measured, summary=summary, faults=faults)


def decide(
    assertion: Assertion, ours: Side, theirs: Side | None, paired: Ratio | None = None
) -> AssertionResult:
    """Decide one assertion."""

    def result(
        decision: Decision, message: str, value: float | None = None, interval: Any = None
    ) -> AssertionResult:
        return AssertionResult(
            assertion=assertion, decision=decision, value=value, interval=interval, message=message
        )

    sides = [ours] if theirs is None or not assertion.is_vs_baseline else [ours, theirs]
    estimates = []
    for side in sides:
        found = side.estimate(assertion)
        estimates.append(found)
        if side.faults:
            return result(Decision.INVALID, f"{side.name} is invalid: {', '.join(side.faults)}", found.value)
        if found.is_on_failure and side is theirs:
            return result(Decision.UNDECIDED, f"{side.name}: it falls on a failed request, so no ratio to it")
        if found.is_on_failure:
            return result(Decision.FAIL, f"{side.name}: it falls on a failed request")
        if found.value is None:
            is_of_slo = assertion.subject in ("goodput", "attained")
            hint = ": measure with a limit on each request, such as --slo ttft=500ms" * is_of_slo
            return result(Decision.INVALID, f"{side.name} has no value for it{hint}")
        if found.error is not None and (assertion.is_vs_baseline or _is_open(assertion, found.error)):
            low, high = (_say(assertion, end) for end in found.error)
            return result(
                Decision.INVALID, f"{side.name}: client-limited, between {low} and {high}", found.value
            )
        if found.is_too_thin:
            thin = f"{found.num_tail_events:.1f} independent tail events, {MIN_TAIL_EVENTS} wanted"
            return result(Decision.INVALID, f"{side.name}: too_few_samples ({thin})", found.value)
    seen = estimates[0].value
    assert seen is not None
    if not assertion.is_vs_baseline:
        interval = _widened(estimates[0])
        decision = _decide_by(assertion, seen, interval)
        return result(
            decision, f"{_say(assertion, seen)}{_say_interval(assertion, interval)}", seen, interval
        )
    base = estimates[1].value
    assert base is not None
    pair = f"baseline {_say(assertion, base)} -> {_say(assertion, seen)}"
    if abs(seen - base) <= assertion.floor:
        why = "no difference" if seen == base else "within the floor"
        return result(Decision.PASS, f"{pair}, {why}", seen / base if base else None)
    if base == 0:
        return result(Decision.UNDECIDED, f"{pair}: no ratio to nothing")
    ratio, interval = paired or (seen / base, ratio_interval(*estimates))
    if interval is None:
        return result(Decision.UNDECIDED, f"{pair} ({ratio - 1:+.1%}), of unknown noise", ratio)
    change = f"{ratio - 1:+.1%}  [{interval[0] - 1:+.1%}, {interval[1] - 1:+.1%}]"
    return result(_decide_by(assertion, ratio, interval), f"{change}  {pair}", ratio, interval)


def ratio_interval(ours: Estimate, theirs: Estimate) -> tuple[float, float] | None:
    """The interval of ours / theirs, two independent runs: log half-widths add in squares."""
    if ours.interval is None or theirs.interval is None or min(*ours.interval, *theirs.interval) <= 0:
        return None
    assert ours.value is not None
    assert theirs.value is not None
    half = hypot(*(log(high / low) / 2 for low, high in (ours.interval, theirs.interval)))
    ratio = ours.value / theirs.value
    return ratio * exp(-half), ratio * exp(half)


def _is_open(assertion: Assertion, error: tuple[float, float]) -> bool:
    """Whether a figure that lies within these bounds may be on either side of the limit."""
    return len({assertion.holds(end) for end in error}) > 1


def _widened(found: Estimate) -> tuple[float, float] | None:
    """The interval of a figure, and beyond it what its client leaves open."""
    if found.error is None or found.value is None:
        return found.interval
    low, high = found.interval or (found.value, found.value)
    return low - (found.value - found.error[0]), high + (found.error[1] - found.value)


def _decide_by(assertion: Assertion, value: float, interval: tuple[float, float] | None) -> Decision:
    held = [assertion.holds(end) for end in interval or (value,)]
    if all(held):
        return Decision.PASS
    return Decision.UNDECIDED if any(held) else Decision.FAIL


def _say(assertion: Assertion, value: float) -> str:
    if assertion.subject in SHARES:
        return f"{100 * value:.3g} %"
    return format_seconds(value) if UNITS.get(assertion.subject, "").startswith("s") else f"{value:.4g}"


def _say_interval(assertion: Assertion, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return ""
    return f"  [{_say(assertion, interval[0])}, {_say(assertion, interval[1])}]"


def exit_code(results: Sequence[AssertionResult]) -> int:
    """The exit code of a gate: invalid before failed before undecided."""
    found = {result.decision for result in results}
    for decision, code in (
        (Decision.INVALID, EXIT_INVALID),
        (Decision.FAIL, EXIT_GATE_FAILED),
        (Decision.UNDECIDED, EXIT_UNDECIDED),
    ):
        if decision in found:
            return code
    return EXIT_OK
