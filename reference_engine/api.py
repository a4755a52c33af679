"""The OpenAI-compatible requests that the server takes: parsed, checked, and turned into token ids.

Pure functions of the request's bytes. Whatever is wrong with a request is an ApiError with the status and the
words that the client gets; what this server cannot do (log-probabilities, several answers) is refused, never
ignored. Fields that no server agrees on are let through unread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from reference_engine.tokenizer import PromptError, Tokenizer

Body = TypeVar("Body", bound="CommonBody")

# What the engine counts in.
Int64 = Annotated[int, msgspec.Meta(ge=1 - 2**63, le=2**63 - 1)]

MAX_STOPS = 16
MAX_PROMPTS = 1024
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's own default for /v1/completions


class ApiError(Exception):
    """An answer other than 200. type and code are OpenAI's words for it."""

    def __init__(
        self, status: int, message: str, *, kind: str = "invalid_request_error", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code

    @property
    def headers(self) -> dict[str, str]:
        return {"retry-after": "1"} if self.status in (429, 503) else {}

    def body(self) -> bytes:
        error = {"message": str(self), "type": self.kind, "param": None, "code": self.code}
        return msgspec.json.encode({"error": error})


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class CommonBody(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that completions and chat share. An absent temperature is greedy: answers repeat."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    seed: Int64 | None = None
    ignore_eos: bool = False
    priority: Int64 = 0
    user: str | None = None
    n: int | None = 1
    best_of: int | None = None
    echo: bool = False
    suffix: str | None = None
    logprobs: int | bool | None = None
    stop: str | list[str] | None = None


class CompletionBody(CommonBody, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]]


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[ContentPart]


class ChatBody(CommonBody, frozen=True, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None


class TokenizeBody(CommonBody, frozen=True, kw_only=True):
    prompt: str
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What a request is checked against. num_ids: token ids from 0 up that a prompt may hold."""

    name: str
    tokenizer: Tokenizer
    num_ids: int
    max_model_len: int


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A request that passed every check, as token ids."""

    prompts: list[list[int]]
    max_tokens: int
    is_chat: bool
    is_stream: bool
    has_usage_event: bool
    stops: list[str]
    body: CommonBody


def parse_completion(data: bytes, model: ServedModel) -> Submission:
    """Parse a /v1/completions body; raises ApiError."""
    body = _decode(data, CompletionBody, model.name)
    prompts = _prompts(body.prompt, model)
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _check(body, prompts, max_tokens, model, is_chat=False)


def parse_chat(data: bytes, model: ServedModel) -> Submission:
    """Parse a /v1/chat/completions body; raises ApiError."""
    body = _decode(data, ChatBody, model.name)
    if not body.messages:
        raise ApiError(400, "messages must hold at least one message")
    turns = [(message.role, _content_text(message)) for message in body.messages]
    try:
        prompt = model.tokenizer.encode_chat(turns)
    except PromptError as error:
        raise ApiError(400, str(error)) from error
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    max_tokens = max(1, model.max_model_len - len(prompt)) if asked is None else asked
    return _check(body, [prompt], max_tokens, model, is_chat=True)


def parse_tokenize(data: bytes, model: ServedModel) -> list[int]:
    """Return the token ids of a /tokenize body; raises ApiError."""
    body = _decode(data, TokenizeBody, model.name)
    return model.tokenizer.encode(body.prompt, is_whole=body.add_special_tokens)


def _decode(data: bytes, kind: type[Body], model_name: str) -> Body:
    try:
        body = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"wrong request: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from error
    if body.model not in (None, model_name):
        message = f"the model {body.model!r} does not exist; this server has {model_name!r}"
        raise ApiError(404, message, kind="not_found_error", code="model_not_found")
    return body


def _content_text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if part.type != "text":
            raise ApiError(400, f"content parts of type {part.type!r} are not supported; use 'text'")
    return "".join(part.text for part in message.content)


def _prompts(prompt: str | list[int | str | list[int]], model: ServedModel) -> list[list[int]]:
    """Take prompts as text, as token ids, or as a list of either."""
    is_one = isinstance(prompt, str) or not prompt or isinstance(prompt[0], int)
    several: list[Any] = [prompt] if is_one else list(prompt)
    if len(several) > MAX_PROMPTS:
        raise ApiError(400, f"a request may hold {MAX_PROMPTS} prompts, not {len(several)}")
    return [_prompt_ids(one, model) for one in several]


def _prompt_ids(prompt: Any, model: ServedModel) -> list[int]:
    if isinstance(prompt, str):
        return model.tokenizer.encode(prompt)
    if not isinstance(prompt, list) or not all(isinstance(token_id, int) for token_id in prompt):
        raise ApiError(400, "a prompt is text, or token ids, which must be integers only")
    return prompt


def _check(
    body: CommonBody, prompts: list[list[int]], max_tokens: int, model: ServedModel, *, is_chat: bool
) -> Submission:
    for name in ("echo", "suffix", "logprobs"):
        if getattr(body, name):
            raise ApiError(400, f"{name} is not supported")
    for name in ("n", "best_of"):
        if getattr(body, name) not in (None, 1):
            raise ApiError(400, f"{name} must be 1")
    _check_sampling(body)
    if not all(prompts):
        raise ApiError(400, "the prompt is empty")
    for token_id in (end for prompt in prompts for end in (min(prompt), max(prompt))):
        if not 0 <= token_id < model.num_ids:  # a tokenizer too may know more than the model
            raise ApiError(400, f"token id {token_id} is outside of the vocabulary of {model.num_ids}")
    if max_tokens < 1:
        raise ApiError(400, f"max_tokens must be at least 1, not {max_tokens}")
    if not 0 <= body.min_tokens <= max_tokens:
        raise ApiError(400, f"min_tokens must be between 0 and max_tokens, not {body.min_tokens}")
    if (longest := max(map(len, prompts))) + max_tokens > model.max_model_len:
        message = (
            f"this model's context is {model.max_model_len} tokens; the prompt has {longest} and"
            f" {max_tokens} were asked for"
        )
        raise ApiError(400, message, code="context_length_exceeded")
    return Submission(
        prompts=prompts,
        max_tokens=max_tokens,
        is_chat=is_chat,
        is_stream=body.stream,
        has_usage_event=body.stream_options is not None and body.stream_options.include_usage,
        stops=_stops(body),
        body=body,
    )


def _stops(body: CommonBody) -> list[str]:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > MAX_STOPS or "" in stops:
        raise ApiError(400, f"stop must be up to {MAX_STOPS} strings, none of them empty")
    return stops


def _check_sampling(body: CommonBody) -> None:
    if body.temperature is not None and not 0 <= body.temperature <= 2:
        raise ApiError(400, f"temperature must be between 0 and 2, not {body.temperature}")
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise ApiError(400, f"top_p must be above 0 and at most 1, not {body.top_p}")
    if body.top_k is not None and body.top_k < -1:
        raise ApiError(400, f"top_k must be -1 or 0 (off) or a number of tokens, not {body.top_k}")
