"""Arms compared: pairing, verdicts, the error shared; false alarms and power on a queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.errors import UsageError
from loadgen.measure.compare import (
    Arm,
    ArmComparison,
    Rule,
    check_primary,
    compare_arms,
    pair,
    plan_more,
)
from loadgen.measure.replicates import Replicate
from loadgen.stats.arms import (
    fewest_replicates,
    interleave,
    plan_for_margin,
    single_pair_noise,
    unpaired_interval,
)
from loadgen.stats.paired import Change
from loadgen.stats.quantile import quantile
from tests.loadgen.queues import fifo_waits

Floats = NDArray[np.float64]
RULE = Rule(primary=("ttft.p99", "e2e.mean"))


def replicate(seed: int, **figures: float) -> Replicate:
    return Replicate(
        folder=f"run-{seed}",
        seed=seed,
        plan_digest=f"plan-{seed}",
        reasons=(),
        is_stable=True,
        failed=0,
        figures={name.replace("__", "."): value for name, value in figures.items()},
        intervals={},
    )


def arm(name: str, ttft: Floats | list[float], e2e: Floats | list[float]) -> Arm:
    runs = [
        replicate(i, ttft__p99=float(a), e2e__mean=float(b))
        for i, (a, b) in enumerate(zip(ttft, e2e, strict=True))
    ]
    return Arm(name=name, replicates=tuple(runs))


def changes(found: ArmComparison) -> dict[str, str]:
    return {figure.name: str(figure.change) for figure in found.figures}


def test_runs_are_paired_by_plan_whatever_their_order() -> None:
    base = arm("base", [1, 2, 3], [1, 2, 3])
    other = replace(arm("new", [1.1, 2.2, 3.3], [1, 2, 3]), replicates=base.replicates[::-1])
    assert [(a.seed, b.seed) for a, b in pair(base, other)] == [(0, 0), (1, 1), (2, 2)]


def test_arms_of_different_plans_are_refused_unless_told() -> None:
    base, other = arm("base", [1.0] * 8, [1.0] * 8), arm("new", [2.0] * 8, [2.0] * 8)
    strange = replace(other.replicates[3], plan_digest="other")
    mixed = replace(other, replicates=(*other.replicates[:3], strange, *other.replicates[4:]))
    with pytest.raises(UsageError, match="--different-plans"):
        compare_arms(base, mixed, RULE)
    with pytest.raises(UsageError, match="plan-7"):
        compare_arms(base, replace(other, replicates=other.replicates[:7]), RULE)
    rng = np.random.default_rng(1)
    noisy, slow = (
        arm(name, level * rng.lognormal(0, 0.02, 8), level * rng.lognormal(0, 0.02, 8))
        for name, level in (("base", 1.0), ("new", 2.0))
    )
    found = compare_arms(noisy, slow, RULE, is_same_plans=False)
    assert changes(found) == {"ttft.p99": "worse", "e2e.mean": "worse"}
    assert any("different plans" in note for note in found.notes)
    assert all(figure.ratios == () for figure in found.figures)


def test_every_verdict() -> None:
    rng = np.random.default_rng(2)
    base = rng.lognormal(0, 0.3, 8)

    def against(level: float, noise: float) -> str:
        other = base * level * rng.lognormal(0, noise, 8)
        return changes(compare_arms(arm("a", base, base), arm("b", other, other), RULE))["ttft.p99"]

    assert against(1.2, 0.01) == "worse"
    assert against(0.8, 0.01) == "better"
    assert against(1.0, 0.005) == "equivalent"
    assert against(1.03, 0.10) == "undecided"


def test_more_throughput_is_better() -> None:
    def runs(name: str, rate: float) -> Arm:
        return Arm(
            name=name,
            replicates=tuple(replicate(i, output_tokens=rate * (1 + 0.001 * i)) for i in range(8)),
        )

    found = compare_arms(runs("a", 100), runs("b", 120), Rule(primary=("output_tokens",)))
    assert changes(found) == {"output_tokens": "better"}
    assert found.figures[0].ratio == pytest.approx(1.2)


def test_too_few_pairs_decide_nothing_and_say_so() -> None:
    base = np.linspace(1.0, 2.0, 5)
    found = compare_arms(arm("a", base, base), arm("b", 2 * base, 2 * base), RULE)
    assert changes(found) == {"ttft.p99": "undecided", "e2e.mean": "undecided"}
    assert any("5 pairs cannot decide 2 primary figures: 7 or more" in note for note in found.notes)


def test_no_figure_is_called_against_its_own_test() -> None:
    """Three pairs have a sign-flip p of 0.25 at best, which no narrow interval outweighs."""
    base = np.array([1.0, 1.1, 1.2])
    found = compare_arms(arm("a", base, base), arm("b", 2 * base, 2 * base), Rule(primary=("ttft.p99",)))
    assert changes(found) == {"ttft.p99": "undecided", "e2e.mean": "undecided"}


def test_one_pair_is_decided_by_the_intervals_of_its_runs() -> None:
    narrow = {"ttft.p99": (0.99, 1.01)}
    one = Arm(name="a", replicates=(replace(replicate(0, ttft__p99=1.0), intervals=narrow),))
    two = Arm(
        name="b",
        replicates=(replace(replicate(0, ttft__p99=1.5), intervals={"ttft.p99": (1.45, 1.55)}),),
    )
    found = compare_arms(one, two, Rule(primary=("ttft.p99",)))
    assert changes(found) == {"ttft.p99": "worse"}
    assert found.figures[0].p is None
    blind = replace(two, replicates=(replace(two.replicates[0], intervals={}),))
    assert changes(compare_arms(one, blind, Rule(primary=("ttft.p99",)))) == {"ttft.p99": "undecided"}


def test_pairs_with_an_invalid_run_are_left_out_and_listed() -> None:
    base, other = arm("a", [1.0] * 8, [1.0] * 8), arm("b", [1.0] * 8, [1.0] * 8)
    late = replace(other.replicates[2], reasons=("client_late",), figures={"ttft.p99": 99.0})
    found = compare_arms(
        base, replace(other, replicates=(*other.replicates[:2], late, *other.replicates[3:])), RULE
    )
    assert found.num_pairs == 7
    assert found.left_out == ("run-2: client_late",)
    assert changes(found) == {"ttft.p99": "equivalent", "e2e.mean": "equivalent"}


def test_what_no_run_has_is_said_and_nothing_is_compared_without_runs() -> None:
    found = compare_arms(arm("a", [1.0] * 8, [1.0] * 8), arm("b", [1.0] * 8, [1.0] * 8), Rule())
    assert "itl.p99 is missing from a run: not compared" in found.notes
    nothing = compare_arms(Arm(name="a", replicates=()), Arm(name="b", replicates=()), Rule())
    assert (nothing.num_pairs, nothing.figures) == (0, ())


def test_names_of_figures_are_checked() -> None:
    assert check_primary(["ttft.p99", "ttft.p99"]) == ("ttft.p99",)
    assert check_primary([]) == Rule().primary
    with pytest.raises(UsageError, match="known figures are ttft.mean"):
        check_primary(["tftt.p99"])


def test_arms_are_interleaved_in_mirrored_pairs() -> None:
    order = interleave(3, range(4), np.random.default_rng(1))
    rounds = [[place for number, place in order if number == n] for n in range(4)]
    assert all(sorted(places) == [0, 1, 2] for places in rounds)
    assert rounds[1] == rounds[0][::-1]
    assert rounds[3] == rounds[2][::-1]
    firsts = {interleave(2, range(2), np.random.default_rng(seed))[0][1] for seed in range(20)}
    assert firsts == {0, 1}


def test_plans_of_replicates() -> None:
    assert [fewest_replicates(n) for n in (1, 2, 3, 4)] == [6, 7, 7, 8]
    assert plan_for_margin(0.001, detect=0.05, margin=0.02, num_primary=3) == 7
    few, many = (plan_for_margin(s, detect=0.05, margin=0.02, num_primary=1) for s in (0.02, 0.04))
    assert 6 <= few < many
    with pytest.raises(ValueError, match="margin"):
        plan_for_margin(0.1, detect=0.02, margin=0.05, num_primary=1)


def test_the_noise_of_a_single_pair_is_a_prediction() -> None:
    rng = np.random.default_rng(3)
    inside = [
        abs(rng.normal(0, 0.05)) <= np.log1p(single_pair_noise(rng.normal(0, 0.05, 8))) for _ in range(2000)
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)


def test_unpaired_runs_have_welchs_interval() -> None:
    from scipy import stats

    rng = np.random.default_rng(4)
    a, b = rng.lognormal(0, 0.1, 6), rng.lognormal(0.2, 0.3, 9)
    ratio, low, high, p = unpaired_interval(a, b)
    assert low < ratio < high
    assert p == pytest.approx(stats.ttest_ind(np.log(a), np.log(b), equal_var=False).pvalue)


def queue_arms(rng: np.random.Generator, num: int, slowdown: float, first: int = 0) -> tuple[Arm, Arm]:
    """Two FIFO servers on the same traces, each with 10 % of private noise in every service."""
    found: dict[str, list[Replicate]] = {"base": [], "new": []}
    for number in range(first, first + num):
        gaps, sizes = rng.exponential(1 / 0.7, 3000), rng.lognormal(-0.32, 0.8, 3000)
        for name, factor in (("base", 1.0), ("new", slowdown)):
            services = factor * sizes * rng.lognormal(-0.005, 0.1, 3000)
            waits = fifo_waits(gaps, services)
            figures = {"ttft__p99": quantile(waits, 0.99), "e2e__mean": float((waits + services).mean())}
            found[name].append(replicate(number, **figures))
    return Arm(name="base", replicates=tuple(found["base"])), Arm(name="new", replicates=tuple(found["new"]))


def is_different(found: ArmComparison) -> bool:
    return any(figure.change in (Change.BETTER, Change.WORSE) for figure in found.figures)


def test_equal_arms_are_rarely_called_different() -> None:
    """At a margin of 0 every significant difference would be called: at most 18 in 200, of two figures."""
    rng = np.random.default_rng(5)
    rule = replace(RULE, margin=0.0)
    alarms = sum(is_different(compare_arms(*queue_arms(rng, 8, 1.0), rule)) for _ in range(200))
    assert alarms <= 18


def test_a_step_that_is_5_percent_slower_is_found_with_the_replicates_that_the_pilot_plans() -> None:
    rng = np.random.default_rng(6)
    found, spent = 0, []
    for _ in range(60):
        pilot = queue_arms(rng, 8, 1.05)
        planned = min(plan_more([compare_arms(*pilot, RULE)]), 24)
        more = queue_arms(rng, max(planned - 8, 0), 1.05, first=8)
        arms = [replace(a, replicates=a.replicates + b.replicates) for a, b in zip(pilot, more, strict=True)]
        result = compare_arms(arms[0], arms[1], RULE)
        found += any(figure.change == Change.WORSE for figure in result.figures)
        spent.append(result.num_pairs)
    assert found >= 54
    assert np.mean(spent) <= 24


def pooled_times(rng: np.random.Generator) -> Floats:
    """All times in system of 8 runs of one server, each run on a trace of its own."""
    traces = [(rng.exponential(1 / 0.7, 3000), rng.lognormal(-0.32, 0.8, 3000)) for _ in range(8)]
    return np.asarray(np.concatenate([fifo_waits(gaps, sizes) + sizes for gaps, sizes in traces]), np.float64)


def test_the_usual_tests_over_requests_cry_wolf() -> None:
    """Why requests are no samples: equal servers are "different" in a good half of the tests at 5 %."""
    from scipy import stats

    rng = np.random.default_rng(7)
    tests: dict[str, Any] = {"Mann-Whitney": stats.mannwhitneyu, "Kolmogorov-Smirnov": stats.ks_2samp}
    alarms = dict.fromkeys(tests, 0)
    for _ in range(40):
        one, other = pooled_times(rng), pooled_times(rng)
        for name, test in tests.items():
            alarms[name] += test(one, other).pvalue < 0.05
    assert min(alarms.values()) > 40 * 0.3
