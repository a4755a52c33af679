"""The bytes of an OpenAI-compatible answer, built once and shared by every stream that needs the same ones.

Decides what each event holds; when it is written is the server's business. Tokens are the word ` w`, so that
a count by words is right. A chat stream opens with a role-only event beside the response head: a client
that takes it for the first token reports a TTFT near zero.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MODEL = "golden"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """Everything that the bytes of an answer depend on.

    has_counts: each event says how many tokens there have been, as where events hold several and a client
    asks for `continuous_usage_stats`.
    """

    is_chat: bool
    num_tokens: int
    tokens_per_event: int = 1
    prompt_tokens: int = 0
    has_usage: bool = True
    has_counts: bool = False


def read_request(body: bytes, is_chat: bool, tokens_per_event: int) -> tuple[AnswerShape, bool]:
    """Return the shape of the answer that a request body asks for, and whether it is to be streamed."""
    asked = json.loads(body)
    num_tokens = asked.get("max_completion_tokens") or asked.get("max_tokens", 16)
    if is_chat:
        prompt_tokens = sum(len(message["content"].split()) for message in asked["messages"])
    else:
        prompt = asked["prompt"]
        prompt_tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
    options = asked.get("stream_options") or {}
    shape = AnswerShape(
        is_chat=is_chat,
        num_tokens=int(num_tokens),
        tokens_per_event=tokens_per_event,
        prompt_tokens=prompt_tokens,
        has_usage=bool(options.get("include_usage")),
        has_counts=tokens_per_event > 1 and bool(options.get("continuous_usage_stats")),
    )
    return shape, bool(asked.get("stream"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBytes:
    """One streamed answer: `head` at once, `tokens` on schedule, `tail` (usage, [DONE], last chunk) after."""

    head: bytes
    tokens: tuple[bytes, ...]
    tail: bytes


@lru_cache(maxsize=4096)
def stream_bytes(shape: AnswerShape) -> StreamBytes:
    """Render a streamed answer; equal shapes get the same object."""
    head = STREAM_HEAD
    if shape.is_chat:
        head += _framed(_sse(_chat_event({"role": "assistant", "content": ""})))
    tail = _framed(_sse(_usage_event(shape))) if shape.has_usage else b""
    tail += _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return StreamBytes(
        head=head,
        tokens=_token_events(shape.is_chat, shape.num_tokens, shape.tokens_per_event, shape.has_counts),
        tail=tail,
    )


def whole_body(shape: AnswerShape) -> bytes:
    """Render the answer to a request that asked for no stream, head included."""
    text = " w" * shape.num_tokens
    said = {"message": {"role": "assistant", "content": text}} if shape.is_chat else {"text": text}
    answer = _envelope(shape.is_chat, "chat.completion" if shape.is_chat else "text_completion")
    answer["choices"] = [{"index": 0, **said, "finish_reason": "length"}]
    return json_response(answer | {"usage": _usage(shape)})


def json_response(document: dict[str, Any], *, status: str = "200 OK") -> bytes:
    """Render a JSON answer with its head."""
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@lru_cache(maxsize=512)
def _token_events(
    is_chat: bool, num_tokens: int, tokens_per_event: int, has_counts: bool
) -> tuple[bytes, ...]:
    if num_tokens == 0:
        return ()
    num_full, rest = divmod(num_tokens - 1, tokens_per_event)
    sizes = [tokens_per_event] * num_full + [rest + 1]
    totals: Iterable[int | None] = itertools.accumulate(sizes) if has_counts else itertools.repeat(None)
    ends = [None] * num_full + ["length"]
    return tuple(
        _token_event(is_chat, size, end, total) for size, end, total in zip(sizes, ends, totals, strict=False)
    )


@lru_cache(maxsize=64)
def _token_event(is_chat: bool, num_words: int, finish_reason: str | None, total: int | None) -> bytes:
    text = " w" * num_words
    event = _chat_event({"content": text}, finish_reason) if is_chat else _text_event(text, finish_reason)
    return _framed(_sse(event if total is None else event | {"usage": {"completion_tokens": total}}))


def _chat_event(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _envelope(True, "chat.completion.chunk") | {"choices": [choice]}


def _text_event(text: str, finish_reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return _envelope(False, "text_completion") | {"choices": [choice]}


def _usage_event(shape: AnswerShape) -> dict[str, Any]:
    kind = "chat.completion.chunk" if shape.is_chat else "text_completion"
    return _envelope(shape.is_chat, kind) | {"choices": [], "usage": _usage(shape)}


def _usage(shape: AnswerShape) -> dict[str, int]:
    return {
        "prompt_tokens": shape.prompt_tokens,
        "completion_tokens": shape.num_tokens,
        "total_tokens": shape.prompt_tokens + shape.num_tokens,
    }


def _envelope(is_chat: bool, kind: str) -> dict[str, Any]:
    answer_id = "chatcmpl-golden" if is_chat else "cmpl-golden"
    return {"id": answer_id, "object": kind, "created": 1700000000, "model": MODEL}


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def _framed(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
