"""Parts of a run: each row in its part, failures in the denominator, and Little's law over the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.measure.options import MeasureOptions
from loadgen.measure.slo import parse_slo
from loadgen.measure.summary import summarize
from loadgen.records import Outcome, RequestRecord
from tests.loadgen.rows import make_failure, make_record, make_run

WORKLOAD = {"arrival": "constant", "rate_per_s": 10.0, "duration_s": 10.0}


def summary_of(out: Path, records: list[RequestRecord]) -> dict[str, Any]:
    options = MeasureOptions(warmup_s=0.0, objectives=(parse_slo("ttft=100ms"),))
    summary = summarize(make_run(out, records, workload=WORKLOAD), options)
    json.dumps(summary, allow_nan=False)
    return summary


def mixed() -> list[RequestRecord]:
    """Every third request of class `long`: 200 prompt tokens, slow, turn 1; the rest short, fast, turn 0."""
    records = []
    for i in range(100):
        is_long = i % 3 == 0
        records.append(
            make_record(
                i,
                scheduled_s=i / 10,
                token_ms=(300, 310) if is_long else (60, 70),
                request_class="long" if is_long else "short",
                session=i // 3,
                turn=1 if is_long else 0,
                prompt_tokens_planned=200 if is_long else 20,
                prompt_tokens=200 if is_long else 20,
            )
        )
    return records


def test_parts_have_their_own_figures(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, mixed())
    groups = summary["groups"]
    assert set(groups) == {"class", "turn", "prompt_tokens_up_to", "from_s"}
    long, short = groups["class"]
    assert (long["key"], long["scheduled"], long["attained_fraction"]) == ("long", 34, 0.0)
    assert (short["key"], short["scheduled"], short["attained_fraction"]) == ("short", 66, 1.0)
    assert long["goodput_per_s"] == 0.0
    assert short["goodput_per_s"] == pytest.approx(summary["slo"]["goodput_per_s"])
    rates = [part["goodput_per_s"] for part in groups["from_s"]]
    assert sum(rates) / len(rates) == pytest.approx(summary["slo"]["goodput_per_s"])
    assert long["ttft_s"] == {"n": 34, "p50": pytest.approx(0.3), "p99": pytest.approx(0.3)}
    assert [part["key"] for part in groups["prompt_tokens_up_to"]] == [32, 256]
    assert [part["key"] for part in groups["turn"]] == [0, 1]
    assert [part["scheduled"] for part in groups["from_s"]] == [10] * 10
    assert groups["from_s"][3]["key"] == pytest.approx(3.0)


def test_failures_of_a_part_stand_in_its_denominator(tmp_path: Path) -> None:
    records = mixed()
    for i in (1, 2):
        records[i] = make_failure(i, scheduled_s=i / 10, outcome=Outcome.RESET)
        records[i].request_class = "short"
    long, short = summary_of(tmp_path, records)["groups"]["class"]
    assert (short["scheduled"], short["ok"]) == (66, 64)
    assert short["attained_fraction"] == pytest.approx(64 / 66)
    assert long["ok"] == 34


def test_a_run_of_one_kind_is_parted_by_time_only(tmp_path: Path) -> None:
    records = [make_record(i, scheduled_s=i / 10) for i in range(100)]
    assert set(summary_of(tmp_path, records)["groups"]) == {"from_s"}


def test_littles_law_holds_on_a_steady_run(tmp_path: Path) -> None:
    little = summary_of(tmp_path, mixed())["little"]
    assert little["rate_times_time"] == pytest.approx(34 / 10 * 0.31 + 66 / 10 * 0.07)
    assert little["ratio"] == pytest.approx(1, abs=0.03)


def test_littles_law_shows_work_that_is_left_over(tmp_path: Path) -> None:
    backlog = [make_record(i, scheduled_s=i / 10, token_ms=(100 + 90 * i, 110 + 90 * i)) for i in range(100)]
    assert summary_of(tmp_path, backlog)["little"]["ratio"] < 0.8


def test_turns_beyond_the_tenth_stand_together_and_warm_prompts_beside_cold_ones(tmp_path: Path) -> None:
    records = [
        make_record(
            i,
            scheduled_s=i / 10,
            session=i // 20,
            turn=i % 20,
            cached_tokens=100 * (i % 2) if i > 9 else None,
        )
        for i in range(100)
    ]
    groups = summary_of(tmp_path, records)["groups"]
    assert [(part["key"], part["scheduled"]) for part in groups["turn"]] == [
        *((turn, 5) for turn in range(10)),
        (10, 50),
    ]
    assert [(part["key"], part["scheduled"]) for part in groups["prefix"]] == [("cold", 45), ("warm", 45)]
