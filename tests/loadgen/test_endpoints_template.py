"""Endpoints from TOML files: the worked examples against recorded forms, and what can be wrong in a file."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from loadgen.endpoints.template import Template, load_template
from loadgen.errors import UsageError
from loadgen.records import Outcome
from tests.loadgen.wire import STEP_NS, exchange, record, stream

EXAMPLES = Path(__file__).parents[2] / "examples" / "endpoints"


def example(name: str) -> Template:
    return load_template(EXAMPLES / f"{name}.toml", "m")


def named(*events: dict[str, Any]) -> list[bytes]:
    """Events with the name that their type gives, as OpenAI and Anthropic send them."""
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]


def test_responses() -> None:
    endpoint = example("openai_responses")
    body = json.loads(endpoint.body("hi", 3, "m"))
    assert body == {"model": "m", "input": "hi", "max_output_tokens": 3, "stream": True}
    usage = {"input_tokens": 9, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}
    events = named(
        {"type": "response.created", "response": {"status": "in_progress", "usage": None, "error": None}},
        {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
        {"type": "response.reasoning_summary_text.delta", "delta": "hm"},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.output_text.delta", "delta": "b"},
        {"type": "response.output_text.done", "text": "ab"},
        {"type": "response.incomplete"}
        | {"response": {"incomplete_details": {"reason": "max_output_tokens"}, "usage": usage}},
    )
    row = record(stream(events), endpoint)
    assert row.outcome is Outcome.OK
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (9, 4, 3)
    assert row.chunk_tokens == [1, 1, 1]
    assert (row.first_event_ns, row.first_token_ns, row.first_answer_ns) == (
        2 * STEP_NS,
        4 * STEP_NS,
        5 * STEP_NS,
    )


def test_responses_that_fail() -> None:
    failed = {"type": "response.failed", "response": {"status": "failed", "error": {"message": "no quota"}}}
    row = record(stream(named(failed)), example("openai_responses"))
    assert (row.outcome, row.error) == (Outcome.ERROR_EVENT, "no quota")


def test_messages() -> None:
    endpoint = example("anthropic_messages")
    assert json.loads(endpoint.body("hi", 3, "m"))["messages"] == [{"role": "user", "content": "hi"}]
    assert endpoint.headers["x-api-key"] == "${api_key}"
    start = {"usage": {"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": 0}}
    events = named(
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a b c"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    )
    row = record(stream(events), endpoint)
    assert row.outcome is Outcome.OK
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (9, 0, 7)
    assert row.chunk_tokens == [None, None]
    assert (row.first_token_ns, row.first_answer_ns) == (5 * STEP_NS, 6 * STEP_NS)


def test_messages_that_fail() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    row = record(stream(named(error)), example("anthropic_messages"))
    assert (row.outcome, row.error) == (Outcome.ERROR_EVENT, "Overloaded")


def test_triton_states_the_tokens_of_each_event() -> None:
    endpoint = example("triton_generate_stream")
    assert endpoint.path == "/v2/models/m/generate_stream"
    assert json.loads(endpoint.body("hi", 3, "m"))["parameters"]["max_tokens"] == 3
    events = [
        {"text_output": " a", "num_output_tokens": 1, "num_input_tokens": 9, "finish_reason": "None"},
        {"text_output": " b c", "num_output_tokens": 2, "num_input_tokens": 9, "finish_reason": "length"},
    ]
    row = record(stream([f"data: {json.dumps(e)}\n\n".encode() for e in events]), endpoint)
    assert row.outcome is Outcome.OK
    assert (row.prompt_tokens, row.output_tokens, row.chunk_tokens) == (9, 3, [1, 2])


def test_embeddings_have_an_end_and_no_token() -> None:
    body = b'{"object":"list","data":[{"object":"embedding","embedding":[0.1]}],"usage":{"prompt_tokens":9}}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    row = record(exchange([head, body]), example("embeddings"))
    assert row.outcome is Outcome.OK
    assert (row.prompt_tokens, row.first_token_ns, row.last_token_ns) == (9, None, 2 * STEP_NS)


def test_a_template_travels_to_other_processes() -> None:
    endpoint = example("openai_responses")
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint


GOOD = 'path = "/x"\n[request]\np = "say: ${prompt}"\nn = "${output_tokens}"\n[read]\ntext = ["t"]\n'


def test_placeholders_keep_types_and_stand_inside_text(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(GOOD)
    body = json.loads(load_template(tmp_path / "t.toml", None).body("hi", 3, "m"))
    assert body == {"p": "say: hi", "n": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path = ", "is not TOML"),
        (GOOD.replace("path", "url"), "url"),
        (GOOD.replace('["t"]', "3"), r"\$\.read\.text"),
        (GOOD.replace("${prompt}", "prompt"), r"holds no \$\{prompt\}"),
        (GOOD.replace("${output_tokens}", "${max}"), r"unknown \$\{max\}; known here: .*output_tokens"),
        (GOOD.replace('"/x"', '"/x/${model}"'), "say --model NAME"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        load_template(tmp_path / "t.toml", None)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the endpoint template .*gone\.toml"):
        load_template(tmp_path / "gone.toml", None)
