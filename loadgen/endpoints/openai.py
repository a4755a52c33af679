"""OpenAI's completions and chat APIs, as the servers of this field speak them.

Events are decoded into typed structs (the fast path); whatever does not fit them is decoded without types
and read field by field, so that a surprise (a list where text was due, an odd finish reason) costs time and
not the request. Counts are those stated in `usage`, llama.cpp's `timings` or token ids; none is invented.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import msgspec

from loadgen.endpoints import fields
from loadgen.endpoints.base import ChunkFacts, EndpointDataError, Framing, TokenEvents, Usage
from loadgen.endpoints.errors import message_in

_DONE = ChunkFacts(is_done=True)
_NOTHING = ChunkFacts()
_THOUGHT_FIELDS = ("reasoning_content", "reasoning")
_ANSWER_FIELDS = ("content", "text", "refusal", "tool_calls", "function_call")


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Message(msgspec.Struct, gc=False):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice]
    usage: _Usage | None = None
    timings: msgspec.Raw | None = None
    error: msgspec.Raw | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class _OpenAi(msgspec.Struct, frozen=True, kw_only=True):
    """What both APIs share.

    ignore_eos, include_usage: False for servers that refuse the field. continuous_usage: ask for a usage that
    rises with the stream (vLLM, SGLang), which tells how many tokens each event holds. extra: further fields
    of the body, as JSON text by name.
    """

    framing: ClassVar[Framing] = Framing.EVENTS

    token_events: TokenEvents | None = None
    ignore_eos: bool = True
    include_usage: bool = True
    continuous_usage: bool = False
    extra: fields.Extra = ()

    def interpret(self, data: bytes) -> ChunkFacts:
        if data == b"[DONE]":
            return _DONE
        try:
            chunk = _decode_chunk(data)
        except (msgspec.MsgspecError, RecursionError):
            return _untyped_facts(data)
        if len(chunk.choices) != 1 or chunk.error is not None or chunk.timings is not None:
            return _untyped_facts(data)
        return _typed_facts(chunk)

    def _fields_after_prompt(self) -> bytes:
        after = {"temperature": "0", "stream": "true"}
        if self.ignore_eos:
            after["ignore_eos"] = "true"
        if self.include_usage:
            continuous = ',"continuous_usage_stats":true' if self.continuous_usage else ""
            after["stream_options"] = f'{{"include_usage":true{continuous}}}'
        after.update(self.extra)
        return "".join(f",{json.dumps(name)}:{value}" for name, value in after.items()).encode() + b"}"


class Completions(_OpenAi, frozen=True, kw_only=True):
    """`/v1/completions`: the prompt as text or token ids."""

    path: ClassVar[str] = "/v1/completions"

    def body(self, prompt: str | list[int], output_tokens: int, model: str) -> bytes:
        before, after = _completions_frame(self, model)
        return b'%b%b,"max_tokens":%d%b' % (before, msgspec.json.encode(prompt), output_tokens, after)


class Chat(_OpenAi, frozen=True, kw_only=True):
    """`/v1/chat/completions`: the prompt as one user message, or messages; token ids cannot be sent."""

    path: ClassVar[str] = "/v1/chat/completions"

    def body(self, prompt: str | list[int] | list[dict[str, Any]], output_tokens: int, model: str) -> bytes:
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        if not all(isinstance(message, dict) for message in messages):
            raise TypeError("a chat message is text; token ids need the completions API")
        before, after = _chat_frame(self, model)
        return b'%b%b,"max_tokens":%d%b' % (before, msgspec.json.encode(messages), output_tokens, after)


@lru_cache(maxsize=64)
def _completions_frame(endpoint: Completions, model: str) -> tuple[bytes, bytes]:
    return b'{"model":%b,"prompt":' % msgspec.json.encode(model), endpoint._fields_after_prompt()


@lru_cache(maxsize=64)
def _chat_frame(endpoint: Chat, model: str) -> tuple[bytes, bytes]:
    return b'{"model":%b,"messages":' % msgspec.json.encode(model), endpoint._fields_after_prompt()


def _typed_facts(chunk: _Chunk) -> ChunkFacts:
    choice = chunk.choices[0]
    message = choice.delta or choice.message
    has_answer = bool(choice.text)
    has_thought = False
    is_content = choice.text is not None
    if message is not None:
        has_thought = bool(message.reasoning_content or message.reasoning)
        has_answer = has_answer or bool(
            message.content or message.tool_calls or message.refusal or message.function_call
        )
        is_content = is_content or (message.content is not None and message.role is None)
    num_tokens = len(choice.token_ids) if choice.token_ids else None
    usage = None
    if chunk.usage is not None:
        details = chunk.usage.prompt_tokens_details
        cached = details.cached_tokens if details is not None else None
        usage = fields.usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens, cached)
    is_token = has_answer or has_thought or num_tokens is not None
    return ChunkFacts(
        num_tokens,
        is_token,
        is_token or is_content,
        choice.finish_reason,
        usage,
        is_reasoning=has_thought and not has_answer,
    )


def _untyped_facts(data: bytes) -> ChunkFacts:
    """Read an event that is not the usual one: usage alone, an error, several choices, odd types."""
    if not (stripped := data.strip()):
        return _NOTHING
    if stripped == b"[DONE]":
        return _DONE
    chunk = fields.read_object(data)
    error = chunk.get("error")
    if error or chunk.get("object") == "error":
        return ChunkFacts(error=message_in(error or chunk) or fields.quote(data))
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        choices = None
    usage = _untyped_usage(chunk.get("usage"), chunk.get("timings"))
    if choices is None and usage is None:
        raise EndpointDataError(f"no choices: {message_in(chunk)[:200]}")
    return _merge([_choice_facts(choice) for choice in choices or () if isinstance(choice, Mapping)], usage)


def _choice_facts(choice: Mapping[str, Any]) -> ChunkFacts:
    message = choice.get("delta") or choice.get("message")
    parts = {**message, "text": choice.get("text")} if isinstance(message, Mapping) else choice
    has_answer = any(_has_content(parts.get(name)) for name in _ANSWER_FIELDS)
    has_thought = any(_has_content(parts.get(name)) for name in _THOUGHT_FIELDS)
    is_content = parts.get("text") is not None or (
        parts.get("content") is not None and parts.get("role") is None
    )
    token_ids = choice.get("token_ids")
    num_tokens = len(token_ids) if isinstance(token_ids, list) and token_ids else None
    is_token = has_answer or has_thought or num_tokens is not None
    return ChunkFacts(
        num_tokens=num_tokens,
        is_token=is_token,
        is_content_event=is_token or is_content,
        is_reasoning=has_thought and not has_answer,
        finish_reason=fields.reason(choice.get("finish_reason")),
    )


def _has_content(value: object) -> bool:
    """Whether a text field holds text; a list holds it where one of its parts does."""
    if isinstance(value, list):
        return any(_has_content(part) for part in value)
    if isinstance(value, Mapping):
        return any(_has_content(part) for name, part in value.items() if name not in ("type", "index"))
    return isinstance(value, str) and value != ""


def _merge(choices: list[ChunkFacts], usage: Usage | None) -> ChunkFacts:
    counts = [facts.num_tokens for facts in choices if facts.is_token]
    stated = [count for count in counts if count is not None]
    return ChunkFacts(
        num_tokens=sum(stated) if stated and len(stated) == len(counts) else None,
        is_token=any(facts.is_token for facts in choices),
        is_content_event=any(facts.is_content_event for facts in choices),
        is_reasoning=any(f.is_reasoning for f in choices)
        and all(f.is_reasoning for f in choices if f.is_token),
        finish_reason=next((facts.finish_reason for facts in choices if facts.finish_reason), None),
        usage=usage,
    )


def _untyped_usage(usage: object, timings: object) -> Usage | None:
    if isinstance(usage, Mapping):
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
        return fields.usage(usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)
    if isinstance(timings, Mapping):
        # `prompt_n` leaves out what the cache held
        cached, rest = fields.count(timings.get("cache_n", 0)), fields.count(timings.get("prompt_n"))
        prompt = None if rest is None else rest + (cached or 0)
        return fields.usage(prompt, timings.get("predicted_n"), cached)
    return None
