"""Two arms compared figure by figure: better, worse, equivalent within the margin, or undecided.

Runs are paired by the digest of their plan; where arms ran different plans a comparison is refused unless it
is asked for, and then says that it is not one of the servers alone. Primary figures share the error by Holm's
rule and decide; the others are shown with Benjamini and Hochberg's. Pairs with an invalid run are left out,
and listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, hypot, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import UsageError
from loadgen.measure.arms import describe_side
from loadgen.measure.replicates import METRICS, STATISTICS, Replicate
from loadgen.stats.arms import fewest_replicates, plan_for_margin, unpaired_interval
from loadgen.stats.paired import Change, compare_paired, holm
from loadgen.stats.replicates import over_runs

COMPARE_SCHEMA_VERSION = 1
PRIMARY = ("ttft.p99", "itl.p99", "e2e.mean")
SHOWN = ("ttft.p50", "ttft.p99", "itl.p50", "itl.p99", "tpot.p50", "e2e.mean", "e2e.p50", "e2e.p99")
BIGGER_IS_BETTER = ("ok", "output_tokens", "goodput")
ALPHA = 0.05
OPPOSITE = {Change.BETTER: Change.WORSE, Change.WORSE: Change.BETTER}

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a comparison decides. margin: a relative change that does not matter; detect: one to be found.

    num_arms: arms that are held against the base, among which the error is shared too.
    """

    primary: tuple[str, ...] = PRIMARY
    margin: float = 0.02
    detect: float = 0.05
    confidence: float = 0.95
    num_arms: int = 1

    @property
    def num_decisions(self) -> int:
        return len(self.primary) * self.num_arms


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What is compared: a name, and its finished runs."""

    name: str
    replicates: tuple[Replicate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureComparison:
    """One figure of two arms. base, other: geometric means; ratio: other / base. ratios: of each pair.

    p: sign flip (paired) or Welch (not paired); p_adjusted: Holm's among the primary, else Benjamini and
    Hochberg's; None for one pair, whose interval is that of the two runs themselves, taken as independent.
    num_planned: pairs that would find the change to be detected.
    """

    name: str
    is_primary: bool
    change: Change
    base: float
    other: float
    ratio: float
    interval: tuple[float, float] | None
    p: float | None
    p_adjusted: float | None
    ratios: tuple[float, ...]
    num_planned: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmComparison:
    """One arm against the base. left_out: folders of pairs with an invalid run, and why."""

    base: str
    arm: str
    num_pairs: int
    is_paired: bool
    figures: tuple[FigureComparison, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def pair(base: Arm, other: Arm) -> list[tuple[Replicate, Replicate]]:
    """Pair runs of the same plan; UsageError where a run has no partner."""
    left = list(other.replicates)
    pairs: list[tuple[Replicate, Replicate]] = []
    for one in base.replicates:
        partner = next((run for run in left if run.plan_digest == one.plan_digest), None)
        if partner is None:
            raise UsageError(_not_same(one, base, other))
        left.remove(partner)
        pairs.append((one, partner))
    if left:
        raise UsageError(_not_same(left[0], other, base))
    return pairs


def _not_same(run: Replicate, of: Arm, other: Arm) -> str:
    return (
        f"{of.name} ran plan {run.plan_digest} ({run.folder}) and {other.name} did not: different requests "
        "are no comparison of servers; use the same workload and seeds, or say --different-plans"
    )


def compare_arms(base: Arm, other: Arm, rule: Rule, *, is_same_plans: bool = True) -> ArmComparison:
    """Compare every figure that the valid runs of both arms have."""
    notes: list[str] = []
    if is_same_plans:
        pairs = pair(base, other)
        left_out = tuple(_say_invalid(a, b) for a, b in pairs if a.reasons or b.reasons)
        pairs = [(a, b) for a, b in pairs if not (a.reasons or b.reasons)]
        ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    else:
        ours, theirs = ([run for run in arm.replicates if not run.reasons] for arm in (base, other))
        left_out = tuple(_say_invalid(run) for arm in (base, other) for run in arm.replicates if run.reasons)
        notes.append(
            "the arms ran different plans: what is shown is the difference of servers and workloads together"
        )
    num = min(len(ours), len(theirs))
    fewest = fewest_replicates(rule.num_decisions)
    if 1 < num < fewest:
        notes.append(f"{num} pairs cannot decide {rule.num_decisions} primary figures: {fewest} or more can")
    if num == 1:
        notes.append("one run an arm: the intervals are those of the runs, taken as independent")
    missing = [name for name in rule.primary if any(name not in run.figures for run in [*ours, *theirs])]
    notes += [f"{name} is missing from a run: not compared" for name in missing if num]
    names = dict.fromkeys([*rule.primary, *SHOWN, *BIGGER_IS_BETTER])
    found = [_compare(name, ours, theirs, rule, is_paired=is_same_plans) for name in names]
    return ArmComparison(
        base=base.name,
        arm=other.name,
        num_pairs=num,
        is_paired=is_same_plans,
        figures=_share_error([figure for figure in found if figure is not None], rule),
        left_out=left_out,
        notes=tuple(notes),
    )


def _say_invalid(*runs: Replicate) -> str:
    return "; ".join(f"{run.folder}: {', '.join(run.reasons)}" for run in runs if run.reasons)


def _compare(
    name: str, ours: Sequence[Replicate], theirs: Sequence[Replicate], rule: Rule, *, is_paired: bool
) -> FigureComparison | None:
    """Compare one figure; None where a run has no positive value of it."""
    sides = [[run.figures.get(name, 0.0) for run in runs] for runs in (ours, theirs)]
    if not all(sides) or min(map(min, sides)) <= 0:
        return None
    a, b = (np.array(side, np.float64) for side in sides)
    base, other = over_runs(sides[0]), over_runs(sides[1])
    assert base is not None
    assert other is not None
    blank = FigureComparison(
        name=name,
        is_primary=name in rule.primary,
        change=Change.UNDECIDED,
        base=base.value,
        other=other.value,
        ratio=other.value / base.value,
        interval=None,
        p=None,
        p_adjusted=None,
        ratios=tuple(float(ratio) for ratio in b / a) if is_paired else (),
        num_planned=None,
    )
    if min(len(a), len(b)) < 2:
        interval = _interval_of_runs(name, ours[0], theirs[0]) if len(a) == len(b) == 1 else None
        return replace(blank, interval=interval, change=_decide(name, interval, rule))
    if not is_paired:
        ratio, low, high, p = unpaired_interval(a, b, rule.confidence)
        return replace(blank, ratio=ratio, interval=(low, high), p=p, change=_decide(name, (low, high), rule))
    found = compare_paired(a, b, margin=rule.margin, confidence=rule.confidence)
    spread = float(np.log(b / a).std(ddof=1))
    planned = plan_for_margin(spread, detect=rule.detect, margin=rule.margin, num_primary=rule.num_decisions)
    change = OPPOSITE.get(found.change, found.change) if name in BIGGER_IS_BETTER else found.change
    return replace(blank, interval=found.interval, p=found.p, change=change, num_planned=planned)


def _interval_of_runs(name: str, a: Replicate, b: Replicate) -> tuple[float, float] | None:
    """The interval of a ratio of two runs by the intervals that each has of its own."""
    ends = [run.intervals.get(name) for run in (a, b)]
    if any(end is None or end[0] <= 0 for end in ends):
        return None
    half = hypot(*(log(end[1] / end[0]) / 2 for end in ends if end is not None))
    ratio = b.figures[name] / a.figures[name]
    return ratio * exp(-half), ratio * exp(half)


def _decide(name: str, interval: tuple[float, float] | None, rule: Rule) -> Change:
    if interval is None:
        return Change.UNDECIDED
    low, high = interval if name not in BIGGER_IS_BETTER else (1 / interval[1], 1 / interval[0])
    if low > 1 + rule.margin:
        return Change.WORSE
    if high < 1 / (1 + rule.margin):
        return Change.BETTER
    is_inside = 1 / (1 + rule.margin) <= low and high <= 1 + rule.margin
    return Change.EQUIVALENT if is_inside else Change.UNDECIDED


def _share_error(figures: Sequence[FigureComparison], rule: Rule) -> tuple[FigureComparison, ...]:
    """Adjust the p values; a difference that does not survive that (Holm's, or BH's, rule) is undecided."""
    from scipy.stats import false_discovery_control

    primary = [figure for figure in figures if figure.is_primary]
    rest = [figure for figure in figures if not figure.is_primary]
    adjusted: dict[str, float] = {}
    for group, adjust in ((primary, holm), (rest, false_discovery_control)):
        known = [(figure.name, figure.p) for figure in group if figure.p is not None]
        if known:
            adjusted |= zip((name for name, _ in known), adjust([p for _, p in known]), strict=True)
    shared = []
    for figure in figures:
        p = adjusted.get(figure.name)
        p = p if p is None or not figure.is_primary else min(1.0, p * rule.num_arms)
        is_lost = p is not None and p > ALPHA and figure.change in OPPOSITE
        change = Change.UNDECIDED if is_lost else figure.change
        shared.append(replace(figure, change=change, p_adjusted=None if p is None else float(p)))
    return tuple(shared)


def plan_more(comparisons: Sequence[ArmComparison]) -> int:
    """How many pairs the primary figures ask for, by the spread of those that there are."""
    planned = [f.num_planned for one in comparisons for f in one.figures if f.is_primary and f.num_planned]
    return max(planned, default=0)


def check_primary(names: Sequence[str]) -> tuple[str, ...]:
    """Check the names of primary figures; UsageError lists what there is."""
    known = [f"{m.removesuffix('_s')}.{s}" for m in METRICS for s in STATISTICS] + list(BIGGER_IS_BETTER)
    for name in names:
        if name not in known:
            raise UsageError(f"--metric {name!r}: known figures are {', '.join(known)}")
    return tuple(dict.fromkeys(names)) or PRIMARY


def describe_comparison(
    arms: Sequence[Arm], comparisons: Sequence[ArmComparison], rule: Rule, facts: dict[str, Any]
) -> dict[str, Any]:
    """The content of compare.json."""
    return {
        "schema_version": COMPARE_SCHEMA_VERSION,
        "rule": asdict(rule),
        **facts,
        "num_planned": plan_more(comparisons),
        "comparisons": [asdict(comparison) for comparison in comparisons],
        "sides": [describe_side(arm.name, arm.replicates) for arm in arms],
        "arms": [asdict(arm) for arm in arms],
    }
