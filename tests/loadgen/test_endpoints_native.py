"""Each server's own protocol: what is asked, and what a stream in its documented form becomes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from loadgen.endpoints import ENDPOINTS
from loadgen.endpoints.base import Endpoint, EndpointDataError, Usage, with_fields
from loadgen.records import Outcome, RequestRecord
from loadgen.transport.base import End
from tests.loadgen.wire import DONE, STEP_NS, event, exchange, frame, record, stream

LINES_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"


def sse(*events: dict[str, Any]) -> list[bytes]:
    return [event(json.dumps(value)) for value in events]


def lines(*documents: dict[str, Any]) -> list[bytes]:
    return [json.dumps(document).encode() + b"\n" for document in documents]


def line_record(chunks: Sequence[bytes], ended: End = End.COMPLETE) -> RequestRecord:
    framed = [LINES_HEAD, *map(frame, chunks), *([b"0\r\n\r\n"] if ended is End.COMPLETE else [])]
    return record(exchange(framed, ended), "ollama", output_tokens=3)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (
            "sglang",
            {
                "text": "hi",
                "sampling_params": {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True},
                "stream": True,
            },
        ),
        ("tgi", {"inputs": "hi", "parameters": {"max_new_tokens": 3, "do_sample": False, "details": True}}),
        (
            "llamacpp",
            {
                "prompt": "hi",
                "n_predict": 3,
                "temperature": 0,
                "stream": True,
                "return_tokens": True,
                "ignore_eos": True,
            },
        ),
        (
            "ollama",
            {
                "model": "m",
                "prompt": "hi",
                "raw": True,
                "stream": True,
                "options": {"num_predict": 3, "temperature": 0},
            },
        ),
    ],
)
def test_what_is_asked(name: str, body: dict[str, Any]) -> None:
    assert json.loads(ENDPOINTS[name].body("hi", 3, "m")) == body


def test_token_ids_as_a_prompt() -> None:
    assert json.loads(ENDPOINTS["sglang"].body([1, 2], 3, "m"))["input_ids"] == [1, 2]
    assert json.loads(ENDPOINTS["llamacpp"].body([1, 2], 3, "m"))["prompt"] == [1, 2]
    for endpoint in (ENDPOINTS["tgi"], ENDPOINTS["ollama"]):
        with pytest.raises(TypeError, match="text only"):
            endpoint.body([1, 2], 3, "m")


def test_further_fields_are_merged_into_objects_and_replace_all_else() -> None:
    endpoint = with_fields(ENDPOINTS["ollama"], extra=(("options", '{"top_k":7}'), ("raw", "false")))
    body = json.loads(endpoint.body("hi", 3, "m"))
    assert body["options"] == {"num_predict": 3, "temperature": 0, "top_k": 7}
    assert body["raw"] is False


def sglang_event(text: str, num_tokens: int, finish: str | None = None) -> dict[str, Any]:
    return {
        "text": text,
        "meta_info": {
            "id": "x",
            "finish_reason": {"type": finish, "length": 5} if finish else None,
            "prompt_tokens": 9,
            "completion_tokens": num_tokens,
            "cached_tokens": 4,
        },
    }


def test_sglang_s_growing_text_is_counted_by_its_growing_count() -> None:
    events = sse(sglang_event("a", 1), sglang_event("a", 2), sglang_event("a b c", 5, "length"))
    row = record(stream([*events, DONE]), "sglang")
    assert row.outcome is Outcome.OK
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (9, 4, 5)
    assert (row.chunk_tokens, row.output_tokens_source) == ([1, 1, 3], "usage")


def test_sglang_s_error_event_is_a_failure() -> None:
    row = record(stream([*sse({"error": {"message": "too long"}}), DONE]), "sglang")
    assert (row.outcome, row.error) == (Outcome.ERROR_EVENT, "too long")


def tgi_event(index: int, text: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
    token = {"id": 100 + index, "text": text, "logprob": -1.0, "special": False}
    return {"index": index, "token": token, "generated_text": "abc" if details else None, "details": details}


def test_tgi_sends_one_token_an_event_and_its_account_with_the_last() -> None:
    details = {"finish_reason": "length", "generated_tokens": 3, "input_length": 9, "seed": None}
    row = record(stream(sse(tgi_event(1, "a"), tgi_event(2, ""), tgi_event(3, "c", details))), "tgi")
    assert row.outcome is Outcome.OK
    assert (row.prompt_tokens, row.output_tokens, row.chunk_tokens) == (9, 3, [1, 1, 1])


def test_tgi_s_error_event_is_a_failure() -> None:
    row = record(stream(sse(tgi_event(1, "a"), {"error": "overloaded", "error_type": "overloaded"})), "tgi")
    assert (row.outcome, row.error) == (Outcome.ERROR_EVENT, "overloaded")


def test_llamacpp_s_events_carry_token_ids_and_its_last_the_account() -> None:
    events = sse(
        {"index": 0, "content": "a", "tokens": [7], "stop": False},
        {"index": 0, "content": "", "tokens": [200], "stop": False},
        {
            "index": 0,
            "content": "",
            "tokens": [],
            "stop": True,
            "stop_type": "limit",
            "tokens_predicted": 2,
            "tokens_evaluated": 9,
            "timings": {"cache_n": 3, "prompt_n": 6},
        },
    )
    row = record(stream(events), "llamacpp")
    assert row.outcome is Outcome.OK
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (9, 3, 2)
    assert row.chunk_tokens == [1, 1]


OLLAMA = lines(
    {"model": "m", "response": "a", "done": False},
    {"model": "m", "response": "b", "done": False},
    {"model": "m", "response": "c", "done": False},
    {"model": "m", "response": "", "done": True, "done_reason": "length"}
    | {"prompt_eval_count": 9, "eval_count": 3, "eval_duration": 5},
)


def test_ollama_s_lines_are_events() -> None:
    row = line_record(OLLAMA)
    assert row.outcome is Outcome.OK
    assert (row.prompt_tokens, row.output_tokens, row.chunk_tokens) == (9, 3, [1, 1, 1])
    assert row.chunk_ns == [2 * STEP_NS, 3 * STEP_NS, 4 * STEP_NS]
    assert row.chunk_lower_ns == row.chunk_ns


def test_ollama_s_thought_is_told_from_its_answer() -> None:
    thought = lines({"response": "", "thinking": "hm", "done": False})
    row = line_record([*thought, *OLLAMA[1:]])
    assert (row.first_token_ns, row.first_answer_ns) == (2 * STEP_NS, 3 * STEP_NS)


@pytest.mark.parametrize("cut", range(1, sum(map(len, OLLAMA)), 7))
def test_lines_cut_anywhere_say_the_same(cut: int) -> None:
    body = b"".join(OLLAMA)
    row = line_record([body[:cut], body[cut:]])
    assert (row.outcome, row.output_tokens, row.chunk_tokens) == (Outcome.OK, 3, [1, 1, 1])


def test_a_last_line_without_its_end_is_read_and_half_a_line_is_not() -> None:
    assert line_record([*OLLAMA[:3], OLLAMA[3].rstrip()]).outcome is Outcome.OK
    row = line_record([*OLLAMA[:3], OLLAMA[3][:30]], End.EOF)
    assert row.outcome is Outcome.TRUNCATED
    assert row.error is not None
    assert "cut within an event" in row.error


def test_ollama_s_error_line_is_a_failure() -> None:
    row = line_record([OLLAMA[0], *lines({"error": "model runner has stopped"})])
    assert (row.outcome, row.error) == (Outcome.ERROR_EVENT, "model runner has stopped")


NATIVE = ("sglang", "tgi", "llamacpp", "ollama")


@pytest.mark.parametrize("endpoint", [ENDPOINTS[name] for name in NATIVE], ids=NATIVE)
@pytest.mark.parametrize("data", [b"{", b"<html>", b"[1]", b'{"hello":1}'])
def test_what_is_no_event_of_the_api_is_an_error(endpoint: Endpoint, data: bytes) -> None:
    with pytest.raises(EndpointDataError):
        endpoint.interpret(data)


def test_a_body_that_was_not_streamed() -> None:
    facts = ENDPOINTS["sglang"].interpret(json.dumps(sglang_event("a b", 2, "stop")).encode())
    assert (facts.finish_reason, facts.usage) == ("stop", Usage(9, 2, 4))
