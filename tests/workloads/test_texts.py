"""Texts of one's own: what is a prompt in a file, what is estimated, and the plan that comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads import PromptMaker, Workload, WorkloadError
from workloads.export import export_lines
from workloads.files import load_workload
from workloads.texts import plain_text, read_texts

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "A river in Wales?"}]},
]
ANSWER = {"role": "assistant", "content": "The Severn."}
ROWS: list[dict[str, Any]] = [
    {"prompt": "How tall is Ben Nevis?"},
    {"messages": TALK},
    {"messages": [*TALK, ANSWER]},
    {
        "messages": [
            *TALK,
            {"role": "assistant", "content": "The Severn."},
            {"role": "user", "content": "More?"},
        ]
    },
]
SHAREGPT = [
    {"conversations": [{"from": "human", "value": f"Question {i}?"}, {"from": "gpt", "value": "x" * 40}]}
    for i in range(7)
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_object_is_a_prompt_and_a_last_answer_is_left_to_the_server(tmp_path: Path) -> None:
    texts = read_texts(write(tmp_path / "own.jsonl", ROWS))
    assert texts.prompts == (ROWS[0]["prompt"], TALK, TALK, ROWS[3]["messages"])
    assert texts.input_tokens.tolist() == [6, 7, 7, 12]
    assert texts.output_tokens.tolist() == [0, 0, 3, 0]
    assert plain_text(TALK) == "Be short.\nA river in Wales?"


def test_sharegpt_gives_the_first_question_and_the_length_of_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(SHAREGPT))
    texts = read_texts(path)
    assert texts.prompts[:2] == ("Question 0?", "Question 1?")
    assert set(texts.output_tokens.tolist()) == {10}
    assert set(Workload(rate_per_s=20, prompts=str(path)).plan(1).output_tokens.tolist()) == {10}
    given = Workload(rate_per_s=20, prompts=str(path), output_tokens="fixed(5)").plan(1)
    assert set(given.output_tokens.tolist()) == {5}


def test_every_text_is_sent_once_before_any_is_sent_again(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", [{"prompt": f"text {'x' * i}"} for i in range(10)])
    workload = Workload(rate_per_s=10, num_requests=25, prompts=str(path))
    plan = workload.plan(3)
    assert sorted(plan.text_id[:10].tolist()) == sorted(plan.text_id[10:20].tolist()) == list(range(10))
    assert plan.text_id.tolist() == workload.plan(3).text_id.tolist() != workload.plan(4).text_id.tolist()
    assert np.array_equal(plan.prompt_tokens, read_texts(path).input_tokens[plan.text_id])
    assert plan.source["texts"] == {"prompt_tokens": "estimated at 4 characters a token"}
    assert plan.digest() != Workload(rate_per_s=10, num_requests=25).plan(3).digest()


def test_a_workload_file_names_its_texts_beside_itself(tmp_path: Path) -> None:
    write(tmp_path / "own.jsonl", ROWS)
    (tmp_path / "mine.toml").write_text('rate_per_s = 5\nprompts = "own.jsonl"\n')
    assert len(load_workload(str(tmp_path / "mine.toml")).plan(1).text_id) > 0
    (tmp_path / "ids.toml").write_text('rate_per_s = 5\nprompts = "token-ids"\n')
    assert load_workload(str(tmp_path / "ids.toml")).prompts == "token-ids"


def test_what_is_no_prompt_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", [*ROWS, {"text": "?"}])
    with pytest.raises(WorkloadError, match=r"own.jsonl, line 5 holds no prompt"):
        read_texts(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"sessions": "closed(turns=2, think=1s)"},
        {"input_tokens": "64"},
        {"over_context": "clip"},
        {"clients": (Workload(name="a"), Workload(name="b"))},
    ],
)
def test_texts_have_their_own_lengths_and_history(changes: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", ROWS)
    with pytest.raises(WorkloadError, match="leave .* out|sent as it is"):
        Workload(rate_per_s=5, prompts=str(path), **changes).check()


def test_texts_are_exported_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", [ROWS[0]])
    plan = Workload(rate_per_s=5, num_requests=2, prompts=str(path)).plan(1)
    lines = list(export_lines(plan, "vllm", PromptMaker(1, 0)))
    assert [json.loads(line)["prompt"] for line in lines] == [ROWS[0]["prompt"]] * 2
