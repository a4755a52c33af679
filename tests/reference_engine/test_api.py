from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from reference_engine.answers import Answer
from reference_engine.api import ApiError, ServedModel, Submission, parse_chat, parse_completion
from reference_engine.sequence import FinishReason
from reference_engine.tokenizer import BOS_ID, NUM_IDS, WordTokenizer

WORDS = WordTokenizer(is_bos_enabled=True)
MODEL = ServedModel(name="m", tokenizer=WORDS, num_ids=NUM_IDS, max_model_len=64)


NESTED = b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": "able about", **fields}).encode()


def test_prompts_may_be_text_or_ids() -> None:
    ids = WORDS.encode("able about", is_whole=False)
    for text in ("able about", ["able about"]):
        submission = parse_completion(completion(prompt=text), MODEL)
        assert submission.prompts == [[BOS_ID, *ids]]
        assert submission.max_tokens == 16
    for token_ids in (ids, [ids]):
        assert parse_completion(completion(prompt=token_ids), MODEL).prompts == [ids]
    assert parse_completion(completion(prompt=["able", "about"]), MODEL).prompts == [
        WORDS.encode("able"),
        WORDS.encode("about"),
    ]
    assert parse_completion(completion(prompt=[ids, [5]]), MODEL).prompts == [ids, [5]]


def test_chat_turns_become_one_prompt() -> None:
    parts = [{"type": "text", "text": "able"}, {"type": "text", "text": " about"}]
    for content in ("able about", parts):
        body = {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 9}
        submission = parse_chat(json.dumps(body).encode(), MODEL)
        assert submission.prompts == [WORDS.encode_chat([("user", "able about")])]
        assert submission.max_tokens == 9


def test_chat_without_a_limit_runs_to_the_end_of_the_context() -> None:
    body = {"messages": [{"role": "user", "content": "able"}]}
    submission = parse_chat(json.dumps(body).encode(), MODEL)
    assert len(submission.prompts[0]) + submission.max_tokens == MODEL.max_model_len


def test_a_tokenizer_may_know_more_than_the_model() -> None:
    small = replace(MODEL, num_ids=max(WORDS.encode("able")))
    chat = json.dumps({"messages": [{"role": "user", "content": "able"}]}).encode()
    for parse, body in ((parse_completion, completion(prompt="able")), (parse_chat, chat)):
        parse(body, MODEL)
        with pytest.raises(ApiError, match="outside of the vocabulary"):
            parse(body, small)


def test_fields_that_no_server_agrees_on_are_let_through() -> None:
    parse_completion(completion(frequency_penalty=0, whatever={"a": 1}), MODEL)


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"prompt": 5}, 400, "prompt"),
        ({"prompt": ""}, 200, ""),  # BOS alone is a prompt
        ({"prompt": []}, 400, "empty"),
        ({"prompt": ["able", []]}, 400, "empty"),
        ({"prompt": [[1], 2]}, 400, "integers only"),
        ({"prompt": [[1]] * 1025}, 400, "1024 prompts, not 1025"),
        ({"n": 1}, 200, ""),
        ({"priority": 2**63}, 400, "priority"),
        ({"seed": -(2**63)}, 400, "seed"),
        ({"prompt": [1, "a"]}, 400, "integers only"),
        ({"prompt": [99_999]}, 400, "outside of the vocabulary"),
        ({"prompt": [-1]}, 400, "outside of the vocabulary"),
        ({"max_tokens": "many"}, 400, r"\$.max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"max_tokens": -3}, 400, "max_tokens must be at least 1"),
        ({"max_tokens": 62}, 400, "context is 64 tokens"),
        ({"max_tokens": 61}, 200, ""),
        ({"min_tokens": 20}, 400, "min_tokens"),
        ({"model": "other"}, 404, "'other' does not exist; this server has 'm'"),
        ({"model": "m"}, 200, ""),
        ({"n": 2}, 400, "n must be 1"),
        ({"best_of": 3}, 400, "best_of must be 1"),
        ({"stop": ["a", ""]}, 400, "none of them empty"),
        ({"stop": "able"}, 200, ""),
        ({"logprobs": 5}, 400, "logprobs is not supported"),
        ({"echo": True}, 400, "echo is not supported"),
        ({"temperature": -1}, 400, "temperature"),
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 7}, 200, ""),
        ({"top_p": 0}, 400, "top_p"),
        ({"top_k": -2}, 400, "top_k"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], status: int, words: str) -> None:
    if status == 200:
        parse_completion(completion(**fields), MODEL)
        return
    with pytest.raises(ApiError, match=words) as caught:
        parse_completion(completion(**fields), MODEL)
    assert caught.value.status == status
    assert json.loads(caught.value.body())["error"]["message"] == str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"prompt": "a"', b"\xff", NESTED])
def test_what_is_not_a_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion(data, MODEL)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
    ],
)
def test_wrong_messages_are_named(messages: list[Any], words: str) -> None:
    with pytest.raises(ApiError, match=words):
        parse_chat(json.dumps({"messages": messages}).encode(), MODEL)


def new_answer(submission: Submission) -> Answer:
    return Answer(request_id="r", submission=submission, model="m", created_s=1, new_text=WORDS.detokenizer)


def events(data: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("has_usage", [True, False])
def test_a_completion_stream_is_one_event_a_token(has_usage: bool) -> None:
    data = completion(stream=True, stream_options={"include_usage": has_usage})
    submission = parse_completion(data, MODEL)
    answer = new_answer(submission)
    stream = b""
    for token_id, reason in ((1, None), (2, FinishReason.LENGTH)):
        answer.choices[0].take(token_id, reason)
        stream += answer.choices[0].token_event()
    got = events(stream + answer.closing_events())
    assert [e["choices"][0]["text"] for e in got[:2]] == [" abilities", " ability"]
    assert [e["choices"][0]["finish_reason"] for e in got[:2]] == [None, "length"]
    assert {e["id"] for e in got} == {"cmpl-r"}
    assert len(got) == (3 if has_usage else 2)
    if has_usage:
        assert got[2]["choices"] == []
        assert got[2]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_a_chat_stream_begins_with_who_speaks() -> None:
    data = json.dumps({"messages": [{"role": "user", "content": "able"}], "max_tokens": 2}).encode()
    answer = new_answer(parse_chat(data, MODEL))
    answer.choices[0].take(1, FinishReason.LENGTH)
    got = events(answer.choices[0].token_event() + answer.closing_events())
    assert [e["choices"][0]["delta"] for e in got] == [
        {"role": "assistant", "content": ""},
        {"content": " abilities"},
    ]
    body = json.loads(answer.body())
    assert body["choices"][0]["message"] == {"role": "assistant", "content": " abilities"}
    assert body["object"] == "chat.completion"


def test_chat_limits_are_checked_too() -> None:
    body = {"messages": [{"role": "user", "content": "able"}], "max_completion_tokens": -1}
    with pytest.raises(ApiError, match="at least 1"):
        parse_chat(json.dumps(body).encode(), MODEL)


def test_a_stop_string_ends_the_answer_before_itself() -> None:
    data = completion(stream=True, stop=["ability able", "never"])
    submission = parse_completion(data, MODEL)
    answer = new_answer(submission)
    choice, stream, reasons = answer.choices[0], b"", []
    for token_id in (1, 2, 3):  # abilities, ability, able
        choice.take(token_id, None)
        reasons.append(choice.reason)
        stream += choice.token_event()
    assert reasons == [None, None, FinishReason.STOP]
    got = events(stream + answer.closing_events())
    assert "".join(event["choices"][0]["text"] for event in got) == " abilities "
    assert got[-1]["choices"][0]["finish_reason"] == "stop"
    assert json.loads(answer.body())["choices"][0]["text"] == " abilities "
