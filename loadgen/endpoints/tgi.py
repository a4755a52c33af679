"""Text Generation Inference: `/generate_stream`, one token an event, the account of the request in the last.

TGI has no way to be told to ignore its end token; the lengths of the answers are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from loadgen.endpoints.base import ChunkFacts, EndpointDataError, Framing, TokenEvents
from loadgen.endpoints.fields import Extra, error_in, prompt_field, quote, read_object, reason, render, usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiGenerate:
    """`POST /generate_stream`: the prompt as text."""

    framing: ClassVar[Framing] = Framing.EVENTS
    path: ClassVar[str] = "/generate_stream"
    token_events: TokenEvents | None = None
    extra: Extra = ()

    def body(self, prompt: str | list[int], output_tokens: int, model: str) -> bytes:  # noqa: ARG002
        parameters = {"max_new_tokens": output_tokens, "do_sample": False, "details": True}
        return render({**prompt_field(prompt, "inputs", None), "parameters": parameters}, self.extra)

    def interpret(self, data: bytes) -> ChunkFacts:
        answer = read_object(data)
        if (error := error_in(answer, data)) is not None:
            return error
        details = answer.get("details") or {}
        token = answer.get("token")
        if not isinstance(details, Mapping) or ("token" not in answer and "generated_text" not in answer):
            raise EndpointDataError(f"no token: {quote(data)}")
        is_token = isinstance(token, Mapping)
        return ChunkFacts(
            num_tokens=1 if is_token else None,
            is_token=is_token,
            is_content_event=is_token,
            has_choice=True,
            finish_reason=reason(details.get("finish_reason")),
            usage=usage(details.get("input_length"), details.get("generated_tokens")),
        )
