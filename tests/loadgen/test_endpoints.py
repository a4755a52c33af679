"""What each kind of event says, usual and odd, and the bodies that are sent."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.endpoints import ENDPOINTS
from loadgen.endpoints.base import ChunkFacts, EndpointDataError, TokenEvents, Usage, with_fields
from loadgen.endpoints.errors import error_text
from loadgen.endpoints.openai import Chat, Completions, _untyped_facts
from tests.loadgen.wire import NAMES, load_transcript

CHAT, COMPLETIONS = Chat(), Completions()


def chat(delta: str, finish: str = "null", more: str = "") -> ChunkFacts:
    return CHAT.interpret(
        f'{{"choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]{more}}}'.encode()
    )


def test_a_body_says_what_is_asked_and_is_the_same_each_time() -> None:
    body = COMPLETIONS.body('one "two"\n中', 12, "org/model")
    assert json.loads(body) == {
        "model": "org/model",
        "prompt": 'one "two"\n中',
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert COMPLETIONS.body('one "two"\n中', 12, "org/model") == body
    assert json.loads(COMPLETIONS.body([1, 2, 3], 1, "m"))["prompt"] == [1, 2, 3]
    chat_body = json.loads(CHAT.body("hi", 3, "m"))
    assert chat_body["messages"] == [{"role": "user", "content": "hi"}]
    assert chat_body["max_tokens"] == 3


def test_fields_that_a_server_refuses_can_be_left_out_and_others_added() -> None:
    plain = with_fields(CHAT, ignore_eos=False, extra=(("min_tokens", "5"),))
    body = json.loads(plain.body("hi", 5, "m"))
    assert body.keys() == {
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "stream",
        "stream_options",
        "min_tokens",
    }
    assert "stream_options" not in json.loads(with_fields(CHAT, include_usage=False).body("hi", 5, "m"))


def test_chat_takes_no_token_ids() -> None:
    with pytest.raises(TypeError, match="completions API"):
        CHAT.body([1, 2], 5, "m")


@pytest.mark.parametrize("name", ENDPOINTS)
def test_endpoints_travel_to_other_processes(name: str) -> None:
    endpoint = with_fields(ENDPOINTS[name], token_events=TokenEvents.CONTENT)
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint


@pytest.mark.parametrize(
    "delta",
    [
        '{"content":"x"}',
        '{"role":"assistant","content":"x"}',
        '{"content":null,"reasoning_content":"hm"}',
        '{"reasoning":"hm"}',
        '{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}',
        '{"refusal":"no"}',
        '{"content":[{"type":"text","text":"x"}]}',
        '{"content":"x","tool_calls":{"odd":1}}',
        '{"content":"\\ud83d"}',
    ],
)
def test_token_bearing_deltas(delta: str) -> None:
    facts = chat(delta)
    assert facts.is_token
    assert facts.is_content_event


@pytest.mark.parametrize(
    ("delta", "is_reasoning"),
    [
        ('{"reasoning":"hm"}', True),
        ('{"content":"","reasoning_content":"hm"}', True),
        ('{"content":null,"reasoning_content":"hm","odd":[1]}', True),
        ('{"content":"x","reasoning_content":"hm"}', False),
        ('{"reasoning":"hm","tool_calls":[{"index":0,"function":{"arguments":"{"}}]}', False),
        ('{"content":"x"}', False),
        ('{"role":"assistant"}', False),
    ],
)
def test_thought_is_told_from_answer(delta: str, is_reasoning: bool) -> None:
    assert chat(delta).is_reasoning is is_reasoning
    data = f'{{"choices":[{{"index":0,"delta":{delta}}}]}}'.encode()
    assert _untyped_facts(data).is_reasoning is is_reasoning


def test_two_choices_are_thought_only_where_both_are() -> None:
    thought, answer = '{"delta":{"reasoning":"hm"}}', '{"delta":{"content":"x"}}'
    assert CHAT.interpret(f'{{"choices":[{thought},{thought}]}}'.encode()).is_reasoning
    assert not CHAT.interpret(f'{{"choices":[{thought},{answer}]}}'.encode()).is_reasoning


def test_a_usage_that_rises_with_the_stream_can_be_asked_for() -> None:
    body = json.loads(with_fields(CHAT, continuous_usage=True).body("hi", 3, "m"))
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_further_fields_replace_those_that_are_sent() -> None:
    body = COMPLETIONS.body("hi", 3, "m")
    assert b'"temperature":0' in body
    warm = with_fields(COMPLETIONS, extra=(("temperature", "0.7"), ("priority", "1"))).body("hi", 3, "m")
    assert json.loads(warm) | {"temperature": 0} == json.loads(body) | {"priority": 1}
    assert warm.count(b"temperature") == 1


@pytest.mark.parametrize(
    ("delta", "is_content"),
    [
        ('{"role":"assistant"}', False),
        ('{"role":"assistant","content":null}', False),
        ('{"role":"assistant","content":""}', False),
        ("{}", False),
        ("null", False),
        ('{"content":null}', False),
        ('{"content":""}', True),
        ('{"content":[]}', True),
        ('{"content":"","tool_calls":[]}', True),
        ('{"content":[{"type":"text","text":""}]}', True),
    ],
)
def test_deltas_without_a_token(delta: str, is_content: bool) -> None:
    facts = chat(delta)
    assert not facts.is_token
    assert facts.is_content_event is is_content


def test_completion_text_empty_and_not() -> None:
    assert COMPLETIONS.interpret(b'{"choices":[{"text":"a"}]}').is_token
    empty = COMPLETIONS.interpret(b'{"choices":[{"text":"","finish_reason":"stop"}]}')
    assert (empty.is_token, empty.is_content_event, empty.finish_reason) == (False, True, "stop")


def test_finish_reasons_of_any_type() -> None:
    assert chat("{}", '"length"').finish_reason == "length"
    assert chat("{}", '{"type":"length","length":5}').finish_reason == "length"
    assert chat("{}", "false").finish_reason is None


@pytest.mark.parametrize(
    ("more", "usage"),
    [
        (',"usage":null', None),
        (',"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}', Usage(3, 2)),
        (
            ',"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}',
            Usage(3, 2, 1),
        ),
        (',"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":null}', Usage(3, 2)),
        (',"usage":{"completion_tokens":"2","prompt_tokens":3}', Usage(3, None)),
        (',"usage":{"completion_tokens":-1,"prompt_tokens":true}', None),
        (',"usage":{"completion_tokens":99999999999,"prompt_tokens":3}', Usage(3, None)),
        (',"usage":[1]', None),
        (',"timings":{"cache_n":22,"prompt_n":1,"predicted_n":5,"predicted_ms":9.7}', Usage(23, 5, 22)),
        (',"timings":{"prompt_n":7}', Usage(7, None, 0)),
    ],
)
def test_usage(more: str, usage: Usage | None) -> None:
    assert chat('{"content":"x"}', more=more).usage == usage


def test_usage_alone() -> None:
    facts = CHAT.interpret(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}')
    assert (facts.is_content_event, facts.usage) == (False, Usage(3, 2))
    for choices in (b"", b'"choices":null,', b'"choices":3,'):
        facts = CHAT.interpret(b'{%b"usage":{"prompt_tokens":3,"completion_tokens":2}}' % choices)
        assert facts.usage == Usage(3, 2)


def test_token_ids_are_counted() -> None:
    assert COMPLETIONS.interpret(b'{"choices":[{"text":"","token_ids":[4,5]}]}').num_tokens == 2
    assert COMPLETIONS.interpret(b'{"choices":[{"text":"a","token_ids":null}]}').num_tokens is None
    two = COMPLETIONS.interpret(b'{"choices":[{"text":"a","token_ids":[1]},{"text":"b","token_ids":[2,3]}]}')
    assert two.num_tokens == 3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"error":{"message":"too long","code":400}}', "too long"),
        ('{"error":"boom"}', "boom"),
        ('{"error":"\\u001b[31mred\\u0000\\nalert"}', "[31mred alert"),
        ('{"error":"half \\ud800 a pair"}', "half ? a pair"),
        ('{"error":{"code":500}}', '{"code": 500}'),
        ('{"object":"error","message":"bad model","code":404}', "bad model"),
        ('{"choices":[],"error":{"message":"oom"}}', "oom"),
        ('{"choices":[{"delta":{"content":"x"}}],"error":{"message":"late"}}', "late"),
    ],
)
def test_errors_in_the_server_s_words(data: str, words: str) -> None:
    assert CHAT.interpret(data.encode()).error == words


def test_an_error_that_is_null_is_none() -> None:
    facts = CHAT.interpret(b'{"choices":[{"delta":{"content":"x"}}],"error":null}')
    assert facts.error is None
    assert facts.is_token


@pytest.mark.parametrize("data", [b"[DONE]", b" [DONE]", b"[DONE] "])
def test_done(data: bytes) -> None:
    assert CHAT.interpret(data).is_done


DEEP = (b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


@pytest.mark.parametrize("data", [b"{", b"hello", b"[1]", b"3", b'{"a":1}', b'{"choices":3}', *DEEP])
def test_what_is_no_event_of_the_api_is_an_error_that_quotes_it(data: bytes) -> None:
    with pytest.raises(EndpointDataError) as caught:
        CHAT.interpret(data)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", NAMES)
def test_typed_and_untyped_readings_agree_on_every_recorded_event(name: str) -> None:
    transcript = load_transcript(name)
    for line in transcript.body.split(b"\n\n"):
        data = line.removeprefix(b"data: ")
        if not data.startswith(b'{"') or b'"choices":[' not in data.replace(b" ", b""):
            continue
        try:
            typed = transcript.endpoint.interpret(data)
        except EndpointDataError:
            continue
        assert typed == _untyped_facts(data)


MESSAGE_KEYS = ["delta", "text", "content", "role", "message", "tool_calls", "token_ids", "finish_reason"]
CHUNK_KEYS = ["choices", "usage", "error", "timings", "completion_tokens", "prompt_tokens", "predicted_n"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(MESSAGE_KEYS + CHUNK_KEYS), inner, max_size=4)
    ),
    max_leaves=20,
)
CHUNKS = st.one_of(
    JSON,
    st.builds(lambda choice: {"choices": [choice]}, JSON),
    st.builds(lambda usage: {"choices": [], "usage": usage}, JSON),
)


@settings(max_examples=500, deadline=None)
@given(
    JSON
    | st.builds(lambda c: {"choices": [c]}, JSON)
    | st.builds(lambda u: {"choices": [], "usage": u}, JSON)
)
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        facts = CHAT.interpret(json.dumps(value).encode())
    except EndpointDataError:
        return
    assert not facts.is_token or facts.is_content_event
    assert facts.error is None or facts.error


def test_typed_reading_is_used_for_the_usual_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.endpoints.openai._untyped_facts", None)
    assert chat('{"content":"x"}').is_token


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"no\\n such  model","type":"x"}}', "no such model"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (
            b'{"detail":[{"loc":["body"],"msg":"field required"},{"msg":"too big"}]}',
            "field required; too big",
        ),
        (b'{"message":{"error":{"detail":"deep"}}}', "deep"),
        (b'{"code":3}', '{"code": 3}'),
        (b'data: {"error":{"message":"in a stream"}}\n\n', "in a stream"),
        (b"<html>\n<h1>502</h1></html>", "<html> <h1>502</h1></html>"),
        (b"\xff\x00oops", "\ufffd oops"),
        (b"", ""),
        (b"null", "null"),
    ],
)
def test_error_words(body: bytes, words: str) -> None:
    assert error_text(body) == words
