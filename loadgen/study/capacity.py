"""How many requests to run: capacity by memory, saturation, and the operating point (sections 4 and 7)."""

from __future__ import annotations

from loadgen.study.model import Chart, Finding, Results, Series, presuppose
from loadgen.study.words import around, factor, listed, number, percent, seconds

SATURATED = 0.9  # of the highest throughput
KINDS = ("128 tokens", "2,048 tokens")
SHAPES = ("costs that add", "the larger of two")
MADE = "tokens_per_s_when_full"  # while nearly all of them were in the batch


def throughputs(results: Results, kind: str) -> dict[int, float]:
    """Tokens per second by requests in flight, which must have been in flight and have made some."""
    counts = {int(arm.split(", ")[-1].split()[0]): arm for arm in results.arms(f"{kind}, ")}
    made = {count: results.mean(arm, MADE) for count, arm in counts.items()}
    few = [arm for count, arm in counts.items() if results.mean(arm, "batch_peak") < 0.9 * count]
    presuppose(not few, f"fewer ran at a time than were to be in flight: {'; '.join(few)}")
    silent = [counts[count] for count, made_s in made.items() if not made_s > 0]
    presuppose(not silent, f"no token came with {'; '.join(silent)}")
    return made


def judge_apart(results: Results) -> Finding:
    """Capacity over the fewest in flight that give nine tenths of the most: an order of magnitude each?"""
    said, apart = [], {}
    for kind in KINDS:
        made = throughputs(results, kind)
        batch = min(count for count, made_s in made.items() if made_s >= SATURATED * max(made.values()))
        presuppose(batch < max(made), f"requests of {kind} did not saturate the device")
        arm = f"{kind}, {max(made)} in flight"
        capacity = results.mean(arm, "pool_tokens") / results.mean(arm, "kv_tokens_per_request")
        apart[kind] = capacity / batch
        said.append(
            f"requests of {kind}, memory for {number(capacity)} and {percent(SATURATED)} of the most "
            f"throughput at {batch}, {factor(apart[kind])} apart"
        )
    wide = [kind for kind, ratio in apart.items() if ratio >= 10]
    tests = [kind in wide for kind in KINDS]
    return Finding.of(f"{'; '.join(said)}.".capitalize(), tests, f"for requests of {listed(wide)}")


def judge_beyond(results: Results) -> Finding:
    """Beyond saturation: throughput gained (below 5 % is none), and what ITL pays, by the shape of cost."""
    for shape in SHAPES:
        throughputs(results, shape)
    gains = {s: results.ratio(f"{s}, 256 in flight", f"{s}, 32 in flight", MADE).value for s in SHAPES}
    pays = {s: results.ratio(f"{s}, 256 in flight", f"{s}, 32 in flight", "itl.p50").value for s in SHAPES}
    said = "; ".join(f"{s}, throughput {factor(gains[s])} and median ITL {factor(pays[s])}" for s in SHAPES)
    none = [shape for shape, gain in gains.items() if gain < 1.05]
    condition = f"where a step costs {listed(none)}; elsewhere throughput rises on"
    return Finding.of(f"From 32 to 256 in flight: {said}.", [shape in none for shape in SHAPES], condition)


def chart_saturation(results: Results) -> Chart:
    made = {kind: throughputs(results, kind) for kind in KINDS}
    return Chart(
        kind="lines",
        title="Throughput by requests in flight",
        caption="As a share of the highest: where the curve is flat, more requests buy nothing.",
        x_label="requests in flight",
        y_label="share of the highest throughput",
        x_log=True,
        series=[
            Series(name=kind, x=list(by), y=[value / max(by.values()) for value in by.values()])
            for kind, by in made.items()
        ],
    )


NO_CHANGE = 0.005


def cap_cases(results: Results) -> list[str]:
    return [arm.removesuffix(", cap 32") for arm in results.arms() if arm.endswith(", cap 32")]


def judge_cap(results: Results) -> Finding:
    """Mean E2E with the cap over without, case by case: it helps, harms, or makes no clear difference."""
    cases = cap_cases(results)
    e2e, gaps, first = (
        {case: results.ratio(f"{case}, cap 32", f"{case}, no cap", figure) for case in cases}
        for figure in ("e2e.mean", "itl.p99", "ttft.p99")
    )
    gap, wait = ([ratio.value for ratio in ratios.values()] for ratios in (gaps, first))
    idle = [case for case in cases if not is_capped(results, case)]
    presuppose(not idle, f"the cap changed no batch with {'; '.join(idle)}")
    said = "; ".join(f"{case}: {around(ratio)}" for case, ratio in e2e.items())
    measured = (
        f"Mean E2E with a cap of 32 over none, at 90 % of what the cap can carry: {said}. With the cap, "
        f"ITL p99 was {factor(min(gap))} to {factor(max(gap))}, TTFT p99 {factor(min(wait))} to "
        f"{factor(max(wait))}."
    )
    ends = {case: ratio.interval or (ratio.value, ratio.value) for case, ratio in e2e.items()}
    helps = [case for case in cases if ends[case][1] < 1 and e2e[case].value < 1 - NO_CHANGE]
    harms = [case for case in cases if ends[case][0] > 1 and e2e[case].value > 1 + NO_CHANGE]
    condition = f"the cap shortened the mean E2E for {_named(helps)}; it made it longer for {_named(harms)}"
    return Finding.of(measured, [case in helps for case in cases], condition, condition)


def is_capped(results: Results, case: str) -> bool:
    """Did the batch grow beyond the cap where there was none?"""
    capped, free = (results.mean(f"{case}, {limit}", "batch_peak") for limit in ("cap 32", "no cap"))
    return free > capped


def _named(cases: list[str]) -> str:
    return listed([f"{law} lengths with {shape}" for law, shape in (case.split(", ") for case in cases)])


def chart_cap(results: Results) -> Chart:
    cases = cap_cases(results)
    laws = list(dict.fromkeys(case.split(", ")[0] for case in cases))
    return Chart(
        kind="bars",
        title="Mean E2E with the cap over without",
        caption="Below 1 the cap helps. The lengths have the same mean of 100 tokens; the squares of their "
        "coefficients of variation are 0, 1 and 2.25.",
        y_label="ratio of mean E2E",
        series=[
            Series(
                name=shape,
                x=laws,
                y=[
                    results.ratio(f"{law}, {shape}, cap 32", f"{law}, {shape}, no cap", "e2e.mean").value
                    for law in laws
                ],
            )
            for shape in dict.fromkeys(case.split(", ")[1] for case in cases)
        ],
    )


BYTES_PER_TOKEN = 2 * 32 * 8 * 128 * 2  # keys and values, 32 layers, 8 heads of 128 numbers, 2 bytes each
SPLITS = ("long answers", "long prompts")
FULL = 0.75


def judge_link(results: Results) -> Finding:
    """With memory full, does KV a request fix throughput inversely, whatever the share of prompts?"""
    full = [results.mean(arm, "engine.kv_used_fraction") for arm in results.arms()]
    presuppose(min(full) > FULL, f"memory was not kept full: {percent(min(full))} to {percent(max(full))}")
    varied = {}
    for split in SPLITS:
        arms = results.arms(split)
        products = [results.mean(a, "tokens_per_s") * results.mean(a, "kv_tokens_per_request") for a in arms]
        varied[split] = max(products) / min(products)
    pairs = zip(*(results.arms(split) for split in SPLITS), strict=True)
    apart = max(results.mean(a, "tokens_per_s") / results.mean(b, "tokens_per_s") for a, b in pairs)
    measured = (
        f"Residents times their KV filled {percent(min(full))} to {percent(max(full))} of the pool in every "
        "arm. Throughput times KV a request, over an eightfold range of lengths, varied by "
        f"{factor(varied['long answers'])} with long answers and {factor(varied['long prompts'])} with long "
        f"prompts; at equal length, throughput differed by up to {factor(apart)} between the two."
    )
    linked = [f"with {split}" for split in SPLITS if varied[split] < 1.25]
    linked += ["between the two at equal length"] if apart < 1.25 else []
    residents = "KV a request fixes how many run"
    condition = f"{residents}, and throughput only {listed(linked)}: prompts cost compute, too"
    refuted = f"{residents}, but not throughput: prompts cost compute, too"
    tests = [*(ratio < 1.25 for ratio in varied.values()), apart < 1.25]
    return Finding.of(measured, tests, condition, refuted)


def chart_link(results: Results) -> Chart:
    arms = results.arms("long answers")
    lines = {"requests resident": "engine.batch_mean", "tokens/s": "tokens_per_s", "ITL p50": "itl.p50"}
    return Chart(
        kind="lines",
        title="KV bytes a request against residents, throughput and ITL",
        caption="Long answers, memory full; each relative to the smallest requests. Where memory is full, "
        "the bytes that a step reads are the same, and so is the time of a step.",
        x_label="KV a request, MiB",
        y_label="relative to the smallest",
        x_log=True,
        y_log=True,
        series=[
            Series(
                name=name,
                x=[results.mean(arm, "kv_tokens_per_request") * BYTES_PER_TOKEN / 2**20 for arm in arms],
                y=[results.mean(arm, figure) / results.mean(arms[0], figure) for arm in arms],
            )
            for name, figure in lines.items()
        ],
    )


NAIVE, UNCAPPED = "by first chunk", "no cap"


def presuppose_caps(results: Results) -> None:
    """Caps are presupposed to bind: the mean batch with the smallest is well below that with none."""
    batches = [results.mean(arm, "engine.batch_mean") for arm in results.arms(NAIVE)]
    presuppose(min(batches) < 0.8 * max(batches), "the caps changed no batch")


def judge_ceiling(results: Results) -> Finding:
    """Is running uncapped into the ceiling a bad place (5 % below the best cap), and the worst of all?"""
    presuppose_caps(results)
    made = {arm: results.mean(arm, "tokens_per_s") for arm in results.arms(NAIVE)}
    best, least, uncapped = max(made, key=made.__getitem__), min(made.values()), made[f"{NAIVE}, {UNCAPPED}"]
    again = results.mean(f"{NAIVE}, {UNCAPPED}", "engine.recompute_fraction")
    presuppose(again > 0, "memory was not scarce: without a cap nothing was evicted")
    careful = {
        arm.removesuffix(f", {UNCAPPED}"): results.mean(arm, "tokens_per_s") / made[best]
        for arm in results.arms()
        if arm not in made
    }
    said = "; ".join(f"{name}: {factor(ratio)}" for name, ratio in careful.items())
    measured = (
        f"Admitting by the first chunk, uncapped: {number(uncapped)} tokens/s, {percent(again)} of all "
        f"tokens computed a second time; the best cap ({best.split()[-1]}) made {number(made[best])}, the "
        f"worst {number(least)}. Uncapped, but admitting with more care, against that best cap: {said}."
    )
    condition = "a bad place, not the worst one: a batch far too small is worse"
    if max(careful.values()) >= 0.95:
        condition += "; admission that looks at the whole prompt cures it without a cap"
    tests = [uncapped < 0.95 * made[best], uncapped <= least]
    return Finding.of(measured, tests, condition)


def judge_bad_tail(results: Results) -> Finding:
    """The cap with the best throughput: is its p99 more than twice the best p99 of all caps?"""
    presuppose_caps(results)
    arms = results.arms(NAIVE)
    best = max(arms, key=lambda arm: results.mean(arm, "tokens_per_s"))
    times = {name: results.mean(best, f"{name}.p99") for name in ("itl", "ttft")}
    over = {name: times[name] / min(results.mean(arm, f"{name}.p99") for arm in arms) for name in times}
    measured = (
        f"The cap with the most throughput ({best.split()[-1]}) had an ITL p99 of {seconds(times['itl'])}, "
        f"{factor(over['itl'])} the lowest of all caps, and a TTFT p99 of {seconds(times['ttft'])}, "
        f"{factor(over['ttft'])} the lowest."
    )
    bad = {name.upper(): ratio > 2 for name, ratio in over.items()}
    condition = f"for {listed([name for name, is_bad in bad.items() if is_bad])} alone"
    return Finding.of(measured, list(bad.values()), condition)
