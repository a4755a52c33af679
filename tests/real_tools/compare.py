"""Our dialects of the made-up log beside what the tools said of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.measure.dialects import Log, mlperf
from loadgen.measure.summary import summarize
from loadgen.records import Outcome, RequestRecord
from loadgen.stats.certify import values_needed
from tests.loadgen.rows import make_record, make_run
from tests.real_tools.speak import has_span

SAID = Path(__file__).parent / "said.json"


def check(tool: str, said: dict[str, Any], log: list[dict[str, Any]], folder: Path) -> None:
    """Compare every figure of ours with the tool's; `said` is what speak.py printed."""
    figures = said["figures"]
    if tool == "mlperf":
        check_mlperf(figures)
        return
    rounding = 1e-9
    if tool == "genai-perf":
        log, rounding = [row for row in log if has_span(row)], 1e-6  # it keeps whole nanoseconds
    dialect = "aiperf" if tool == "genai-perf" else tool
    ours = summarize(make_run(folder, [record_of(i, row) for i, row in enumerate(log)]))["dialects"][dialect]
    assert dict(flatten(ours)) == pytest.approx(dict(flatten(figures)), rel=rounding)


def check_mlperf(figures: dict[str, Any]) -> None:
    """The same for LoadGen, over the log that it kept itself; and its early stopping."""
    log, said = figures["log"], figures["detail"]
    scheduled, first, last, tokens = (
        np.array([row[name] for row in log], np.float64) for name in ("scheduled", "first", "last", "tokens")
    )
    due = scheduled / 1e9
    ours = mlperf(
        Log(
            scheduled_s=due,
            sent_s=due,
            first_s=due + first / 1e9,
            last_s=due + last / 1e9,
            done_s=due + last / 1e9,
            prompt_tokens=tokens,
            output_tokens=tokens,
            step_ns=np.zeros(0),
            step_tokens=None,
        )
    )
    for name, value in ours.items():
        # it cuts nanoseconds, and prints rates with six digits
        assert value == pytest.approx(said[name], rel=2e-5 if "_per_sec" in name else 1e-6), name
    needed = values_needed(0, 0.99, 0.99)
    assert needed is not None
    assert f"at least {needed - len(log)} more queries" in said["early_stopping_tpot_result"]


def record_of(index: int, row: dict[str, Any]) -> RequestRecord:
    """A request of the log as a row of ours."""
    stamps = row["stamps"]
    return make_record(
        index,
        scheduled_s=0,
        scheduled_ns=row["scheduled"],
        sent_ns=row["sent"],
        first_token_ns=stamps[0] if stamps else None,
        last_token_ns=stamps[-1] if stamps else None,
        done_ns=row["done"],
        chunk_ns=stamps,
        chunk_lower_ns=stamps,
        chunk_tokens=row["tokens"],
        prompt_tokens=row["prompt_tokens"],
        output_tokens=row["output_tokens"] if row["is_ok"] else None,
        outcome=Outcome.OK if row["is_ok"] else Outcome.HTTP_STATUS,
    )


def flatten(figures: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    for key, value in figures.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{path}{key}.")
        else:
            yield path + key, value


def read_said() -> dict[str, Any]:
    """What the tools said when they were last installed."""
    return dict(json.loads(SAID.read_text()))
