"""SGLang's own `/generate`: text and token count grow from event to event.

`text` is the whole answer so far, so that an event without a new token repeats it; `meta_info` says how many
tokens there are, which tells how many each event brought. The OpenAI APIs of SGLang are in `openai`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from loadgen.endpoints.base import ChunkFacts, EndpointDataError, Framing, TokenEvents
from loadgen.endpoints.fields import Extra, error_in, prompt_field, quote, read_object, reason, render, usage


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangGenerate:
    """`POST /generate`: the prompt as text or token ids."""

    framing: ClassVar[Framing] = Framing.EVENTS
    path: ClassVar[str] = "/generate"
    token_events: TokenEvents | None = None
    stream: bool = True
    ignore_eos: bool = True
    extra: Extra = ()

    def body(self, prompt: str | list[int], output_tokens: int, model: str) -> bytes:  # noqa: ARG002
        sampling = {"max_new_tokens": output_tokens, "temperature": 0}
        if self.ignore_eos:
            sampling["ignore_eos"] = True
        prompt_of = prompt_field(prompt, "text", "input_ids")
        return render({**prompt_of, "sampling_params": sampling, "stream": self.stream}, self.extra)

    def interpret(self, data: bytes) -> ChunkFacts:
        if data.strip() == b"[DONE]":
            return ChunkFacts(is_done=True)
        answer = read_object(data)
        if (error := error_in(answer, data)) is not None:
            return error
        meta = answer.get("meta_info")
        if not isinstance(meta, Mapping):
            raise EndpointDataError(f"no meta_info: {quote(data)}")
        has_text = bool(answer.get("text") or answer.get("output_ids"))
        return ChunkFacts(
            is_token=has_text,
            is_content_event=True,
            has_choice=True,
            finish_reason=reason(meta.get("finish_reason")),
            usage=usage(meta.get("prompt_tokens"), meta.get("completion_tokens"), meta.get("cached_tokens")),
        )
