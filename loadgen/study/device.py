"""The decode curve of this device, attention alone and whole steps: section 4 of the article.

The engine package measures it in a process of its own; this reads what that process wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.study.model import Chart, Finding, Outcome, Results, Series
from loadgen.study.words import factor, listed, percent, seconds

SMALL, LARGE = 1, 32
SAID, TOLERATED = 51, 0.9
PARTS = {"step": "whole step", "attention": "attention alone"}


def outcomes_of(document: Mapping[str, Any], folder: str) -> list[Outcome]:
    """Turn the curve's points into outcomes: an arm for each model and batch."""
    found = []
    for point in document["points"]:
        batch = point["batch"]
        figures = {"batch": float(batch)}
        for part in PARTS:
            time_s = point[f"{part}_s"]
            figures[f"{part}_s"] = time_s
            figures[f"{part}_per_request_s"] = time_s / batch
            figures[f"{part}_bandwidth"] = point[f"{part}_bytes"] / time_s / document["bandwidth_bytes_per_s"]
        found.append(Outcome(arm=f"{point['model']}, batch {batch}", seed=0, folder=folder, figures=figures))
    return found


def models_of(results: Results) -> list[str]:
    return list(dict.fromkeys(arm.split(",")[0] for arm in results.arms()))


def at(results: Results, model: str, batch: int, figure: str) -> float:
    return results.mean(f"{model}, batch {batch}", figure)


def judge_fall(results: Results) -> Finding:
    """Does a request's cost fall by 51x? Beyond 32x only where a step at batch 1 takes longer than at 32."""
    falls = {
        (model, part): at(results, model, SMALL, f"{part}_per_request_s")
        / at(results, model, LARGE, f"{part}_per_request_s")
        for model in models_of(results)
        for part in PARTS
    }
    said = ", ".join(f"{PARTS[part]} of {model} {factor(fall)}" for (model, part), fall in falls.items())
    measured = f"A request's cost at batch {SMALL} over that at {LARGE}: {said}."
    falling, beyond = (
        [f"{PARTS[part]} of {model}" for (model, part), fall in falls.items() if fall > least]
        for least in (1.5, LARGE)
    )
    condition = "it does not fall"
    if falling:
        condition = (
            f"it falls for {listed(falling)}, but nowhere by more than {LARGE}x: a fall of {SAID}x needs a "
            f"step at batch {SMALL} that takes longer than one at batch {LARGE}, a slow step of its own"
        )
    if beyond:
        condition = (
            f"by more than {LARGE}x for {listed(beyond)}, which says that the step at batch {SMALL} itself "
            f"was slow: it took longer than the one at batch {LARGE}"
        )
    tests = [fall >= TOLERATED * SAID for fall in falls.values()]
    return Finding.of(measured, tests, condition, condition)


def judge_idle_memory(results: Results) -> Finding:
    """Is the memory half idle at batch 1, and much busier at batch 32?"""
    shares = {
        (model, part): [at(results, model, batch, f"{part}_bandwidth") for batch in (SMALL, LARGE)]
        for model in models_of(results)
        for part in PARTS
    }
    said = ", ".join(
        f"{PARTS[part]} of {model} {percent(one)} and {percent(many)}"
        for (model, part), (one, many) in shares.items()
    )
    measured = f"Share of this device's memory bandwidth at batch {SMALL} and {LARGE}: {said}."
    rises = {key: one < 0.5 and many > 1.5 * one for key, (one, many) in shares.items()}
    where = listed([f"{PARTS[part]} of {model}" for (model, part), is_so in rises.items() if is_so])
    condition = (
        f"for {where}; elsewhere the bandwidth in use does not rise with the batch: something else limits"
    )
    return Finding.of(measured, list(rises.values()), condition)


def judge_nearly_free(results: Results) -> Finding:
    """What a whole step pays for eight requests in place of one: up to 1.25x is nearly free."""
    prices = {m: at(results, m, 8, "step_s") / at(results, m, 1, "step_s") for m in models_of(results)}
    said = ", ".join(
        f"{model} {factor(price)} of {seconds(at(results, model, 1, 'step_s'))}"
        for model, price in prices.items()
    )
    cheap = [model for model, price in prices.items() if price < 4]
    condition = (
        f"for {listed(cheap)} eight cost less than four times one, and each pays for it in its own ITL"
    )
    tests = [price < limit for price in prices.values() for limit in (1.25, 4)]
    return Finding.of(f"A step with 8 requests took, against one with 1: {said}.", tests, condition)


def chart_curve(results: Results) -> Chart:
    series = [
        Series(
            name=f"{model}, {label}",
            x=[results.mean(arm, "batch") for arm in results.arms(f"{model},")],
            y=[results.mean(arm, f"{part}_per_request_s") for arm in results.arms(f"{model},")],
        )
        for model in models_of(results)
        for part, label in PARTS.items()
    ]
    return Chart(
        kind="lines",
        title="Cost of a request by batch",
        caption="Time of a decode step over the requests in it, on this device.",
        x_label="requests in the step",
        y_label="time a request",
        series=series,
        x_log=True,
        y_log=True,
    )
