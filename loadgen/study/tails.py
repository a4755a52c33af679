"""Where tail latency comes from, refusing against preempting, and admission control: sections 4 and 6."""

from __future__ import annotations

from loadgen.study.model import Chart, Finding, Results, Series, presuppose
from loadgen.study.words import factor, listed, number, percent, seconds

NAMED = 0.7  # of the excess, for a cause to be seen where it was produced


def judge_cause(
    results: Results, *, provoked: str, calm: str, metric: str, buckets: list[str], words: str
) -> Finding:
    """Is the cause produced (the p99 rises by a half and more), and do its buckets of time name it?"""
    presuppose(results.time_in(provoked, buckets) > 0, f"with {provoked}, no time went to {words}")
    before, after = (results.mean(arm, f"{metric}.p99") for arm in (calm, provoked))
    share = results.tail_share(provoked, metric, buckets)
    measured = (
        f"{metric.upper()} p99 rose from {seconds(before)} ({calm}) to {seconds(after)} ({provoked}); "
        f"{percent(share)} of what sets its slowest 1 % apart was {words}."
    )
    if after <= 1.5 * before:
        measured = measured.replace("rose", "went")
        return Finding.of(measured, [False])
    tests = [share >= NAMED / 2, share >= NAMED]
    return Finding.of(measured, tests, "it is a large part of the tail here, not most of it")


def judge_flapping(results: Results) -> Finding:
    """Average throughput against that of the steps at the peak batch, beside a batch kept steady."""
    arm, calm = "batch after batch", "steady batch"
    presuppose(results.mean(arm, "batch_over_peak") < 0.9, "the batch did not drain")
    reached = {
        a: results.mean(a, "tokens_per_s") / results.mean(a, "tokens_per_s_when_full") for a in (arm, calm)
    }
    waiting = results.tail_share(arm, "ttft", ["wait_policy"])
    measured = (
        f"Admitting in bursts and draining made {percent(reached[arm])} of the tokens/s that its steps at "
        f"the peak batch make ({number(results.mean(arm, 'tokens_per_s'))}); deciding each step made "
        f"{percent(reached[calm])}. Its mean batch was {percent(results.mean(arm, 'batch_over_peak'))} of "
        f"the peak and varied with a CV of {results.mean(arm, 'engine.flapping_cv'):.2f} over seconds. "
        f"{percent(waiting)} of what sets its slowest 1 % of TTFT apart was waiting for the batch to end."
    )
    is_below = reached[arm] < 0.8
    condition = "throughput is well below, but waiting for the batch to end is not most of the tail"
    if not is_below:
        condition = "waiting for the batch to end is most of the tail, but throughput is not well below"
    return Finding.of(measured, [is_below, waiting >= NAMED], condition)


LEFT_OUT = {
    "resident but not scheduled": ("prompts first", "itl", ["stall_prefill", "stall_decode"]),
    "waiting behind a head that does not fit": ("heavy heads", "ttft", ["wait_order"]),
    "waiting for the step in progress": ("long steps", "ttft", ["wait_align"]),
}


def judge_list(results: Results) -> Finding:
    """Is the list complete? Not where another cause makes up a tail, or a tenth is computed twice."""
    shares = {name: results.tail_share(*where) for name, where in LEFT_OUT.items()}
    again = results.mean("prompts by first chunk", "engine.recompute_fraction")
    useful = results.ratio("prompts by first chunk", "whole prompts", "tokens_per_s").value
    said = ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
    measured = (
        f"Share of the slowest 1 % in the arm made to show it: {said}. Where long prompts are let in by "
        f"their first chunk, {percent(again)} of all tokens were computed a second time, and "
        f"{factor(useful)} of the throughput was left."
    )
    others = [name for name, share in shares.items() if share >= NAMED / 2]
    others += ["computing again"] if again >= 0.1 else []
    if not others:  # one cause more is enough to refute; to say that there is none, all must have come about
        absent = [arm for arm, _, buckets in LEFT_OUT.values() if results.time_in(arm, buckets) <= 0]
        absent += [] if again > 0 else ["prompts by first chunk"]
        presuppose(not absent, f"what was to be provoked did not come about with {listed(absent)}")
    refuted = f"the list leaves out {listed(others)}"
    return Finding.of(measured, [not others], refuted=refuted)


SHOWN = {
    "overload": "ttft",
    "whole prompts beside decodes": "itl",
    "scarce memory": "itl",
    "batch after batch": "ttft",
    "prompts first": "itl",
    "heavy heads": "ttft",
    "long steps": "ttft",
}
GROUPS = {
    "a slot": ["wait_slot", "wait_policy"],
    "memory or its order": ["wait_memory", "wait_order", "wait_gate"],
    "room in a step": ["wait_budget"],
    "the step in progress": ["wait_align"],
    "prompts of others": ["interference", "stall_prefill"],
    "evictions": ["preempted", "recompute", "swap"],
    "own work and batch": ["own", "batch"],
}


def chart_causes(results: Results) -> Chart:
    return Chart(
        kind="stacked",
        title="What the slowest 1 % is made of, by what was provoked",
        caption="Share of each cause in what sets the slowest hundredth of first tokens (TTFT) or gaps (ITL) "
        "apart from the rest: waiting for a slot, for memory, ...; a share below zero is not drawn.",
        y_label="share of the excess",
        series=[
            Series(
                name=name,
                x=[f"{arm} ({metric.upper()})" for arm, metric in SHOWN.items()],
                y=[results.tail_share(arm, metric, buckets) for arm, metric in SHOWN.items()],
            )
            for name, buckets in GROUPS.items()
        ],
    )


def judge_spikes(results: Results) -> Finding:
    """Does the p99 of TTFT, or of a request's worst gap, rise threefold against ample memory?"""
    evicting, refusing = results.arms("preempt"), results.arms("refuse")
    idle = [arm for arm in evicting if not results.mean(arm, "evicted")]
    presuppose(not idle, f"nothing was evicted with {listed(idle)}")
    idle = [arm for arm in refusing if not results.time_in(arm, ["wait_memory", "wait_order", "wait_gate"])]
    presuppose(not idle, f"no request waited for memory with {listed(idle)}")
    arms = evicting + refusing
    figures = ("ttft.p99", "max_gap.p99")
    rises = {arm: [results.ratio(arm, "ample memory", f).value for f in figures] for arm in arms}
    said = "; ".join(
        f"{arm}, TTFT p99 {factor(a)} and worst gap {factor(b)}" for arm, (a, b) in rises.items()
    )
    door = "turn away at 4 waiting"
    measured = (
        f"Against ample memory: {said}. Turning away at the door refused "
        f"{percent(results.mean(door, 'errors.rate'))} and kept TTFT p99 at "
        f"{seconds(results.mean(door, 'ttft.p99'))}."
    )
    first, gaps = ([arm for arm in arms if rises[arm][i] > 3] for i in (0, 1))
    condition = (
        f"the first token waits more than three times as long for {listed(first)}; gaps grow as much for "
        f"{listed(gaps)}"
    )
    return Finding.of(measured, [rise > 3 for pair in rises.values() for rise in pair], condition)


def judge_growth(results: Results) -> Finding:
    """Above capacity the backlog must grow; below it must not."""
    below, over = "80 % load", "no control"
    busy = results.mean(over, "batch_over_peak")
    presuppose(busy > 0.75, f"the engine was not saturated: its mean batch was {percent(busy)} of the peak")
    grew = {arm: results.mean(arm, "is_stable") < 0.5 for arm in (below, over)}
    said = {arm: f"{'grew' if grew[arm] else 'did not grow'}" for arm in grew}
    wait = {arm: seconds(results.mean(arm, "ttft.p50")) for arm in grew}
    measured = (
        f"26 requests/s offered, {number(results.mean(over, 'ok'))} served: the backlog {said[over]}, with a "
        f"median TTFT of {wait[over]}; at 16 requests/s it {said[below]}, with {wait[below]}."
    )
    is_known = results.mean(below, "is_stable") > 0.5  # half: undecided
    return Finding.of(measured, [grew[over] and is_known])


def judge_remedies(results: Results) -> Finding:
    """Goodput with and without admission control (twice as much helps), and with only another order."""
    grew = results.mean("no control", "is_stable") < 0.5
    presuppose(grew, "without control the backlog did not grow: there was no overload")
    none, order = (results.mean(arm, "goodput") for arm in ("no control", "no control, shortest first"))
    control = {
        arm: results.mean(arm, "goodput")
        for arm in results.arms()
        if not arm.startswith(("no control", "80 %"))
    }
    said = ", ".join(f"{name} {number(value)}" for name, value in control.items())
    longest = seconds(results.mean("no control, shortest first", "ttft.p99"))
    measured = (
        f"First tokens within 1 s, per second, of 26 offered: without control {number(none)}; {said}; "
        f"shortest first without any control {number(order)} (TTFT p99 {longest})."
    )
    useless = [name for name, value in control.items() if value <= 2 * none]
    conditions = []
    if useless:
        conditions.append(
            f"a limit that lets requests wait beyond the SLO changes nothing ({listed(useless)})"
        )
    if order > 2 * none:
        conditions.append(
            f"another order saves most requests, too, and lets the longest wait (TTFT p99 {longest})"
        )
    tests = [len(useless) < len(control), not conditions]
    return Finding.of(measured, tests, "; ".join(conditions))


def chart_goodput(results: Results) -> Chart:
    arms = [arm for arm in results.arms() if arm != "80 % load"]
    return Chart(
        kind="bars",
        title="Requests with a first token within 1 s, at 1.3 times the capacity",
        caption="Per second, of 26 offered; requests that are turned away count as not met.",
        y_label="good requests/s",
        series=[Series(name="goodput", x=arms, y=[results.mean(arm, "goodput") for arm in arms])],
    )
