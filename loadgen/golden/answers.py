"""The bytes of an OpenAI-compatible answer, built once and shared by every stream that needs the same ones.

Decides what each event holds; when it is written is the server's business. Tokens are the word ` w`, so that
a count by words is right. A chat stream opens with a role-only event beside the response head: a client
that takes it for the first token reports a TTFT near zero.
"""

from __future__ import annotations

import json
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
    """Everything that the bytes of an answer depend on."""

    is_chat: bool
    num_tokens: int
    tokens_per_event: int = 1
    prompt_tokens: int = 0
    has_usage: bool = True


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
        head=head, tokens=_token_events(shape.is_chat, shape.num_tokens, shape.tokens_per_event), tail=tail
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
def _token_events(is_chat: bool, num_tokens: int, tokens_per_event: int) -> tuple[bytes, ...]:
    if num_tokens == 0:
        return ()
    num_full, rest = divmod(num_tokens - 1, tokens_per_event)
    full = _token_event(is_chat, tokens_per_event, None)
    return (*[full] * num_full, _token_event(is_chat, rest + 1, "length"))


@lru_cache(maxsize=64)
def _token_event(is_chat: bool, num_words: int, finish_reason: str | None) -> bytes:
    text = " w" * num_words
    event = _chat_event({"content": text}, finish_reason) if is_chat else _text_event(text, finish_reason)
    return _framed(_sse(event))


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
