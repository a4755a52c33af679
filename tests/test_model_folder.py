"""A Hugging Face folder served and measured, as a user types it: real processes, a real tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.reference_engine.checkpoints import make_served_model
from tests.reference_engine.process import running_server
from tests.test_main_job import BUSY_MACHINE, bench, only_run, reason_codes

pytestmark = [pytest.mark.engine]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "random-llama"
    make_served_model(folder)
    return folder


def test_a_folder_is_measured_with_exact_counts(model: Path, tmp_path: Path) -> None:
    lengths = ("--input-tokens", "uniform(min=20,max=60)", "--output-tokens", "uniform(min=10,max=40)")
    done = bench(tmp_path, "run", "--model", str(model), "--rate", "10", "--duration", "3s", *lengths)
    run = only_run(tmp_path)
    assert reason_codes(run) <= BUSY_MACHINE, done.stderr
    rows = run.requests
    assert set(rows["outcome"]) == {"ok"}
    for kind in ("prompt", "output"):
        assert (rows[f"{kind}_tokens"] == rows[f"{kind}_tokens_planned"]).all()
    assert [sum(tokens) for tokens in rows["chunk_tokens"]] == rows["output_tokens"].tolist()
    target = run.manifest["target"]
    assert target["model"] == "random-llama"
    assert (target["engine"]["dtype"], target["context_tokens"]) == ("float32", 512)


def test_a_folder_speaks_through_its_tokenizer(model: Path) -> None:
    with (
        running_server("--model", str(model)) as server,
        httpx.Client(base_url=server.url, timeout=20) as client,
    ):
        assert client.get("/v1/models").json()["data"][0]["id"] == "random-llama"
        tokens = client.post("/tokenize", json={"prompt": "able about"}).json()
        assert tokens["count"] == 2
        assert tokens["max_model_len"] == 512
        body: dict[str, Any] = {"prompt": "able about", "max_tokens": 12, "ignore_eos": True}
        whole = client.post("/v1/completions", json=body).json()
        by_ids = client.post("/v1/completions", json={**body, "prompt": tokens["tokens"]}).json()
        text = whole["choices"][0]["text"]
        assert by_ids["choices"][0]["text"] == text
        assert whole["usage"] == {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14}
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        pieces = [json.loads(line)["choices"][0]["text"] for line in lines[:-1]]
        assert len(pieces) == 12
        assert "".join(pieces) == text
        middle = text[len(text) // 2 :][:5]
        stopped = client.post("/v1/completions", json={**body, "stop": middle}).json()["choices"][0]
        assert stopped["finish_reason"] == "stop"
        assert stopped["text"] == text[: text.index(middle)]
        chat = {"messages": [{"role": "user", "content": "able"}], "max_tokens": 3, "ignore_eos": True}
        answer = client.post("/v1/chat/completions", json=chat).json()
        prompt = client.post("/tokenize", json={"prompt": "<|user|>able<|assistant|>"}).json()["count"]
        assert answer["usage"]["prompt_tokens"] == prompt


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "nowhere"], "unknown model 'nowhere': no shape (nano, tiny"),
        (
            ["--model", "{model}", "--knob", "max_model_len=513"],
            "--max-model-len 513 is above the 512 positions",
        ),
        (["--simulate", "--model", "tiny"], "--simulate does not go with --model: no model is computed"),
    ],
)
def test_a_model_that_cannot_be_is_one_line(
    model: Path, tmp_path: Path, flags: list[str], words: str
) -> None:
    done = bench(tmp_path, "run", "--rate", "2", *(flag.format(model=model) for flag in flags))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
