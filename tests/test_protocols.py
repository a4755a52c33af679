"""Every protocol and every worked template through `bench run`, against a stub that speaks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.loadgen.answering import Answer, Routes, server
from tests.test_main_job import bench, only_run

EXAMPLES = Path(__file__).parent.parent / "examples" / "endpoints"
SSE, LINES, JSON = "text/event-stream", "application/x-ndjson", "application/json"
Event = Mapping[str, Any]

pytestmark = pytest.mark.load


def stream(*events: Event) -> Answer:
    return 200, SSE, b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)


def named(*events: Event) -> Answer:
    return (
        200,
        SSE,
        b"".join(
            b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode())
            for event in events
        ),
    )


def count(prompt: str) -> int:
    return len(prompt.split())


def sglang(request: Any) -> Answer:
    n = request["sampling_params"]["max_new_tokens"]
    prompt_tokens = count(request["text"])

    def meta(i: int) -> Event:
        finish = {"type": "length"} if i == n else None
        return {"prompt_tokens": prompt_tokens, "completion_tokens": i, "finish_reason": finish}

    return stream(*({"text": "a " * i, "meta_info": meta(i)} for i in range(1, n + 1)))


def tgi(request: Any) -> Answer:
    n = request["parameters"]["max_new_tokens"]
    details = {"finish_reason": "length", "generated_tokens": n, "input_length": count(request["inputs"])}
    return stream(
        *({"token": {"id": i, "text": "a"}, "details": details if i == n else None} for i in range(1, n + 1))
    )


def llamacpp(request: Any) -> Answer:
    n = request["n_predict"]
    last = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": n}
    parts = [{"content": "a", "tokens": [7], "stop": False}] * n
    return stream(*parts, {**last, "tokens_evaluated": count(request["prompt"])})


def ollama(request: Any) -> Answer:
    n = request["options"]["num_predict"]
    last = {"response": "", "done": True, "done_reason": "length", "eval_count": n}
    lines = [{"response": "a", "done": False}] * n
    lines.append({**last, "prompt_eval_count": count(request["prompt"])})
    return 200, LINES, b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def responses(request: Any) -> Answer:
    n = request["max_output_tokens"]
    usage = {"input_tokens": count(request["input"]), "output_tokens": n}
    return named(
        {"type": "response.created", "response": {"status": "in_progress", "error": None}},
        *[{"type": "response.output_text.delta", "delta": "a"}] * n,
        {"type": "response.completed", "response": {"status": "completed", "usage": usage}},
    )


def messages(request: Any) -> Answer:
    n = request["max_tokens"]
    usage = {"input_tokens": count(request["messages"][0]["content"]), "output_tokens": 1}
    return named(
        {"type": "message_start", "message": {"usage": usage}},
        {"type": "ping"},
        *[{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}] * n,
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": n}},
        {"type": "message_stop"},
    )


def triton(request: Any) -> Answer:
    n, prompt_tokens = request["parameters"]["max_tokens"], count(request["text_input"])

    def event(i: int) -> Event:
        counts = {"num_input_tokens": prompt_tokens, "num_output_tokens": 1}
        return {"text_output": "a", "finish_reason": "length" if i == n else "None", **counts}

    return stream(*(event(i) for i in range(1, n + 1)))


def embeddings(request: Any) -> Answer:
    body = {"data": [{"object": "embedding"}], "usage": {"prompt_tokens": count(request["input"])}}
    return 200, JSON, json.dumps(body).encode()


MODELS = (200, JSON, b'{"data":[{"id":"m"}]}')
PROTOCOLS: dict[str, tuple[str, Callable[[Any], Answer]]] = {
    "sglang": ("/generate", sglang),
    "tgi": ("/generate_stream", tgi),
    "llamacpp": ("/completion", llamacpp),
    "ollama": ("/api/generate", ollama),
    "openai_responses": ("/v1/responses", responses),
    "anthropic_messages": ("/v1/messages", messages),
    "triton_generate_stream": ("/v2/models/m/generate_stream", triton),
    "embeddings": ("/v1/embeddings", embeddings),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_is_measured(name: str, tmp_path: Path) -> None:
    path, answer = PROTOCOLS[name]
    routes: Routes = {"/v1/models": MODELS, path: answer}
    template = EXAMPLES / f"{name}.toml"
    api = str(template) if template.exists() else name
    with server(routes) as url:
        done = bench(
            tmp_path,
            *("run", "--target", url, "--api", api, "--model", "m", "--rate", "40", "--requests", "5"),
            *("--workers", "1", "--json"),
            BENCH_API_KEY="planted-key",
        )
    assert done.returncode in (0, 3), done.stderr
    run = only_run(tmp_path)
    rows = run.requests
    assert rows["outcome"].tolist() == ["ok"] * 5
    assert (rows["prompt_tokens"] == rows["prompt_tokens_planned"]).all()
    if name == "embeddings":
        assert rows["first_token_ns"].isna().all()
        assert rows["last_token_ns"].notna().all()
        return
    assert (rows["output_tokens"] == rows["output_tokens_planned"]).all()
    for tokens, total in zip(rows["chunk_tokens"], rows["output_tokens"], strict=True):
        assert sum(tokens) == total
