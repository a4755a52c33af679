"""Exports: other tools' formats, read back by the readers here, hold the same plan."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from workloads import Plan, PromptMaker, Workload, WorkloadError
from workloads.export import export_lines
from workloads.traces import read_trace

BASE = Workload(rate_per_s=20, input_tokens="gamma(mean=900, cv=0.5)")
MAKER = PromptMaker(1, 0)


def write(plan: Plan, form: str, path: Path) -> Path:
    path.write_text("\n".join(export_lines(plan, form, MAKER)))
    return path


@pytest.mark.parametrize("form", ["mooncake", "azure"])
def test_what_is_written_is_read_back(tmp_path: Path, form: str) -> None:
    plan = BASE.plan(1)
    table = read_trace(write(plan, form, tmp_path / "out"))
    assert table.format.name == form
    np.testing.assert_array_equal(table.input_tokens, plan.prompt_tokens)
    np.testing.assert_array_equal(table.output_tokens, plan.output_tokens)
    np.testing.assert_allclose(table.arrival_ns, plan.arrival_ns - plan.arrival_ns[0], atol=1001)


def test_mooncake_keeps_sessions_delays_and_sharing(tmp_path: Path) -> None:
    sessions = replace(BASE, sessions="closed(turns=3, think=2s)", prefixes="pool(size=4, tokens=1024)")
    plan = sessions.plan(1)
    path = write(plan, "mooncake", tmp_path / "out")
    again = Workload(trace=path).plan(1)
    np.testing.assert_array_equal(again.turn, plan.turn)
    np.testing.assert_allclose(again.think_ns, plan.think_ns, atol=1000)
    table = read_trace(path)
    np.testing.assert_array_equal(np.diff(table.block_offsets), -(-table.input_tokens // 512))
    rates = [p.source["realised"]["ideal_hit_rate"] for p in (plan, again)]
    # Blocks of 512 hold less of a prefix than blocks of 16.
    assert rates[0] - 0.2 < rates[1] <= rates[0]


def test_vllm_prompts_have_the_planned_length(tmp_path: Path) -> None:
    plan = replace(BASE, prefixes="pool(common=64)", num_requests=20).plan(1)
    rows = [json.loads(line) for line in write(plan, "vllm", tmp_path / "out").read_text().splitlines()]
    assert [len(row["prompt"].split()) for row in rows] == plan.prompt_tokens.tolist()
    assert [row["output_tokens"] for row in rows] == plan.output_tokens.tolist()
    assert len({tuple(row["prompt"].split()[:64]) for row in rows}) == 1


def test_formats_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="unknown export format 'csv'; known: azure, mooncake, vllm"):
        export_lines(BASE.plan(1), "csv", MAKER)
    text = '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}'
    (tmp_path / "odd").write_text(text)
    odd = Workload(trace=tmp_path / "odd", length_scale=0.1).plan(1)
    with pytest.raises(WorkloadError, match="blocks of 51 tokens do not divide"):
        list(export_lines(odd, "mooncake", MAKER))
