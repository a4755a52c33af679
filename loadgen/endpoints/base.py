"""The seam between what an API says and what a request is: bodies out, facts about each event in.

An endpoint knows one API's JSON. It decides what an event *contains*; which events were tokens, how many, and
how the request ended is decided over the whole stream in `loadgen.interpret`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

import msgspec


class EndpointDataError(ValueError):
    """An event or body that is not what the API promises; the message quotes it."""


class Framing(StrEnum):
    """How a streamed answer is cut into events."""

    EVENTS = "events"  # server-sent events
    LINES = "lines"  # a JSON document a line


class TokenEvents(StrEnum):
    """Which events of a server are one token each; found in preflight, or from a stream's own usage."""

    TEXT = "text"  # those with text
    CONTENT = "content"  # and those with empty text
    FINISH = "finish"  # and an empty one that carries the finish reason


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts in the server's own words; None where it states none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    def updated(self, later: Usage | None) -> Usage:
        """These counts, overridden by those stated later; an API may state them in two events."""
        if later is None:
            return self
        return Usage(
            self.prompt_tokens if later.prompt_tokens is None else later.prompt_tokens,
            self.completion_tokens if later.completion_tokens is None else later.completion_tokens,
            self.cached_tokens if later.cached_tokens is None else later.cached_tokens,
        )


class ChunkFacts(msgspec.Struct, frozen=True, gc=False):
    """What one event, or a whole body, contains.

    num_tokens: stated by token ids; None where not stated.
    is_token: has text, reasoning, tool calls or token ids.
    is_content_event: is_token, or content that is empty; an event of role, usage or finish alone is none.
    is_reasoning: its tokens are all thought, none of the answer.
    """

    num_tokens: int | None = None
    is_token: bool = False
    is_content_event: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    is_done: bool = False
    is_reasoning: bool = False


class Endpoint(Protocol):
    """One API of a server. Implementations are immutable and picklable."""

    @property
    def path(self) -> str:
        """Path of the API below the target's base URL."""

    @property
    def framing(self) -> Framing:
        """How its streams are cut into events."""

    @property
    def token_events(self) -> TokenEvents | None:
        """What is known of the server: which of its events are one token each; None where nothing is."""

    @property
    def ignore_eos(self) -> object:
        """What asks the server not to end before the length asked for; empty where nothing does."""

    def body(self, prompt: str | list[int], output_tokens: int, model: str) -> bytes:
        """Render a request for exactly `output_tokens` tokens; the same arguments give the same bytes."""

    def interpret(self, data: bytes) -> ChunkFacts:
        """Read one event of a stream, or an answer that was not streamed. Raises EndpointDataError."""


def with_fields(endpoint: Endpoint, **changes: Any) -> Endpoint:
    """The endpoint with those of the changes that it has a field for."""
    assert isinstance(endpoint, msgspec.Struct)
    known = {name: value for name, value in changes.items() if name in endpoint.__struct_fields__}
    return msgspec.structs.replace(endpoint, **known)


def variants_of(endpoint: Endpoint) -> list[tuple[Endpoint, str]]:
    """The API as it is, then without the extensions that some servers refuse."""
    variants = [(endpoint, "")]
    off = type(endpoint.ignore_eos)()  # False, or no fields
    for changes, refused in (
        ({"ignore_eos": off}, "ignore_eos"),
        ({"ignore_eos": off, "include_usage": False}, "ignore_eos and stream_options"),
    ):
        variant = with_fields(endpoint, **changes)
        if variant != variants[-1][0]:
            variants.append((variant, refused))
    return variants
