"""The experiments, as experiments.toml has them in the order of the page, and what their words stand for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources

import msgspec

from loadgen.study import batching, capacity, device, prefill, tails
from loadgen.study.model import Chart, Experiment, Results, Rule

MODULES = (batching, device, capacity, prefill, tails)
RULES: dict[str, Rule] = {
    name.removeprefix("judge_"): value
    for module in MODULES
    for name, value in vars(module).items()
    if name.startswith("judge_")
}
CHARTS: dict[str, Callable[[Results], Chart]] = {
    name.removeprefix("chart_"): value
    for module in MODULES
    for name, value in vars(module).items()
    if name.startswith("chart_")
}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    experiment: list[Experiment]


@cache
def experiments() -> dict[str, Experiment]:
    """Return every experiment by name."""
    text = resources.files("loadgen.study").joinpath("experiments.toml").read_bytes()
    return {one.name: one for one in msgspec.toml.decode(text, type=_File).experiment}
