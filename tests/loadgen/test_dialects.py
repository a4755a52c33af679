"""Each dialect on a log that the tool itself has summed up (tests/real_tools), and on nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadgen.measure.dialects import DIALECTS, Log, speak
from loadgen.measure.summary import summarize
from tests.loadgen.rows import make_record, make_run
from tests.real_tools.compare import check, read_said
from tests.real_tools.log import make_log
from tests.real_tools.speak import TOOLS

EMPTY = Log(
    scheduled_s=np.zeros(0),
    sent_s=np.zeros(0),
    first_s=np.zeros(0),
    last_s=np.zeros(0),
    done_s=np.zeros(0),
    prompt_tokens=np.zeros(0),
    output_tokens=np.zeros(0),
    step_ns=np.zeros(0, np.uint32),
    step_tokens=None,
)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_dialect_says_what_its_tool_said(tool: str, tmp_path: Path) -> None:
    """What the tools said was kept by `make test-tools`, which asks them again."""
    check(tool, read_said()[tool], make_log(), tmp_path)


def test_a_dialect_that_differs_is_noticed(tmp_path: Path) -> None:
    said = read_said()["vllm"]
    said["figures"]["p99_itl_ms"] *= 1.001
    with pytest.raises(AssertionError):
        check("vllm", said, make_log(), tmp_path)


def test_nothing_is_null_in_every_dialect() -> None:
    for name, figures in speak(EMPTY).items():
        for key, value in figures.items():
            values = value.values() if isinstance(value, dict) else [value]
            assert all(v is None or (key, v) == ("duration", 0.0) for v in values), (name, key)


def test_the_summary_speaks_every_dialect_over_the_whole_run(tmp_path: Path) -> None:
    records = [make_record(i, scheduled_s=i / 10, lag_ms=1) for i in range(60)]
    manifest = {"config": {"warmup": {"value": 3.0, "origin": "flag"}}}
    summary = summarize(make_run(tmp_path, records, manifest=manifest))
    assert set(summary["dialects"]) == set(DIALECTS)
    assert summary["metrics"]["ttft_s"]["n"] == 30
    assert summary["dialects"]["vllm"]["request_throughput"] == pytest.approx(60 / (5.9 + 0.129))
    assert summary["dialects"]["vllm"]["mean_itl_ms"] == pytest.approx(15)
    json.dumps(summary, allow_nan=False)
