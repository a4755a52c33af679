"""llama.cpp's own `/completion`: token ids in each event, the server's timings in the last.

Its OpenAI APIs are in `openai`; this one also streams the tokens whose bytes are no text yet, so that each
token has its event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from loadgen.endpoints.base import ChunkFacts, EndpointDataError, Framing, TokenEvents
from loadgen.endpoints.fields import (
    Extra,
    count,
    error_in,
    prompt_field,
    quote,
    read_object,
    reason,
    render,
    usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppCompletion:
    """`POST /completion`: the prompt as text or token ids."""

    framing: ClassVar[Framing] = Framing.EVENTS
    path: ClassVar[str] = "/completion"
    token_events: TokenEvents | None = None
    stream: bool = True
    ignore_eos: bool = True
    extra: Extra = ()

    def body(self, prompt: str | list[int], output_tokens: int, model: str) -> bytes:  # noqa: ARG002
        body = {
            **prompt_field(prompt, "prompt", "prompt"),
            "n_predict": output_tokens,
            "temperature": 0,
            "stream": self.stream,
            "return_tokens": True,
        }
        return render(body | ({"ignore_eos": True} if self.ignore_eos else {}), self.extra)

    def interpret(self, data: bytes) -> ChunkFacts:
        answer = read_object(data)
        if (error := error_in(answer, data)) is not None:
            return error
        if "content" not in answer:
            raise EndpointDataError(f"no content: {quote(data)}")
        ids = answer.get("tokens")
        num_tokens = len(ids) if isinstance(ids, list) and ids else None
        is_token = bool(answer["content"]) or num_tokens is not None
        is_last = answer.get("stop") is True
        stated = None
        if is_last:
            timings = answer.get("timings")
            cached = count(timings.get("cache_n")) if isinstance(timings, Mapping) else None
            stated = usage(answer.get("tokens_evaluated"), answer.get("tokens_predicted"), cached)
        return ChunkFacts(
            num_tokens=num_tokens,
            is_token=is_token,
            is_content_event=is_token or not is_last,
            has_choice=True,
            finish_reason=(reason(answer.get("stop_type")) or "stop") if is_last else None,
            usage=stated,
        )
