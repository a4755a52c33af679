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


def also(arms: Arms, **figures: float) -> Arms:
    """The same arms, each with these figures, too."""
    named = {name.replace("__", "."): value for name, value in figures.items()}
    return {arm: {**given, **named} for arm, given in arms.items()}


def waste(varied: float, constant: float) -> Arms:
    """Tokens per second of continuous batching where static batching makes 1."""
    made = {"geometric": varied, "constant": constant}
    arms = {f"continuous, {law}": {"tokens_per_s": value} for law, value in made.items()}
    arms |= {f"static, {law}": {"tokens_per_s": 1.0, "rows_wasted": 0.7} for law in made}
    return also(arms, batch_peak=32.0)


def few_over_full(padded: float, dropped: float) -> Arms:
    return {
        "static, geometric": {"step_few_over_full": padded},
        "static without padding, geometric": {"step_few_over_full": dropped},
    }


def useful(static: float, reserving: float) -> Arms:
    shares = {"static": 0.7, "static without padding": static, "orca": reserving, "continuous": 0.9}
    arms = {f"{name}, geometric": {"kv_useful": share} for name, share in shares.items()}
    return also(arms, kv_tokens_per_request=100.0)


def newcomers(static_s: float, share: float) -> Arms:
    tail = {"ttft.p99": 1.0, "ttft.tail.wait_policy": share}
    return {
        "static, newcomers": {"ttft.mean": static_s, "is_stable": 1.0, **tail},
        "continuous, newcomers": {"ttft.mean": 0.01},
    }


def in_flight(knees: Mapping[str, int]) -> Arms:
    """Throughput that rises up to a knee, in a pool of 1,000 requests' KV."""
    return {
        f"{kind}, {count} in flight": {
            "tokens_per_s_when_full": min(count / knee, 1),
            "batch_peak": float(count),
            "pool_tokens": 1000.0,
            "kv_tokens_per_request": 1.0,
        }
        for kind, knee in knees.items()
        for count in (1, 8, 64, 512, 1024)
    }


def beyond(adding: float, larger: float) -> Arms:
    arms = {}
    for shape, gain in (("costs that add", adding), ("the larger of two", larger)):
        arms[f"{shape}, 32 in flight"] = {"tokens_per_s_when_full": 1.0, "itl.p50": 1.0, "batch_peak": 32.0}
        arms[f"{shape}, 256 in flight"] = {
            "tokens_per_s_when_full": gain,
            "itl.p50": 8.0,
            "batch_peak": 256.0,
        }
    return arms


def caps(*ratios: float) -> Arms:
    arms = {}
    for number, ratio in enumerate(ratios):
        same = {"itl.p99": 1.0, "ttft.p99": 1.0}
        arms[f"law {number}, shape, cap 32"] = {"e2e.mean": ratio, "batch_peak": 32.0, **same}
        arms[f"law {number}, shape, no cap"] = {"e2e.mean": 1.0, "batch_peak": 48.0, **same}
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
    return binding(
        {arm: {"tokens_per_s": value, "engine.recompute_fraction": 0.5} for arm, value in made.items()}
    )


def binding(arms: Arms) -> Arms:
    """Batches as the caps allow."""
    return {
        arm: {**given, "engine.batch_mean": 8.0 if "cap 8" in arm else 48.0} for arm, given in arms.items()
    }


def tail_of_best(itl: float, ttft: float) -> Arms:
    return binding(
        {
            "by first chunk, cap 8": {"tokens_per_s": 1.0, "itl.p99": 1.0, "ttft.p99": 1.0},
            "by first chunk, cap 48": {"tokens_per_s": 2.0, "itl.p99": itl, "ttft.p99": ttft},
        }
    )


def styles(jump: Mapping[str, float], wait: Mapping[str, float]) -> Arms:
    return {
        f"{name}, {load}": {**DELAYED, **figures}
        for load in ("15/s", "30/s")
        for name, figures in (("prompts first", jump), ("chunks of 256", wait))
    }


def trade(first: tuple[float, ...], gaps: tuple[float, ...]) -> Arms:
    return {
        f"chunks of {budget}, 30/s": {"ttft.p50": a, "itl.p99": b, **DELAYED}
        for budget, a, b in zip((256, 512, 1024, 2048), first, gaps, strict=True)
    }


def tails(after: float, share: float) -> Arms:
    provoked = {"ttft.p99": after, "ttft.tail.wait_slot": share, "mean.wait_slot": 0.1}
    return {"calm": {"ttft.p99": 1.0}, "provoked": provoked}


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
    arms = {
        "prompts first": {"itl.p99": 1.0, "itl.tail.stall_prefill": share},
        "heavy heads": {"ttft.p99": 1.0, "ttft.tail.wait_order": share},
        "long steps": {"ttft.p99": 1.0, "ttft.tail.wait_align": share},
        "prompts by first chunk": {"engine.recompute_fraction": again, "tokens_per_s": 0.5},
        "whole prompts": {"tokens_per_s": 1.0},
    }
    causes = ("stall_prefill", "stall_decode", "wait_order", "wait_align")
    return also(arms, **{f"mean__{cause}": 0.1 for cause in causes})


def pressed(preempt: tuple[float, float], refuse: tuple[float, float]) -> Arms:
    rises = {
        "ample memory": (1.0, 1.0),
        "preempt": preempt,
        "refuse": refuse,
        "turn away at 4 waiting": (1.0, 1.0),
    }
    arms = {
        arm: {"ttft.p99": first, "max_gap.p99": gap, "errors.rate": 0.1}
        for arm, (first, gap) in rises.items()
    }
    return also(arms, evicted=0.1, mean__wait_memory=1.0, mean__wait_order=0.0, mean__wait_gate=0.0)


def overload(stable: float) -> Arms:
    return {
        arm: {"is_stable": value, "ok": 20.0, "ttft.p50": 1.0, "batch_over_peak": 0.9}
        for arm, value in (("80 % load", 1.0), ("no control", stable))
    }


def goodput(none: float, order: float, *control: float) -> Arms:
    arms = {"no control": none, "no control, shortest first": order}
    arms |= {f"control {number}": value for number, value in enumerate(control)}
    return {arm: {"goodput": value, "ttft.p99": 1.0, "is_stable": 0.0} for arm, value in arms.items()}


def host(share: float) -> Arms:
    return {"continuous, geometric": {"mean.host": share, "e2e.mean": 1.0}}


TIMES = {"mean__interference": 0.1, "mean__stall_prefill": 0.1}
NO_TIMES = dict.fromkeys(TIMES, 0.0)
DELAYED = {"mean.interference": 0.1, "mean.stall_prefill": 0.1}
PADDED = also({"constant": {"rows_wasted": 0.8}, "geometric": {"rows_wasted": 0.8}}, batch_peak=32.0)
LATE = {"ttft.p50": 2.0, "ttft.mean": 2.0, "ttft.p99": 3.0, "max_gap.p99": 1.0}
SOON = {"ttft.p50": 1.0, "ttft.mean": 1.0, "ttft.p99": 2.0, "max_gap.p99": 9.0}
WIDE = {"ttft.shortest.p50": 1.0, "ttft.shortest.p99": 9.0}
NARROW = {"ttft.shortest.p50": 2.0, "ttft.shortest.p99": 4.0}
LIVE = ("prompts first", "chunks of 64")
LATE_WITH_GAPS = {**LATE, "max_gap.p99": 9.0}


def at_low_load(jump: Mapping[str, float], wait: Mapping[str, float]) -> Arms:
    return {arm: given for arm, given in styles(jump, wait).items() if arm.endswith("15/s")}


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
    ("padding", CONDITIONAL, {**PADDED, "constant": {"rows_wasted": 0.0, "batch_peak": 32.0}}, {}),
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
    ("link", FAILS, linked((4, 4), (1, 0.9)), {}),
    ("ceiling", HOLDS, ceiling(2, 3, 1), {}),
    ("ceiling", CONDITIONAL, ceiling(1, 3, 2), {}),
    ("ceiling", FAILS, ceiling(1, 2, 3), {}),
    ("bad_tail", HOLDS, tail_of_best(9, 9), {}),
    ("bad_tail", CONDITIONAL, tail_of_best(9, 0.5), {}),
    ("bad_tail", FAILS, tail_of_best(1, 0.5), {}),
    ("jump", HOLDS, styles(SOON, LATE), {}),
    ("jump", CONDITIONAL, {**styles(SOON, LATE), **at_low_load(LATE, LATE)}, {}),
    ("jump", FAILS, {**styles(SOON, LATE_WITH_GAPS), **at_low_load(LATE_WITH_GAPS, LATE)}, {}),
    ("predictable", HOLDS, styles(WIDE, NARROW), {}),
    ("predictable", CONDITIONAL, {**styles(WIDE, NARROW), **at_low_load(NARROW, WIDE)}, {}),
    ("predictable", FAILS, styles(NARROW, {"ttft.shortest.p50": 9.0, "ttft.shortest.p99": 90.0}), {}),
    ("predictable", FAILS, styles(NARROW, WIDE), {}),
    ("least_wait", HOLDS, styles(SOON, LATE), {}),
    ("least_wait", FAILS, styles(LATE, SOON), {}),
    ("compromise", HOLDS, trade((4, 3, 2, 1), (1, 2, 3, 4)), {}),
    ("compromise", CONDITIONAL, trade((4, 3, 3, 1), (1, 2, 3, 4)), {}),
    ("compromise", FAILS, trade((1, 2, 3, 4), (4, 3, 2, 1)), {}),
    ("styles_live", HOLDS, also(dict(zip(LIVE, (SOON, LATE), strict=True)), **TIMES), {}),
    ("styles_live", FAILS, also(dict(zip(LIVE, (LATE, LATE), strict=True)), **TIMES), {}),
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


WITHOUT_PREMISE: list[tuple[str, Arms, dict[str, Any], str]] = [
    ("waste", also(waste(3, 1), batch_peak=20.0), {"slots": 32}, "filled the 32 slots"),
    ("memory", also(useful(0.2, 0.5), kv_tokens_per_request=0.0), {}, "no KV memory was held"),
    ("newcomers", also(newcomers(1, 0.9), is_stable=0.0), {}, "did not keep up"),
    ("padding", also(PADDED, batch_peak=20.0), {}, "filled the 32 slots"),
    ("apart", also(in_flight({"128 tokens": 8, "2,048 tokens": 8}), batch_peak=1.0), {}, "fewer ran"),
    (
        "apart",
        also(in_flight({"128 tokens": 8, "2,048 tokens": 8}), tokens_per_s_when_full=0.0),
        {},
        "no token came",
    ),
    ("apart", in_flight({"128 tokens": 8, "2,048 tokens": 4096}), {}, "did not saturate"),
    ("beyond", also(beyond(1.0, 1.0), tokens_per_s_when_full=0.0), {}, "no token came"),
    ("cap", also(caps(0.9, 0.9), batch_peak=20.0), {}, "the cap changed no batch"),
    ("link", linked((4, 2), (1, 0.9), full=0.3), {}, "memory was not kept full: 30 %"),
    ("ceiling", also(ceiling(2, 3, 1), engine__recompute_fraction=0.0), {}, "nothing was evicted"),
    ("ceiling", also(ceiling(2, 3, 1), engine__batch_mean=50.0), {}, "the caps changed no batch"),
    ("bad_tail", also(tail_of_best(9, 9), engine__batch_mean=50.0), {}, "the caps changed no batch"),
    ("jump", also(styles(SOON, LATE), **NO_TIMES), {}, "no prompt delayed"),
    ("predictable", also(styles(WIDE, NARROW), **NO_TIMES), {}, "no prompt delayed"),
    ("least_wait", also(styles(SOON, LATE), **NO_TIMES), {}, "no prompt delayed"),
    ("compromise", also(trade((4, 3, 2, 1), (1, 2, 3, 4)), **NO_TIMES), {}, "no prompt delayed"),
    ("styles_live", also(dict(zip(LIVE, (SOON, LATE), strict=True)), **NO_TIMES), {}, "no prompt delayed"),
    ("cause", also(tails(9, 0.9), mean__wait_slot=0.0), CAUSE, "no time went to waiting"),
    ("flapping", also(flapping(0.4, 0.9), batch_over_peak=1.0), {}, "did not drain"),
    ("list", also(left_out(0.01, 0.01), mean__wait_align=0.0), {}, "did not come about with long steps"),
    ("spikes", also(pressed((9, 9), (9, 9)), evicted=0.0), {}, "nothing was evicted with preempt"),
    ("spikes", also(pressed((9, 9), (9, 9)), mean__wait_memory=0.0), {}, "no request waited for memory"),
    ("growth", also(overload(0), batch_over_peak=0.5), {}, "was not saturated"),
    ("remedies", also(goodput(1, 1, 19), is_stable=1.0), {}, "there was no overload"),
]
ALWAYS = {"host", "survivor", "fall", "idle_memory", "nearly_free"}  # whose figures are their premise


@pytest.mark.parametrize(("rule", "arms", "given", "otherwise"), WITHOUT_PREMISE)
def test_a_claim_is_undecided_where_its_premise_is_not_met(
    rule: str, arms: Arms, given: dict[str, Any], otherwise: str
) -> None:
    claim = Claim(text="", section="", rule=rule, given=given)
    experiment = Experiment(name="e", title="", text="", kind="device", columns={}, claims=[claim])
    finding = judge(claim, Conducted(experiment=experiment, outcomes=results(arms).outcomes), RULES)
    assert finding.verdict is Verdict.UNDECIDED
    assert otherwise in finding.measured


def test_every_rule_has_a_premise() -> None:
    assert {rule for rule, *_ in WITHOUT_PREMISE} | ALWAYS == set(RULES)


@pytest.mark.parametrize(
    ("rule", "verdict", "arms", "given"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES]
)
def test_a_rule_follows_its_figures(rule: str, verdict: Verdict, arms: Arms, given: dict[str, Any]) -> None:
    finding: Finding = RULES[rule](results(arms), **given)
    assert finding.verdict is verdict, finding
    assert finding.measured.endswith(".")
    assert finding.condition or verdict is not CONDITIONAL


def curve(step: tuple[float, float, float], growth: float = 1.0) -> Results:
    """A model of one memory read a step: step times at batch 1, 8 and 32."""
    points = [
        {
            "model": "m",
            "batch": batch,
            "step_s": time_s,
            "step_bytes": 1.0 + batch / 100,
            "attention_s": batch**growth,
            "attention_bytes": batch,
        }
        for batch, time_s in zip((1, 8, 32), step, strict=True)
    ]
    return Results(outcomes_of({"bandwidth_bytes_per_s": 1.0, "points": points}, "curve"))


def test_a_fall_beyond_the_batch_says_that_the_first_step_was_slow() -> None:
    fast, slow = RULES["fall"](curve((1.0, 1.2, 4.0))), RULES["fall"](curve((2.0, 1.2, 1.0)))
    assert "itself was slow" in slow.condition
    assert "itself was slow" not in fast.condition
    assert RULES["fall"](curve((1.0, 8.0, 32.0))).condition == "it does not fall"
    assert fast.verdict is FAILS  # by 8x, and attention not at all
    assert slow.verdict is CONDITIONAL
    assert RULES["fall"](curve((2.0, 1.0, 1.0), growth=-0.2)).verdict is HOLDS


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
COLUMNS = {"backlog": "is_stable"}
EXPERIMENT = Experiment(name="e", title="", text="", kind="simulated", columns=COLUMNS, claims=[], arms=ARMS)
CLAIM = Claim(text="", section="", rule="growth")


def test_a_claim_is_undecided_without_its_runs_or_with_an_invalid_one() -> None:
    arms = overload(0)
    whole = Conducted(experiment=EXPERIMENT, outcomes=results(arms).outcomes)
    assert judge(CLAIM, whole, RULES).verdict is HOLDS
    partial = Conducted(experiment=EXPERIMENT, outcomes=results(arms).outcomes[:1])
    assert judge(CLAIM, partial, RULES).measured.startswith("Not measured: 1 of the runs")
    bare = {arm: {"batch_over_peak": 0.9} for arm in arms}
    without = judge(CLAIM, Conducted(experiment=EXPERIMENT, outcomes=results(bare).outcomes), RULES)
    assert without.verdict is Verdict.UNDECIDED
    assert without.measured.startswith('The arm "80 % load" gave no backlog: too few requests')
    late = Outcome(arm="x", seed=0, folder="x", figures={}, reasons=("client_late",))
    spoiled = Conducted(experiment=EXPERIMENT, outcomes=[*results(arms).outcomes, late])
    assert "client_late" in judge(CLAIM, spoiled, RULES).condition
    skipped = Conducted(experiment=EXPERIMENT, skipped="no torch")
    assert "no torch" in judge(CLAIM, skipped, RULES).measured
