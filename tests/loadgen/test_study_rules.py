"""The study's rules: each on figures that bear its claim out, and on figures that do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from loadgen.study.catalogue import RULES
from loadgen.study.device import outcomes_of
from loadgen.study.model import Claim, Conducted, Experiment, Finding, Outcome, Results, Verdict, judge

HOLDS, CONDITIONAL, FAILS = Verdict.HOLDS, Verdict.CONDITIONAL, Verdict.FAILS
Arms = Mapping[str, Mapping[str, float]]


def results(arms: Arms, seeds: int = 1) -> Results:
    return Results(
        [
            Outcome(arm=arm, seed=seed, folder="run", figures=dict(figures))
            for seed in range(seeds)
            for arm, figures in arms.items()
        ]
    )


def waste(varied: float, constant: float) -> Arms:
    """Tokens per second of continuous batching where static batching makes 1."""
    made = {"geometric": varied, "constant": constant}
    arms = {f"continuous, {law}": {"tokens_per_s": value} for law, value in made.items()}
    return arms | {f"static, {law}": {"tokens_per_s": 1.0, "rows_wasted": 0.7} for law in made}


def few_over_full(padded: float, dropped: float) -> Arms:
    return {
        "static, geometric": {"step_few_over_full": padded},
        "static without padding, geometric": {"step_few_over_full": dropped},
    }


def useful(static: float, reserving: float) -> Arms:
    shares = {"static without padding": static, "orca": reserving, "continuous": 0.9}
    return {f"{name}, geometric": {"kv_useful": share} for name, share in shares.items()}


def newcomers(static_s: float, share: float) -> Arms:
    tail = {"ttft.p99": 1.0, "ttft.tail.wait_policy": share}
    return {
        "static, newcomers": {"ttft.mean": static_s, **tail},
        "continuous, newcomers": {"ttft.mean": 0.01},
    }


def in_flight(knees: Mapping[str, int]) -> Arms:
    """Throughput that rises up to a knee, in a pool of 1,000 requests' KV."""
    return {
        f"{kind}, {count} in flight": {
            "output_tokens": min(count / knee, 1),
            "pool_tokens": 1000.0,
            "kv_tokens_per_request": 1.0,
        }
        for kind, knee in knees.items()
        for count in (1, 8, 64, 512, 1024)
    }


def beyond(adding: float, larger: float) -> Arms:
    arms = {}
    for shape, gain in (("costs that add", adding), ("the larger of two", larger)):
        arms[f"{shape}, 32 in flight"] = {"output_tokens": 1.0, "itl.p50": 1.0}
        arms[f"{shape}, 256 in flight"] = {"output_tokens": gain, "itl.p50": 8.0}
    return arms


def caps(*ratios: float) -> Arms:
    arms = {}
    for number, ratio in enumerate(ratios):
        same = {"itl.p99": 1.0, "ttft.p99": 1.0}
        arms[f"law {number}, shape, cap 32"] = {"e2e.mean": ratio, **same}
        arms[f"law {number}, shape, no cap"] = {"e2e.mean": 1.0, **same}
    return arms


def linked(answers: tuple[float, float], prompts: tuple[float, float], full: float = 0.95) -> Arms:
    """Throughput at KV a request of 1 and 2, by what the requests are made of."""
    return {
        f"{split}, {size}": {
            "engine.kv_used_fraction": full,
            "tokens_per_s": made,
            "kv_tokens_per_request": float(size),
        }
        for split, pair in (("long answers", answers), ("long prompts", prompts))
        for size, made in zip((1, 2), pair, strict=True)
    }


def ceiling(small: float, best: float, uncapped: float, careful: float = 1.1) -> Arms:
    made = {
        "by first chunk, cap 8": small,
        "by first chunk, cap 48": best,
        "by first chunk, no cap": uncapped,
    }
    made["by whole prompt, no cap"] = careful
    return {arm: {"tokens_per_s": value, "engine.recompute_fraction": 0.5} for arm, value in made.items()}


def tail_of_best(itl: float, ttft: float) -> Arms:
    return {
        "by first chunk, cap 8": {"tokens_per_s": 1.0, "itl.p99": 1.0, "ttft.p99": 1.0},
        "by first chunk, cap 48": {"tokens_per_s": 2.0, "itl.p99": itl, "ttft.p99": ttft},
    }


def styles(jump: Mapping[str, float], wait: Mapping[str, float]) -> Arms:
    return {
        f"{name}, {load}": figures
        for load in ("15/s", "30/s")
        for name, figures in (("prompts first", jump), ("chunks of 256", wait))
    }


def trade(first: tuple[float, ...], gaps: tuple[float, ...]) -> Arms:
    return {
        f"chunks of {budget}, 30/s": {"ttft.p50": a, "itl.p99": b}
        for budget, a, b in zip((256, 512, 1024, 2048), first, gaps, strict=True)
    }


def tails(after: float, share: float) -> Arms:
    return {"calm": {"ttft.p99": 1.0}, "provoked": {"ttft.p99": after, "ttft.tail.wait_slot": share}}


CAUSE = {
    "provoked": "provoked",
    "calm": "calm",
    "metric": "ttft",
    "words": "waiting",
    "buckets": ["wait_slot"],
}


def flapping(average: float, share: float) -> Arms:
    figures = {"tokens_per_s_when_full": 1.0, "batch_over_peak": 0.3, "engine.flapping_cv": 0.7}
    return {
        "batch after batch": {
            **figures,
            "tokens_per_s": average,
            "ttft.p99": 1.0,
            "ttft.tail.wait_policy": share,
        },
        "steady batch": {**figures, "tokens_per_s": 0.99},
    }


def left_out(share: float, again: float) -> Arms:
    return {
        "prompts first": {"itl.p99": 1.0, "itl.tail.stall_prefill": share},
        "heavy heads": {"ttft.p99": 1.0, "ttft.tail.wait_order": share},
        "long steps": {"ttft.p99": 1.0, "ttft.tail.wait_align": share},
        "prompts by first chunk": {"engine.recompute_fraction": again, "tokens_per_s": 0.5},
        "whole prompts": {"tokens_per_s": 1.0},
    }


def pressed(preempt: tuple[float, float], refuse: tuple[float, float]) -> Arms:
    rises = {
        "ample memory": (1.0, 1.0),
        "preempt": preempt,
        "refuse": refuse,
        "turn away at 4 waiting": (1.0, 1.0),
    }
    return {
        arm: {"ttft.p99": first, "max_gap.p99": gap, "errors.rate": 0.1}
        for arm, (first, gap) in rises.items()
    }


def overload(stable: float) -> Arms:
    return {
        arm: {"is_stable": value, "ok": 20.0, "ttft.p50": 1.0}
        for arm, value in (("80 % load", 1.0), ("no control", stable))
    }


def goodput(none: float, order: float, *control: float) -> Arms:
    arms = {"no control": none, "no control, shortest first": order}
    arms |= {f"control {number}": value for number, value in enumerate(control)}
    return {arm: {"goodput": value, "ttft.p99": 1.0} for arm, value in arms.items()}


def host(share: float) -> Arms:
    return {"continuous, geometric": {"mean.host": share, "e2e.mean": 1.0}}


PADDED = {"constant": {"rows_wasted": 0.8}, "geometric": {"rows_wasted": 0.8}}
LATE = {"ttft.p50": 2.0, "ttft.mean": 2.0, "ttft.p99": 3.0, "max_gap.p99": 1.0}
SOON = {"ttft.p50": 1.0, "ttft.mean": 1.0, "ttft.p99": 2.0, "max_gap.p99": 9.0}
WIDE = {"ttft.shortest.p50": 1.0, "ttft.shortest.p99": 9.0}
NARROW = {"ttft.shortest.p50": 2.0, "ttft.shortest.p99": 4.0}
LIVE = ("prompts first", "chunks of 64")

CASES: list[tuple[str, Verdict, Arms, dict[str, Any]]] = [
    ("waste", HOLDS, waste(3, 2), {"slots": 32}),
    ("waste", CONDITIONAL, waste(3, 1), {"slots": 32}),
    ("waste", FAILS, waste(1, 1), {"slots": 32}),
    ("survivor", HOLDS, few_over_full(1.1, 1.1), {}),
    ("survivor", FAILS, few_over_full(1, 0.5), {}),
    ("memory", HOLDS, useful(0.2, 0.5), {}),
    ("memory", FAILS, useful(0.5, 0.5), {}),
    ("newcomers", HOLDS, newcomers(1, 0.9), {}),
    ("newcomers", FAILS, newcomers(0.01, 0.1), {}),
    ("host", HOLDS, host(0.02), {}),
    ("host", FAILS, host(0.001), {}),
    ("padding", HOLDS, PADDED, {}),
    ("padding", CONDITIONAL, {**PADDED, "constant": {"rows_wasted": 0.0}}, {}),
    ("apart", HOLDS, in_flight({"128 tokens": 8, "2,048 tokens": 8}), {}),
    ("apart", CONDITIONAL, in_flight({"128 tokens": 8, "2,048 tokens": 512}), {}),
    ("apart", FAILS, in_flight({"128 tokens": 512, "2,048 tokens": 512}), {}),
    ("beyond", HOLDS, beyond(1.0, 1.0), {}),
    ("beyond", CONDITIONAL, beyond(1.8, 1.0), {}),
    ("beyond", FAILS, beyond(1.8, 1.8), {}),
    ("cap", HOLDS, caps(0.9, 0.9), {}),
    ("cap", CONDITIONAL, caps(0.9, 1.1), {}),
    ("cap", FAILS, caps(1.0, 1.1), {}),
    ("link", HOLDS, linked((1, 0.5), (1, 0.5)), {}),
    ("link", CONDITIONAL, linked((4, 2), (1, 0.9)), {}),
    ("link", FAILS, linked((4, 2), (1, 0.9), full=0.3), {}),
    ("ceiling", HOLDS, ceiling(2, 3, 1), {}),
    ("ceiling", CONDITIONAL, ceiling(1, 3, 2), {}),
    ("ceiling", FAILS, ceiling(1, 2, 3), {}),
    ("bad_tail", HOLDS, tail_of_best(9, 9), {}),
    ("bad_tail", CONDITIONAL, tail_of_best(9, 0.5), {}),
    ("bad_tail", FAILS, tail_of_best(1, 0.5), {}),
    ("jump", HOLDS, styles(SOON, LATE), {}),
    ("jump", FAILS, styles(LATE, LATE), {}),
    ("predictable", HOLDS, styles(WIDE, NARROW), {}),
    ("predictable", CONDITIONAL, styles(NARROW, {"ttft.shortest.p50": 9.0, "ttft.shortest.p99": 90.0}), {}),
    ("predictable", FAILS, styles(NARROW, WIDE), {}),
    ("least_wait", HOLDS, styles(SOON, LATE), {}),
    ("least_wait", FAILS, styles(LATE, SOON), {}),
    ("compromise", HOLDS, trade((4, 3, 2, 1), (1, 2, 3, 4)), {}),
    ("compromise", CONDITIONAL, trade((4, 3, 3, 1), (1, 2, 3, 4)), {}),
    ("compromise", FAILS, trade((1, 2, 3, 4), (4, 3, 2, 1)), {}),
    ("styles_live", HOLDS, dict(zip(LIVE, (SOON, LATE), strict=True)), {}),
    ("styles_live", FAILS, dict(zip(LIVE, (LATE, LATE), strict=True)), {}),
    ("cause", HOLDS, tails(9, 0.9), CAUSE),
    ("cause", CONDITIONAL, tails(9, 0.5), CAUSE),
    ("cause", FAILS, tails(9, 0.1), CAUSE),
    ("cause", FAILS, tails(1.1, 0.9), CAUSE),
    ("flapping", HOLDS, flapping(0.4, 0.9), {}),
    ("flapping", CONDITIONAL, flapping(0.4, 0.1), {}),
    ("flapping", FAILS, flapping(0.99, 0.1), {}),
    ("list", HOLDS, left_out(0.01, 0.01), {}),
    ("list", FAILS, left_out(0.9, 0.01), {}),
    ("list", FAILS, left_out(0.01, 0.5), {}),
    ("spikes", HOLDS, pressed((9, 9), (9, 9)), {}),
    ("spikes", CONDITIONAL, pressed((9, 9), (9, 1)), {}),
    ("spikes", FAILS, pressed((1, 1), (1, 1)), {}),
    ("growth", HOLDS, overload(0), {}),
    ("growth", FAILS, overload(1), {}),
    ("remedies", HOLDS, goodput(1, 1, 19, 19), {}),
    ("remedies", CONDITIONAL, goodput(1, 1, 19, 1), {}),
    ("remedies", CONDITIONAL, goodput(1, 19, 19, 19), {}),
    ("remedies", FAILS, goodput(1, 19, 1, 1), {}),
]


@pytest.mark.parametrize(
    ("rule", "verdict", "arms", "given"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES]
)
def test_a_rule_follows_its_figures(rule: str, verdict: Verdict, arms: Arms, given: dict[str, Any]) -> None:
    finding: Finding = RULES[rule](results(arms), **given)
    assert finding.verdict is verdict, finding
    assert finding.measured.endswith(".")
    assert finding.condition or verdict is not CONDITIONAL


def curve(step: tuple[float, float, float], attention: float = 1.0) -> Results:
    """A model of one memory read a step: step times at batch 1, 8 and 32."""
    points = [
        {
            "model": "m",
            "batch": batch,
            "step_s": time_s,
            "step_bytes": 1.0 + batch / 100,
            "attention_s": attention * batch,
            "attention_bytes": batch,
        }
        for batch, time_s in zip((1, 8, 32), step, strict=True)
    ]
    return Results(outcomes_of({"bandwidth_bytes_per_s": 1.0, "points": points}, "curve"))


def test_a_fall_beyond_the_batch_says_that_the_first_step_was_slow() -> None:
    fast, slow = RULES["fall"](curve((1.0, 1.2, 4.0))), RULES["fall"](curve((2.0, 1.2, 1.0)))
    assert "itself was slow" in slow.condition
    assert "itself was slow" not in fast.condition
    assert RULES["fall"](curve((1.0, 8.0, 32.0))).verdict is FAILS


def test_memory_is_idle_at_batch_1_only_where_its_share_rises() -> None:
    assert (
        RULES["idle_memory"](curve((4.0, 3.0, 1.4))).verdict is CONDITIONAL
    )  # attention alone does not rise
    assert RULES["idle_memory"](curve((1.0, 8.0, 32.0))).verdict is FAILS


def test_more_in_flight_is_nearly_free_while_a_step_takes_hardly_longer() -> None:
    assert RULES["nearly_free"](curve((1.0, 1.1, 2.0))).verdict is HOLDS
    assert RULES["nearly_free"](curve((1.0, 2.0, 4.0))).verdict is CONDITIONAL
    assert RULES["nearly_free"](curve((1.0, 8.0, 32.0))).verdict is FAILS


def test_every_rule_is_tried() -> None:
    tried = {rule for rule, *_ in CASES} | {"fall", "idle_memory", "nearly_free"}
    assert tried == set(RULES)


ARMS = {"80 % load": "", "no control": ""}
EXPERIMENT = Experiment(name="e", title="", text="", kind="simulated", columns={}, claims=[], arms=ARMS)
CLAIM = Claim(text="", section="", rule="growth")


def test_a_claim_is_undecided_without_its_runs_or_with_an_invalid_one() -> None:
    arms = overload(0)
    whole = Conducted(experiment=EXPERIMENT, outcomes=results(arms).outcomes)
    assert judge(CLAIM, whole, RULES).verdict is HOLDS
    partial = Conducted(experiment=EXPERIMENT, outcomes=results(arms).outcomes[:1])
    assert judge(CLAIM, partial, RULES).measured.startswith("Not measured: 1 of the runs")
    without = Conducted(experiment=EXPERIMENT, outcomes=results({arm: {} for arm in arms}).outcomes)
    assert judge(CLAIM, without, RULES).verdict is Verdict.UNDECIDED
    late = Outcome(arm="x", seed=0, folder="x", figures={}, reasons=("client_late",))
    spoiled = Conducted(experiment=EXPERIMENT, outcomes=[*results(arms).outcomes, late])
    assert "client_late" in judge(CLAIM, spoiled, RULES).condition
    skipped = Conducted(experiment=EXPERIMENT, skipped="no torch")
    assert "no torch" in judge(CLAIM, skipped, RULES).measured
