"""Static against continuous batching, and what padding wastes: sections 2, 3 and 6 of the article."""

from __future__ import annotations

from loadgen.study.model import Chart, Finding, Results, Series, presuppose
from loadgen.study.words import around, factor, listed, percent, seconds

LAWS = ("constant", "geometric")


def presuppose_full(results: Results, arms: list[str], slots: int) -> None:
    """A backlog is presupposed: every arm filled its slots at some time."""
    idle = [arm for arm in arms if results.mean(arm, "batch_peak") < slots]
    presuppose(not idle, f"no backlog filled the {slots} slots of {listed(idle)}")


def judge_waste(results: Results, slots: int) -> Finding:
    """Throughput with answers of varying and of constant length; theory for geometric ones: H(slots)."""
    presuppose_full(results, [f"{kind}, {law}" for kind in ("static", "continuous") for law in LAWS], slots)
    varied, constant = (
        results.ratio(f"continuous, {law}", f"static, {law}", "tokens_per_s")
        for law in ("geometric", "constant")
    )
    theory = sum(1 / k for k in range(1, slots + 1))
    measured = (
        f"Geometric lengths: continuous batching made {around(varied)} the tokens of padded static batching "
        f"(theory, where only steps cost: {factor(theory)}); "
        f"{percent(results.mean('static, geometric', 'rows_wasted'))} of the rows that static batching "
        f"computed belonged to requests that had ended. Constant lengths: {around(constant)}."
    )
    condition = "where answers differ in length; with constant lengths nothing is lost"
    return Finding.of(measured, [varied.value > 1.1, constant.value > 1.05], condition)


def judge_survivor(results: Results) -> Finding:
    """Are the steps of a batch that has nearly ended slower, with and without padding?"""
    padded, dropped = (
        results.mean(f"{arm}, geometric", "step_few_over_full")
        for arm in ("static", "static without padding")
    )
    measured = (
        "A step with at most a quarter of the batch left, against one with nearly all of it: "
        f"{factor(padded)} where finished rows are still computed, {factor(dropped)} where they are dropped."
    )
    refuted = "no step gets slower; what is lost is slots, and the time of those who wait"
    slower = {"with": padded > 1.02, "without": dropped > 1.02}
    condition = f"only {listed([name for name, is_so in slower.items() if is_so])} padding"
    return Finding.of(measured, list(slower.values()), condition, refuted)


def judge_memory(results: Results) -> Finding:
    """KV memory read by a step, of that held: under a held batch, under the same reservation, and paged."""
    arms = [f"{arm}, geometric" for arm in ("static without padding", "static", "orca", "continuous")]
    static, padded, reserving, paged = (results.mean(arm, "kv_useful") for arm in arms)
    empty = [arm for arm in arms if not results.mean(arm, "kv_tokens_per_request")]
    presuppose(not empty, f"no KV memory was held by {listed(empty)}")
    measured = (
        f"Of the KV memory held, {percent(static)} was read in a step by static batching without padding "
        f"({percent(padded)} with padding, which goes on reading for requests that have ended), "
        f"{percent(reserving)} where the same reservation ends with each request (orca), "
        f"{percent(paged)} with pages taken as they are needed (continuous)."
    )
    return Finding.of(measured, [static < 0.8 * reserving])


def judge_newcomers(results: Results) -> Finding:
    """Mean TTFT at a load that static batching can carry, and what its tail waits for."""
    static, continuous = (results.mean(f"{arm}, newcomers", "ttft.mean") for arm in ("static", "continuous"))
    stable = results.mean("static, newcomers", "is_stable")
    presuppose(stable == 1, "static batching did not keep up with 2.5 requests/s")
    waiting = results.tail_share("static, newcomers", "ttft", ["wait_policy"])
    measured = (
        f"At 2.5 requests/s, half of what static batching can carry, the mean TTFT was {seconds(static)} "
        f"against {seconds(continuous)}; {percent(waiting)} of what sets the slowest 1 % apart was waiting "
        "for the batch to end."
    )
    is_late = static > 2 * continuous
    condition = "they wait, but not for the batch to end" if is_late else "they wait for it, but not long"
    return Finding.of(measured, [is_late, waiting > 0.7], condition)


def judge_host(results: Results) -> Finding:
    """Does the time between two steps count (1 % and more)?"""
    arm = "continuous, geometric"
    share = results.mean(arm, "mean.host") / results.mean(arm, "e2e.mean")
    measured = f"Between two steps went {percent(share)} of a request's time with continuous batching."
    return Finding.of(measured, [share >= 0.01])


def judge_padding(results: Results) -> Finding:
    """Rows wasted by the law of the lengths: three quarters and more?"""
    presuppose_full(results, results.arms(), 32)
    wasted = {law: results.mean(law, "rows_wasted") for law in results.arms()}
    said = "; ".join(f"{law}: {percent(share)}" for law, share in wasted.items())
    measured = f"Rows wasted at batch 32, by the law of the lengths: {said}."
    as_much = [law for law, share in wasted.items() if share >= 0.745]
    condition = f"three quarters and more are lost with lengths that are {' or '.join(as_much)}"
    return Finding.of(measured, [law in as_much for law in wasted], condition)


def chart_throughput(results: Results) -> Chart:
    arms = ["static", "static without padding", "continuous"]
    return Chart(
        kind="bars",
        title="Tokens per second with a backlog",
        caption="Batch 32, the same requests in every arm. With constant lengths static batching loses "
        "nothing; with geometric ones the longest member holds the batch open.",
        y_label="output tokens/s",
        series=[
            Series(name=law, x=arms, y=[results.mean(f"{arm}, {law}", "tokens_per_s") for arm in arms])
            for law in LAWS
        ],
    )
