"""Prompts that jump the queue against prompts that wait, and the chunk budgets between: section 5."""

from __future__ import annotations

from itertools import pairwise

from loadgen.study.model import Chart, Finding, Results, Series, presuppose
from loadgen.study.words import around, factor, seconds

LOADS = ("15/s", "30/s")
JUMP, WAIT = "prompts first", "chunks of 256"
BUDGETS = (256, 512, 1024, 2048)


def presuppose_rivals(results: Results, arms: list[str]) -> None:
    """Prompts are presupposed to meet requests that decode, and long prompts others."""
    calm = [arm for arm in arms if results.time_in(arm, ["interference", "stall_prefill"]) <= 0]
    presuppose(not calm, f"no prompt delayed another request with {'; '.join(calm)}")


def judge_jump(results: Results) -> Finding:
    """(a), load by load: does the first token come sooner, and do the gaps of those who run get longer?"""
    parts, first, gaps = [], [], []
    for load in LOADS:
        arms = f"{JUMP}, {load}", f"{WAIT}, {load}"
        presuppose_rivals(results, [*arms])
        ttft, gap = results.ratio(*arms, "ttft.p50"), results.ratio(*arms, "max_gap.p99")
        parts.append(f"{load}: median TTFT {around(ttft)}, p99 of a request's worst gap {around(gap)}")
        first.append(ttft.value < 0.95)
        gaps.append(gap.value > 1.2)
    measured = f"Prompts first against {WAIT} tokens; {'; '.join(parts)}."
    both = [a and b for a, b in zip(first, gaps, strict=True)]
    condition = (
        f"both at {_loads(both)}: new requests start sooner (by 5 % and more) at {_loads(first)}, gaps get "
        f"longer at {_loads(gaps)}"
    )
    return Finding.of(measured, both, condition, condition)


def judge_predictable(results: Results) -> Finding:
    """(b), load by load: is the first token later, but its p99 over p50 lower, for prompts of one length?"""
    parts, higher, narrower = [], [], []
    for load in LOADS:
        arms = f"{JUMP}, {load}", f"{WAIT}, {load}"
        presuppose_rivals(results, [*arms])
        medians = [results.mean(arm, "ttft.shortest.p50") for arm in arms]
        spreads = [
            results.mean(arm, "ttft.shortest.p99") / median for arm, median in zip(arms, medians, strict=True)
        ]
        parts.append(
            f"{load}: median {seconds(medians[0])} and {seconds(medians[1])}, p99 over median "
            f"{factor(spreads[0])} and {factor(spreads[1])}"
        )
        higher.append(medians[1] > 1.05 * medians[0])
        narrower.append(spreads[1] < 0.9 * spreads[0])
    measured = f"TTFT of the prompts of 200 tokens, prompts first and {WAIT}; {'; '.join(parts)}."
    both = [a and b for a, b in zip(higher, narrower, strict=True)]
    condition = (
        f"both at {_loads(both)}: later (by 5 % and more) at {_loads(higher)}, more predictable at "
        f"{_loads(narrower)}"
    )
    return Finding.of(measured, both, condition, condition)


def _loads(flags: list[bool]) -> str:
    return " and ".join(load for load, flag in zip(LOADS, flags, strict=True) if flag) or "neither load"


def judge_least_wait(results: Results) -> Finding:
    """(a) minimises time to first token: within 3 % of the lowest arm by median, mean and p99?"""
    above = {}
    for load in LOADS:
        arms = [arm for arm in results.arms() if arm.endswith(load)]
        presuppose_rivals(results, arms)
        for statistic in ("p50", "mean", "p99"):
            lowest = min(results.mean(arm, f"ttft.{statistic}") for arm in arms)
            above[f"{statistic} at {load}"] = results.mean(f"{JUMP}, {load}", f"ttft.{statistic}") / lowest
    said = ", ".join(f"{name} {factor(ratio)}" for name, ratio in above.items())
    measured = f"TTFT with prompts first over the lowest of all arms: {said}."
    won = {name: ratio < 1.03 for name, ratio in above.items()}
    condition = f"for {', '.join(name for name, is_won in won.items() if is_won)}"
    return Finding.of(measured, list(won.values()), condition)


def judge_compromise(results: Results) -> Finding:
    """A larger budget must lower TTFT and raise the gaps, step by step, at high load."""
    presuppose_rivals(results, [f"chunks of {budget}, 30/s" for budget in BUDGETS])
    first, gaps = (
        [results.mean(f"chunks of {budget}, 30/s", figure) for budget in BUDGETS]
        for figure in ("ttft.p50", "itl.p99")
    )
    measured = (
        f"From {BUDGETS[0]} to {BUDGETS[-1]} tokens a step, at 30 requests/s: median TTFT "
        f"{seconds(first[0])} to {seconds(first[-1])}, ITL p99 {seconds(gaps[0])} to {seconds(gaps[-1])}."
    )
    tests = [all(b < a for a, b in pairwise(first)), all(b > a for a, b in pairwise(gaps))]
    condition = "the first token comes sooner with every larger budget, gaps do not get longer with each"
    if tests[1]:
        condition = "gaps get longer with every larger budget, the first token does not come sooner with each"
    return Finding.of(measured, tests, condition)


def judge_styles_live(results: Results) -> Finding:
    """The same trade on a real engine."""
    presuppose_rivals(results, [JUMP, "chunks of 64"])
    gap, first = (results.ratio(JUMP, "chunks of 64", name).value for name in ("max_gap.p99", "ttft.p50"))
    measured = (
        f"Prompts first against chunks of 64 tokens, on this machine: median TTFT {factor(first)}, "
        f"p99 of a request's worst gap {factor(gap)}."
    )
    condition = (
        "for the gaps, not for the first token" if gap > 1.2 else "for the first token, not for the gaps"
    )
    return Finding.of(measured, [gap > 1.2, first < 0.95], condition)


def chart_trade(results: Results) -> Chart:
    return Chart(
        kind="lines",
        title="The chunk budget: first token against gaps",
        caption="At 30 requests/s, by the tokens that a step may compute.",
        x_label="tokens a step",
        y_label="time",
        x_log=True,
        y_log=True,
        series=[
            Series(
                name=label,
                x=list(BUDGETS),
                y=[results.mean(f"chunks of {budget}, 30/s", figure) for budget in BUDGETS],
            )
            for label, figure in (("TTFT p50", "ttft.p50"), ("ITL p99", "itl.p99"), ("ITL p50", "itl.p50"))
        ],
    )
