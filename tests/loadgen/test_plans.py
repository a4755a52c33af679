"""Flags, workload files and presets: who wins, and that every flag reaches the workload."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.options import RunOptions
from loadgen.cli.plans import FIELD_OF_FLAG, fit_to_context, make_plan, make_workload, say_reach
from loadgen.endpoints.openai import Completions
from loadgen.errors import UsageError
from loadgen.preflight import Preflight
from workloads import Workload
from workloads.files import load_workload


def test_without_a_workload_the_flags_are_the_workload() -> None:
    options = RunOptions(rate=20.0, arrival="gamma(cv=2)", length_scale=0.5)
    assert make_workload(options) == Workload(rate_per_s=20.0, arrival="gamma(cv=2)", length_scale=0.5)
    assert make_plan(RunOptions(rate=20.0)).digest() == Workload(rate_per_s=20).plan(0).digest()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"rate": 20.0, "arrival": "constant"},
            "600 requests carry p95; p99 wants some 2,000 (--duration 100s)",
        ),
        ({"rate": 20.0, "requests": 250}, "250 requests carry p90; p99 wants some 2,000 (--requests 2000)"),
        (
            {"concurrency": 4, "requests": 30},
            "30 requests are too few for a percentile; p99 wants some 2,000 (--requests 2000)",
        ),
        ({"rate": 20.0, "requests": 2000}, None),
    ],
)
def test_what_a_plan_will_carry_is_said_beforehand(flags: dict[str, Any], said: str | None) -> None:
    options = RunOptions(**flags)
    assert say_reach(make_plan(options), options) == said


def test_flags_change_a_preset_and_leave_the_rest() -> None:
    chat = load_workload("chat")
    assert make_workload(RunOptions(workload="chat")) == chat
    changed = make_workload(RunOptions(workload="chat", rate=3.0, arrival="poisson"))
    assert changed == replace(chat, rate_per_s=3.0, arrival="poisson")


def test_a_duration_takes_the_place_of_a_files_number() -> None:
    assert make_workload(RunOptions(workload="batch")).num_requests == 512
    assert make_workload(RunOptions(workload="batch", duration=5.0)).num_requests is None


def test_any_key_can_be_set() -> None:
    options = RunOptions(rate=20.0, changes=["context-tokens=64", "over_context = drop"])
    assert make_workload(options) == Workload(rate_per_s=20.0, context_tokens=64, over_context="drop")
    assert make_plan(options).source["limits"]["dropped"] > 0
    with pytest.raises(UsageError, match="unknown key 'nope'"):
        make_plan(RunOptions(rate=20.0, changes=["nope=1"]))
    with pytest.raises(UsageError, match="write KEY=VALUE"):
        make_plan(RunOptions(rate=20.0, changes=["nope"]))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("rate", 2.5), ("duration", 3.0), ("requests", 7), ("arrival", "constant"), ("exact_count", True),
        ("sessions", "closed(turns=2,think=1s)"), ("prefixes", "pool(common=64)"), ("dist", "gamma"),
        ("input_tokens", "9"), ("output_tokens", "9"), ("lengths_from", Path("rows.csv")),
        ("length_scale", 0.5),
        ("over_context", "clip"), ("trace", Path("rows.csv")), ("trace_window", (0.0, 60.0)),
        ("trace_speed", 2.0), ("trace_columns", "input=a,output=b"), ("time_unit", "ms"),
        ("bad_rows", "drop"),
        ("zero_output", "as-one"), ("dequantize", True),
    ],
)  # fmt: skip
def test_every_flag_reaches_the_workload(flag: str, value: Any) -> None:
    workload = make_workload(RunOptions(**{flag: value}))
    assert getattr(workload, FIELD_OF_FLAG[flag]) == value
    assert workload != Workload()


def test_flags_and_fields_are_those_that_there_are() -> None:
    assert set(FIELD_OF_FLAG) <= {option.name for option in fields(RunOptions)}
    assert set(FIELD_OF_FLAG.values()) <= {item.name for item in fields(Workload)}


def test_a_closed_loop_needs_a_number_and_no_rate() -> None:
    plan = make_plan(RunOptions(concurrency=4, requests=20))
    assert len(plan) == 20
    assert plan.span_s == 0
    with pytest.raises(UsageError, match="needs --requests"):
        make_plan(RunOptions(concurrency=4))


def test_nothing_to_send_is_told() -> None:
    with pytest.raises(UsageError, match="say how much to send"):
        make_plan(RunOptions())


def preflight(context_tokens: int | None) -> Preflight:
    return Preflight(
        api="completions",
        endpoint=Completions(),
        model="m",
        lengths=None,
        context_tokens=context_tokens,
        findings=(),
    )


def test_a_plan_that_fits_the_context_stays_as_it_is() -> None:
    options = RunOptions(rate=20.0)
    plan = make_plan(options)
    assert fit_to_context(plan, options, preflight(None)) is plan
    assert fit_to_context(plan, options, preflight(2048)) is plan


def test_a_plan_over_the_context_is_refused_or_treated_as_asked() -> None:
    options = RunOptions(rate=20.0)
    plan = make_plan(options)
    with pytest.raises(UsageError, match=r"longer than the context of m \(100 tokens\).*--over-context"):
        fit_to_context(plan, options, preflight(100))
    for policy, count in (("clip", len(plan)), ("drop", None), ("resample", len(plan))):
        fitted = fit_to_context(plan, replace(options, over_context=policy), preflight(100))
        assert int((fitted.prompt_tokens + fitted.output_tokens).max()) <= 100
        assert count in (None, len(fitted))
        assert sum(fitted.source["limits"].values()) > 0
