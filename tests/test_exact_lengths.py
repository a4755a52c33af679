"""A thousand prompts of random lengths come back with exactly the number of tokens planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.preflight import probe
from tests.loadgen.driving import run_drive
from tests.reference_engine.process import running_server
from workloads import Workload
from workloads.prompts import universal_words

pytestmark = [pytest.mark.engine, pytest.mark.load]

LENGTHS = "uniform(min=24, max=200)"  # not below what a chat template takes


@pytest.mark.parametrize(
    ("api", "prompts", "num_requests"),
    [("completions", "words", 1_000), ("completions", "token-ids", 300), ("chat", "words", 300)],
)
def test_prompts_are_as_long_as_planned(api: str, prompts: str, num_requests: int, tmp_path: Path) -> None:
    workload = Workload(
        arrival="at-once", num_requests=num_requests, input_tokens=LENGTHS, output_tokens="fixed(1)"
    )
    plan = workload.plan(1)
    with running_server() as server:
        found = probe(server.url, api=api, model=None, headers={}, words=universal_words())
        driven = run_drive(
            plan,
            tmp_path,
            server.url,
            endpoint=found.endpoint,
            model=found.model,
            prompts=prompts,
            prompt_offset=found.prompt_offset,
            concurrency=16,
        )
    assert driven.outcomes == {"ok": num_requests}
    assert driven.rows["prompt_tokens"].tolist() == plan.prompt_tokens.tolist()
    assert driven.rows["prompt_tokens"].nunique() > 100
