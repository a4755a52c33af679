"""What the plan shares, the prompts share: by block, whatever the number of load processes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from loadgen.drive.config import DriveConfig
from loadgen.drive.dispatch import split_plan
from loadgen.drive.requests import RequestBodies
from workloads import Plan, Workload
from workloads.prefixes import hit_tokens

POOL = Workload(rate_per_s=40, duration_s=5, prefixes="pool(size=4, tokens=48, common=32)")


def prompts(plan: Plan, num_workers: int, offset: int = 0) -> list[list[str]]:
    """The words of each request's prompt, in the order of the plan."""
    words: dict[int, list[str]] = {}
    for share in split_plan(plan, num_workers):
        config = DriveConfig(url="http://x", model="m", seed=1, nonce=2, run_id="r", prompt_offset=offset)
        bodies = RequestBodies(share, config, config.endpoint)
        for position, index in enumerate(share.index.tolist()):
            words[index] = json.loads(bodies.body(position))["prompt"].split()
    return [words[index] for index in range(len(plan))]


def shared_words(texts: list[list[str]], block_words: int) -> int:
    """Words in leading blocks that an earlier text begins with, too."""
    seen: set[tuple[str, ...]] = set()
    total = 0
    for text in texts:
        beginnings = [tuple(text[:n]) for n in range(block_words, len(text) + 1, block_words)]
        total += block_words * sum(beginning in seen for beginning in beginnings)
        seen.update(beginnings)
    return total


@pytest.mark.parametrize("sessions", [None, "closed(turns=3, think=1s)"])
def test_prompts_share_what_the_plan_shares(sessions: str | None) -> None:
    plan = replace(POOL, sessions=sessions).plan(1)
    texts = prompts(plan, 2)
    assert [len(text) for text in texts] == plan.prompt_tokens.tolist()
    planned = hit_tokens(plan.prefix_blocks, plan.prefix_offsets, plan.block_tokens, plan.prompt_tokens)
    assert shared_words(texts, plan.block_tokens) == planned.sum() > 0


def test_any_number_of_load_processes_sends_the_same() -> None:
    plan = POOL.plan(1)
    assert prompts(plan, 1) == prompts(plan, 3)


def test_where_nothing_is_planned_nothing_is_shared() -> None:
    plan = replace(POOL, prefixes=None).plan(1)
    assert shared_words(prompts(plan, 2), 16) == 0


def test_the_targets_own_tokens_come_off_the_end() -> None:
    plan = POOL.plan(1)
    plain, shorter = prompts(plan, 1), prompts(plan, 1, offset=5)
    assert [len(text) for text in shorter] == np.maximum(plan.prompt_tokens - 5, 1).tolist()
    assert all(text == whole[: len(text)] for text, whole in zip(shorter, plain, strict=True))
