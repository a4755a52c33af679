"""What a target can be wrong in is told in one line, before anything is measured."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from loadgen.endpoints.base import TokenEvents
from loadgen.errors import TargetError, UsageError
from loadgen.preflight import Preflight, probe
from loadgen.probing import connect_words
from loadgen.urls import accepts_connections, base_url

WORDS = [f"w{i}" for i in range(128)]
Answer = tuple[int, str, bytes]
MODELS: Answer = (200, "application/json", b'{"data":[{"id":"m1","max_model_len":512},{"id":"m2"}]}')


def sse(num_tokens: int, usage: dict[str, Any] | None) -> bytes:
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


Routes = Mapping[str, Answer | Callable[[Any], Answer]]


def make_server(port: int, routes: Routes) -> ThreadingHTTPServer:
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

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


@contextmanager
def server(routes: Routes) -> Iterator[str]:
    http = make_server(0, routes)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def ask(url: str, api: str = "auto", model: str | None = None, **more: Any) -> Preflight:
    return probe(url, api=api, model=model, words=WORDS, **{"headers": {}, "timeout_s": 5.0, **more})


def found_in(preflight: Preflight, what: str) -> str:
    return next(f"{f.found} | {f.meaning}" for f in preflight.findings if f.what == what)


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


def test_a_server_with_little_room_is_asked_a_shorter_prompt() -> None:
    def small(request: Any) -> Answer:
        if len(request["prompt"].split()) > 50:
            return 400, "application/json", b'{"error":"no room"}'
        return completions(template_tokens=3)(request)

    with server(
        {"/v1/models": (200, "application/json", b'{"data":[{"id":"m"}]}')} | {"/v1/completions": small}
    ) as url:
        assert ask(url).prompt_offset == 3


def test_a_server_s_names_do_not_move_the_cursor() -> None:
    models = (200, "application/json", b'{"data":[{"id":"m1","owned_by":"\\u001b[2J me"}]}')
    with server({"/v1/models": models, "/v1/completions": completions()}) as url:
        assert found_in(ask(url), "server").startswith("[2J me, model m1 ")


def test_a_model_that_is_served_and_not_listed_is_noted() -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        assert found_in(ask(url, model="m3"), "model").startswith("'m3' is not listed")
        assert not any(finding.what == "model" for finding in ask(url, model="m2").findings)


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


def test_what_was_found_is_kept_for_the_manifest() -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions(ignores_length=True)}) as url:
        facts = ask(url).facts()
    json.dumps(facts, allow_nan=False)
    assert {"what": "api", "found": "completions", "meaning": ""} in facts["preflight"]
    assert any("3 of 16 asked for" in note for note in facts["notes"])


def test_fields_that_the_server_refuses_are_left_out() -> None:
    def strict(request: Any) -> Answer:
        if unknown := {"ignore_eos"} & set(request):
            return 422, "application/json", b'{"detail":"unexpected fields: %s"}' % str(unknown).encode()
        return completions()(request)

    with server({"/v1/models": MODELS, "/v1/completions": strict}) as url:
        found = ask(url)
    assert b"ignore_eos" not in found.endpoint.body("hi", 3, "m")
    assert "answers may end before the length asked for" in found_in(found, "fields")


def test_more_than_max_tokens_is_noted() -> None:
    def generous(request: Any) -> Answer:
        return completions()(request | {"max_tokens": 20})

    with server({"/v1/models": MODELS, "/v1/completions": generous}) as url:
        assert found_in(ask(url), "output tokens") == "20 for max_tokens 16 | lengths are its own"


def merged(request: Any) -> Answer:
    """Two tokens an event; each states the count so far where it was asked to."""
    wants_count = request["stream_options"].get("continuous_usage_stats")
    events: list[dict[str, Any]] = []
    n = request["max_tokens"]
    for at in range(2, n + 2, 2):
        usage = {"prompt_tokens": len(request["prompt"].split()), "completion_tokens": min(at, n)}
        events.append({"choices": [{"text": "a b"}]} | ({"usage": usage} if wants_count else {}))
    events.append({"choices": [{"text": "", "finish_reason": "length"}]})
    events.append({"choices": [], "usage": usage})
    return 200, "text/event-stream", b"".join(b"data: %s\n\n" % json.dumps(e).encode() for e in events)


def test_a_usage_that_rises_with_the_stream_is_asked_for() -> None:
    with server({"/v1/models": MODELS, "/v1/completions": merged}) as url:
        found = ask(url)
    assert b'"continuous_usage_stats":true' in found.endpoint.body("hi", 3, "m")
    assert found_in(found, "streaming").startswith("yes, 8 events for 16 tokens; each event says")


def test_events_of_several_tokens_are_noted() -> None:
    def silent(request: Any) -> Answer:
        return merged(request | {"stream_options": {}})

    with server({"/v1/models": MODELS, "/v1/completions": silent}) as url:
        found = ask(url)
    assert found_in(found, "tokens per event") == "2 on average | event gaps are not token gaps; no itl_s"
    assert b"continuous" not in found.endpoint.body("hi", 3, "m")


def test_events_that_are_one_token_each_are_known_from_then_on() -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        assert ask(url).endpoint.token_events is TokenEvents.CONTENT


def cached(num_cached: int) -> Callable[[Any], Answer]:
    seen: set[str] = set()

    def answer(request: Any) -> Answer:
        prompt, n = request["prompt"], request["max_tokens"]
        usage: dict[str, Any] = {"prompt_tokens": len(prompt.split()), "completion_tokens": n}
        usage["prompt_tokens_details"] = {"cached_tokens": num_cached if prompt in seen else 0}
        seen.add(prompt)
        return 200, "text/event-stream", sse(n, usage)

    return answer


@pytest.mark.parametrize(
    ("num_cached", "words"), [(64, "on (64 of 128 tokens"), (0, "off, or nothing found")]
)
def test_a_prefix_cache_shows_on_a_repeated_prompt(num_cached: int, words: str) -> None:
    with server({"/v1/models": MODELS, "/v1/completions": cached(num_cached)}) as url:
        assert found_in(ask(url), "prefix cache").startswith(words)


def test_a_prefix_cache_shows_in_the_server_s_counters() -> None:
    hits = iter([0, 100, 100, 100])

    def page(_: Any) -> Answer:
        return 200, "text/plain", b"vllm:prefix_cache_hits_total %d\n" % next(hits)

    with server({"/v1/models": MODELS, "/v1/completions": completions(), "/metrics": page}) as url:
        found = ask(url)
    assert found_in(found, "prefix cache").startswith("on (100 of 128 tokens")
    assert found_in(found, "/metrics").startswith("read during the run: prefix_hit_tokens")


@pytest.mark.parametrize(("shift_s", "words"), [(3600, "s ahead of ours"), (-60, "s behind ours")])
def test_a_server_of_another_time_is_noted(shift_s: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        assert not any(finding.what == "clock" for finding in ask(url).findings)
        monkeypatch.setattr("loadgen.probing.time.time", lambda: now() - shift_s)
        monkeypatch.setattr(
            BaseHTTPRequestHandler, "date_time_string", lambda _: formatdate(now(), usegmt=True)
        )
        found = found_in(ask(url), "clock")
    assert any(f"{seconds} s" in found for seconds in range(abs(shift_s) - 2, abs(shift_s) + 3))
    assert words in found


def test_the_server_s_tokenizer_counts_where_it_reports_no_usage() -> None:
    def tokenize(request: Any) -> Answer:
        return 200, "application/json", b'{"count":%d}' % (len(request["prompt"].split()) + 2)

    answer = (200, "text/event-stream", sse(16, None))
    with server({"/v1/models": MODELS, "/v1/completions": answer, "/tokenize": tokenize}) as url:
        assert ask(url).prompt_offset == 2


def flaky(failures: int, answer: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
    left = iter([True] * failures)

    def sometimes(request: Any) -> Answer:
        if next(left, False):
            return 500, "application/json", b'{"error":"warming up"}'
        return answer(request)

    return sometimes


def test_a_probe_that_fails_is_a_warning_where_others_are_answered() -> None:
    with server({"/v1/models": MODELS, "/v1/completions": flaky(1, completions())}) as url:
        found = ask(url)
    assert found.api == "completions"
    assert "warming up" in found_in(found, "first probe")


def test_a_server_of_which_every_probe_fails_is_refused() -> None:
    broken = (500, "application/json", b'{"error":"no GPU"}')
    with (
        server({"/v1/models": MODELS, "/v1/completions": broken, "/v1/chat/completions": broken}) as url,
        pytest.raises(TargetError, match=r"POST /v1/completions answered 500 \(no GPU\)"),
    ):
        ask(url)


def test_a_server_that_does_not_answer_is_asked_three_times() -> None:
    asked: list[str] = []

    def silence(_: Any) -> Answer:
        asked.append("")
        time.sleep(0.3)
        return MODELS

    with (
        server({"/v1/models": silence}) as url,
        pytest.raises(TargetError, match=r"within 0.05 s \(3 tries"),
    ):
        ask(url, timeout_s=0.05)
    assert len(asked) == 3


def test_an_answer_that_does_not_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.probing.MAX_BYTES", 10_000)

    def endless(_: Any) -> Answer:
        return 200, "text/event-stream", b'data: {"choices":[{"text":"a"}]}\n\n' * 10_000

    with server({"/v1/models": MODELS, "/v1/completions": endless}) as url:
        found = ask(url)
    assert "events for max_tokens 16, and no usage | lengths are its own" in found_in(found, "output tokens")


def test_a_server_that_never_ends_is_told_and_does_not_hold_up_the_run() -> None:
    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v1/models" else 404)
            self.end_headers()
            self.wfile.write(MODELS[2])

        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b'data: {"choices":[{"text":"a"}]}\n\n')
                    time.sleep(0.01)

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    found = ask(f"http://127.0.0.1:{http.server_port}", timeout_s=0.1)
    http.shutdown()
    http.server_close()
    assert found_in(found, "end").endswith("| where it ignores max_tokens, each request runs until --timeout")


def test_questions_end_when_they_are_to_stop() -> None:
    stop = threading.Event()

    def models(_: Any) -> Answer:
        stop.set()
        return MODELS

    with server({"/v1/models": models}) as url, pytest.raises(KeyboardInterrupt):
        ask(url, stop=stop)


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
