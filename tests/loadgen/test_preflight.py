"""What a target can be wrong in is told in one line, before anything is measured."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from loadgen.endpoints.base import TokenEvents
from loadgen.errors import TargetError
from loadgen.urls import accepts_connections
from tests.loadgen.answering import (
    MODELS,
    Answer,
    ask,
    completions,
    found_in,
    server,
    sse,
)


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
