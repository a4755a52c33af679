"""Ollama's own `/api/generate`: JSON lines instead of server-sent events.

The prompt goes in raw, without the model's template. Ollama cannot be told to ignore its end token; the
lengths of the answers are its own. Its OpenAI APIs are in `openai`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from loadgen.endpoints.base import ChunkFacts, EndpointDataError, Framing, TokenEvents
from loadgen.endpoints.fields import Extra, error_in, prompt_field, quote, read_object, reason, render, usage


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaGenerate:
    """`POST /api/generate`: the prompt as text."""

    framing: ClassVar[Framing] = Framing.LINES
    path: ClassVar[str] = "/api/generate"
    token_events: TokenEvents | None = None
    stream: bool = True
    extra: Extra = ()

    def body(self, prompt: str | list[int], output_tokens: int, model: str) -> bytes:
        body = {
            "model": model,
            **prompt_field(prompt, "prompt", None),
            "raw": True,
            "stream": self.stream,
            "options": {"num_predict": output_tokens, "temperature": 0},
        }
        return render(body, self.extra)

    def interpret(self, data: bytes) -> ChunkFacts:
        answer = read_object(data)
        if (error := error_in(answer, data)) is not None:
            return error
        if "response" not in answer and "done" not in answer:
            raise EndpointDataError(f"no response: {quote(data)}")
        has_answer, has_thinking = bool(answer.get("response")), bool(answer.get("thinking"))
        is_last = answer.get("done") is True
        return ChunkFacts(
            is_token=has_answer or has_thinking,
            is_content_event=has_answer or has_thinking or not is_last,
            is_reasoning=has_thinking and not has_answer,
            has_choice=True,
            finish_reason=(reason(answer.get("done_reason")) or "stop") if is_last else None,
            usage=usage(answer.get("prompt_eval_count"), answer.get("eval_count")),
        )
