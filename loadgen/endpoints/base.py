"""The seam between what an API says and what a request is: bodies out, facts about each event in.

An endpoint knows one API's JSON. It decides what an event *contains*; which events were tokens, how many, and
how the request ended is decided over the whole stream in `loadgen.interpret`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

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
    has_choice: False for a usage-only event.
    """

    num_tokens: int | None = None
    is_token: bool = False
    is_content_event: bool = False
    has_choice: bool = False
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

    def body(self, prompt: str | list[int], output_tokens: int, model: str) -> bytes:
        """Render a request for exactly `output_tokens` tokens; the same arguments give the same bytes."""

    def interpret(self, data: bytes) -> ChunkFacts:
        """Read one event of a stream, or an answer that was not streamed. Raises EndpointDataError."""
