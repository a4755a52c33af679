"""What an experiment is: arms to run, figures that are read of each, and rules that turn them into verdicts.

A rule sees figures only, by arm and by seed, so that it can be tried on figures of any kind; it never knows
what the answer ought to be. Arms of one experiment and seed share their plan where their flags of load are
the same, so that ratios are taken pair by pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any, Literal

import msgspec

from loadgen.stats.replicates import OverRuns, over_runs


class Verdict(StrEnum):
    """What a measurement says of a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds under conditions"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A verdict, the sentence with the figures that led to it, and the condition where there is one."""

    verdict: Verdict
    measured: str
    condition: str = ""

    @classmethod
    def of(cls, measured: str, tests: Sequence[bool], condition: str = "", refuted: str = "") -> Finding:
        """Judge by tests that all pass (holds), none of which passes (does not hold), or some.

        condition: said where some pass; refuted: said where none does.
        """
        if all(tests):
            return cls(verdict=Verdict.HOLDS, measured=measured)
        if not any(tests):
            return cls(verdict=Verdict.FAILS, measured=measured, condition=refuted)
        return cls(verdict=Verdict.CONDITIONAL, measured=measured, condition=condition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of an arm. reasons: why its measurement is invalid."""

    arm: str
    seed: int
    folder: str
    figures: Mapping[str, float]
    reasons: tuple[str, ...] = ()


class MissingFigureError(LookupError):
    """A figure that a rule needs is not known: the run has no such thing, or its window is empty."""

    def __init__(self, figure: str, arm: str) -> None:
        super().__init__(figure, arm)
        self.figure, self.arm = figure, arm


class PremiseError(Exception):
    """What a claim presupposes did not come about in the runs."""


def presuppose(is_met: bool, otherwise: str) -> None:
    """Leave a claim undecided where its premise is not met: its runs say nothing about it."""
    if not is_met:
        raise PremiseError(otherwise)


@dataclass(frozen=True, slots=True)
class Results:
    """The outcomes of an experiment's arms."""

    outcomes: Sequence[Outcome]

    def arms(self, start: str = "") -> list[str]:
        """The arms whose names begin so, in their order."""
        return [arm for arm in dict.fromkeys(o.arm for o in self.outcomes) if arm.startswith(start)]

    def values(self, arm: str, figure: str) -> list[float]:
        """The figure in every run of an arm, in order of seeds."""
        runs = sorted((o for o in self.outcomes if o.arm == arm), key=lambda o: o.seed)
        found = [run.figures[figure] for run in runs if figure in run.figures]
        if not found or len(found) < len(runs):
            raise MissingFigureError(figure, arm)
        return found

    def mean(self, arm: str, figure: str) -> float:
        return fmean(self.values(arm, figure))

    def ratio(self, arm: str, base: str, figure: str) -> OverRuns:
        """The figure of an arm over that of another, seed by seed: geometric mean and 95 % interval."""
        above, below = self.values(arm, figure), self.values(base, figure)
        for name, values in ((arm, above), (base, below)):
            if min(values) <= 0:
                raise MissingFigureError(figure, name)
        found = over_runs([a / b for a, b in zip(above, below, strict=True)])
        assert found is not None
        return found

    def tail_share(self, arm: str, metric: str, buckets: Sequence[str]) -> float:
        """The share of causes in what sets an arm's slowest hundredth apart; one that never came has 0."""
        self.values(arm, f"{metric}.p99")  # known at all
        runs = [outcome.figures for outcome in self.outcomes if outcome.arm == arm]
        return fmean(sum(run.get(f"{metric}.tail.{bucket}", 0.0) for bucket in buckets) for run in runs)

    def time_in(self, arm: str, buckets: Sequence[str]) -> float:
        """Mean seconds of a request that went to these causes."""
        return sum(self.mean(arm, f"mean.{bucket}") for bucket in buckets)


Rule = Callable[..., Finding]


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sentence that is put to the test, where it stands, and by which rule. given: its parameters."""

    text: str
    section: str
    rule: str
    given: dict[str, Any] = {}


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question, its arms, and what is made of them, as experiments.toml has it.

    kind: in virtual time, on the torch engine, or the engine's model alone. is_extra: only with `--live`.
    flags: of `bench run`, for all arms; arms: name -> further flags. columns: label -> figure and its unit.
    """

    name: str
    title: str
    text: str
    kind: Literal["simulated", "live", "device"]
    columns: dict[str, str]
    claims: list[Claim]
    flags: str = ""
    arms: dict[str, str] = {}
    charts: list[str] = []
    num_seeds: int = 1
    is_extra: bool = False

    def command(self, arm: str) -> str:
        """The flags of an arm."""
        return f"{self.flags} {self.arms[arm]}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line or one kind of bar: values by place on the x axis."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture of figures. Bars are stacked where they are shares of one whole."""

    kind: Literal["lines", "bars", "stacked"]
    title: str
    caption: str
    y_label: str
    series: Sequence[Series]
    x_label: str = ""
    x_log: bool = False
    y_log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Conducted:
    """An experiment with its outcomes; skipped: why there are none."""

    experiment: Experiment
    outcomes: Sequence[Outcome] = ()
    skipped: str = ""

    @property
    def num_missing(self) -> int:
        """How many runs were not made; the arms of a device are known only once it was measured."""
        planned = len(self.experiment.arms) * self.experiment.num_seeds or 1
        return max(0, planned - len(self.outcomes))


def judge(claim: Claim, conducted: Conducted, rules: Mapping[str, Rule]) -> Finding:
    """Apply a claim's rule; undecided without its runs, figures or premise, or with an invalid run."""
    if conducted.skipped:
        return Finding(verdict=Verdict.UNDECIDED, measured=f"Not measured: {conducted.skipped}.")
    if conducted.num_missing:
        measured = f"Not measured: {conducted.num_missing} of the runs that it needs were not made."
        return Finding(verdict=Verdict.UNDECIDED, measured=measured)
    try:
        finding = rules[claim.rule](Results(conducted.outcomes), **claim.given)
    except MissingFigureError as missing:
        labels = {column.split()[0]: label for label, column in conducted.experiment.columns.items()}
        name = labels.get(missing.figure, missing.figure)
        measured = f'The arm "{missing.arm}" gave no {name}: too few requests for it, or none in its window.'
        return Finding(verdict=Verdict.UNDECIDED, measured=measured)
    except PremiseError as premise:
        return Finding(verdict=Verdict.UNDECIDED, measured=f"Its premise is not met: {premise}.")
    invalid = sorted({reason for outcome in conducted.outcomes for reason in outcome.reasons})
    if not invalid:
        return finding
    because = f"a measurement is invalid ({', '.join(invalid)})"
    return Finding(verdict=Verdict.UNDECIDED, measured=finding.measured, condition=because)
