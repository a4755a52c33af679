"""What a target can be wrong in is told in one line, before anything is measured."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from loadgen.errors import TargetError, UsageError
from loadgen.preflight import Preflight, probe
from loadgen.urls import accepts_connections, base_url

WORDS = [f"w{i}" for i in range(128)]
Answer = tuple[int, str, bytes]
MODELS: Answer = (200, "application/json", b'{"data":[{"id":"m1","max_model_len":512},{"id":"m2"}]}')


def sse(num_tokens: int, usage: dict[str, int] | None) -> bytes:
    events = [{"choices": [{"index": 0, "text": f"t{i} ", "finish_reason": None}]} for i in range(num_tokens)]
    events.append({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    if usage is not None:
        events.append({"choices": [], "usage": usage})  # type: ignore[dict-item]
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


def completions(
    template_tokens: int = 0, per_word: int = 1, ignores_length: bool = False
) -> Callable[[Any], Answer]:
    def answer(request: Any) -> Answer:
        prompt = request["prompt"] if "prompt" in request else request["messages"][0]["content"]
        n = 3 if ignores_length else request["max_tokens"]
        counted = per_word * len(prompt.split()) + template_tokens
        usage = {"prompt_tokens": counted, "completion_tokens": n, "total_tokens": counted + n}
        return 200, "text/event-stream", sse(n, usage)

    return answer


@contextmanager
def server(routes: dict[str, Answer | Callable[[Any], Answer]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            request = json.loads(self.rfile.read(length)) if length else None
            found = routes.get(self.path, (404, "text/html", b"<h1>not here</h1>"))
            status, kind, body = found(request) if callable(found) else found
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def ask(url: str, api: str = "auto", model: str | None = None) -> Preflight:
    return probe(url, api=api, model=model, headers={}, words=WORDS, timeout_s=5.0)


def test_model_offset_and_context_are_found() -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions(template_tokens=3)}) as url:
        found = ask(url)
    assert (found.api, found.model, found.prompt_offset, found.context_tokens) == (
        "completions",
        "m1",
        3,
        512,
    )
    assert found.notes == ()


def test_a_chat_only_server_is_measured_by_chat() -> None:
    with server({"/v1/models": MODELS, "/v1/chat/completions": completions(template_tokens=9)}) as url:
        found = ask(url)
    assert (found.api, found.prompt_offset) == ("chat", 9)


def test_model_of_the_flag_wins() -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        assert ask(url, model="m2").model == "m2"


def test_a_server_that_chooses_its_lengths_is_noted() -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions(ignores_length=True)}) as url:
        assert any("lengths are its own" in note for note in ask(url).notes)


def test_a_tokenizer_that_splits_the_words_is_noted() -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions(per_word=2)}) as url:
        assert any("2.000 tokens for each" in note for note in ask(url).notes)


def test_no_usage_is_noted() -> None:
    answer = (200, "text/event-stream", sse(8, None))
    with server({"/v1/models": MODELS, "/v1/completions": answer}) as url:
        found = ask(url)
    assert found.prompt_offset is None
    assert any("no usage" in note for note in found.notes)


def test_a_refused_connection_is_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(TargetError, match=r"refuses connections.*is the server running"):
            ask(url)
        assert not accepts_connections(url)


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ({}, "lists no model at /v1/models"),
        (
            {"/v1/models": (200, "text/html", b"<h1>hello</h1>")},
            "not an OpenAI-compatible server.*text/html: <h1>",
        ),
        ({"/v1/models": (200, "application/json", b"[1]")}, "not an OpenAI-compatible server"),
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
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_base_url(given: str, base: str) -> None:
    assert base_url(given) == base


@pytest.mark.parametrize(
    "given", ["localhost:8000", "ftp://x", "http://", "http://a:b", "http://x:99999", ""]
)
def test_what_is_no_url_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="is not a URL"):
        base_url(given)
