"""A target that cannot be measured is named in one line, with what would do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import TargetError, UsageError
from loadgen.probing import connect_words
from loadgen.urls import base_url
from tests.loadgen.answering import (
    MODELS,
    Answer,
    Routes,
    ask,
    completions,
    found_in,
    server,
    sse,
)


def test_a_path_that_is_one_too_many_is_named() -> None:
    with server({"/v1/models": MODELS}) as url, pytest.raises(TargetError, match=f"use --target {url}$"):
        ask(f"{url}/proxy")


def test_a_model_that_is_not_there_is_named_with_those_that_are() -> None:
    missing = (404, "application/json", b'{"error":{"message":"no such model"}}')
    with (
        server({"/v1/models": MODELS, "/v1/completions": missing}) as url,
        pytest.raises(TargetError, match="lists no model 'x', but: m1, m2"),
    ):
        ask(url, model="x")


def test_an_api_that_is_not_served_is_named_with_one_that_is() -> None:
    with (
        server({"/v1/models": MODELS, "/v1/chat/completions": completions()}) as url,
        pytest.raises(TargetError, match="It does answer --api chat"),
    ):
        ask(url, api="completions")


def test_a_refused_key_is_told_from_a_missing_one_and_never_shown() -> None:
    key = "sk-very-secret-123"
    echo = (401, "application/json", f'{{"error":"wrong key {key}"}}'.encode())
    with (
        server({"/v1/models": MODELS, "/v1/completions": echo}) as url,
        pytest.raises(TargetError, match="refuses the key") as caught,
    ):
        ask(url, headers={"Authorization": f"Bearer {key}"})
    assert key not in str(caught.value)
    quoting = (400, "application/json", f'{{"error":"quota of {key} is used up"}}'.encode())
    with (
        server({"/v1/models": MODELS, "/v1/completions": quoting}) as url,
        pytest.raises(TargetError, match=r"quota of \*\*\* is used up"),
    ):
        ask(url, headers={"Authorization": f"Bearer {key}"})


def ollama(request: Any) -> Answer:
    n = request["options"]["num_predict"]
    lines: list[dict[str, Any]] = [{"response": "a", "done": False}] * n
    counts = {"prompt_eval_count": len(request["prompt"].split()), "eval_count": n}
    lines = [*lines, {"response": "", "done": True, "done_reason": "length"} | counts]
    return 200, "application/x-ndjson", b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def test_a_server_of_its_own_protocol_is_found() -> None:
    tags = (200, "application/json", b'{"models":[{"name":"llama:1b"}]}')
    with server({"/api/tags": tags, "/api/generate": ollama}) as url:
        found = ask(url)
    assert (found.api, found.model, found.prompt_offset) == ("ollama", "llama:1b", 0)
    assert found_in(found, "server").startswith("Ollama")


def test_a_template_is_asked_without_a_list_of_models(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'path = "/gen"\n[request]\nprompt = "${prompt}"\nmax_tokens = "${output_tokens}"\n'
        '[read]\ntext = ["choices.0.text"]\nfinish_reason = ["choices.0.finish_reason"]\n'
    )
    answer = (200, "text/event-stream", sse(16, None).replace(b"data: [DONE]\n\n", b""))
    with server({"/gen": answer}) as url:
        found = ask(url, api=str(tmp_path / "mine.toml"))
    assert found.endpoint.path == "/gen"
    assert "no usage" in found_in(found, "output tokens")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("[Errno -2] Name or service not known", "no such host"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "speaks plain HTTP, not TLS: write http://"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "--insecure measures it"),
        ("[Errno 111] Connection refused", "is the server running"),
    ],
)
def test_why_no_connection_came_about(reason: str, words: str) -> None:
    assert words in connect_words("https://h", reason)


def test_counters_that_come_and_go_say_nothing_of_the_cache() -> None:
    pages = iter([b"vllm:prefix_cache_hits_total 5\n", b"vllm:prefix_cache_hits_total NaN\n", b"", b""])
    routes: Routes = {"/v1/models": MODELS, "/v1/completions": completions()}
    with server({**routes, "/metrics": lambda _: (200, "text/plain", next(pages))}) as url:
        assert "does not say" in found_in(ask(url), "prefix cache")


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ({}, "lists no model at /v1/models"),
        (
            {"/v1/models": (200, "text/html", b"<h1>hello</h1>")},
            "not an OpenAI-compatible server.*text/html: <h1>",
        ),
        ({"/v1/models": (200, "application/json", b"[1]")}, "not an OpenAI-compatible server"),
        ({"/v1/models": (200, "application/json", b'{"data":' * 100_000)}, "not an OpenAI-compatible server"),
        ({"/v1/models": (200, "application/json", b'{"data":[{"id":"\\ud800"}]}')}, "lists no model"),
        ({"/v1/models": (401, "application/json", b"{}")}, "wants a key.*BENCH_API_KEY"),
        (
            {"/v1/models": MODELS},
            "cannot be measured: POST /v1/completions answered 404.*POST /v1/chat/compl",
        ),
        (
            {
                "/v1/models": MODELS,
                "/v1/completions": (400, "application/json", b'{"error":{"message":"too hot"}}'),
            },
            r"answered 400 \(too hot\)",
        ),
        (
            {"/v1/models": MODELS, "/v1/completions": (200, "application/json", b'{"hello": 1}')},
            "answered 200, but no completion|answered with an error|cannot be measured",
        ),
    ],
)
def test_a_wrong_server_is_named(routes: dict[str, Any], message: str) -> None:
    with server(routes) as url, pytest.raises(TargetError, match=message):
        ask(url)


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("https://host/proxy/v1", "https://host/proxy"),
        ("http://h:1/v1/chat/completions", "http://h:1"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_base_url(given: str, base: str) -> None:
    assert base_url(given) == base


@pytest.mark.parametrize(
    "given", ["localhost:8000", "ftp://x", "http://", "http://a:b", "http://x:99999", "http://[::1", ""]
)
def test_what_is_no_url_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="is not a URL"):
        base_url(given)
