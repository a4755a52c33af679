"""Reading a server's JSON field by field, and writing a request's: what every endpoint shares.

Counts that a row cannot hold and objects that are none are refused here, once; what a field means is each
endpoint's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loadgen.endpoints.base import ChunkFacts, EndpointDataError, Usage
from loadgen.endpoints.errors import message_in

MAX_COUNT = 2**31 - 1

Extra = tuple[tuple[str, str], ...]  # further fields of a body: JSON text by name


def read_object(data: bytes) -> Mapping[str, Any]:
    """Decode one JSON object; EndpointDataError quotes anything else."""
    try:
        value: object = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as exc:
        raise EndpointDataError(f"not JSON: {quote(data)}") from exc
    if not isinstance(value, Mapping):
        raise EndpointDataError(f"not an object: {quote(data)}")
    return value


def error_in(answer: Mapping[str, Any], data: bytes) -> ChunkFacts | None:
    """The error that an event carries under `error`, in the server's words; None where there is none."""
    error = answer.get("error")
    return ChunkFacts(error=message_in(error) or quote(data)) if error else None


def count(value: object) -> int | None:
    """A count that a row can hold; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT:
        return value
    return None


def usage(prompt: object, completion: object, cached: object = None) -> Usage | None:
    """Token counts where the server states any."""
    stated = Usage(count(prompt), count(completion), count(cached))
    return None if stated.prompt_tokens is None and stated.completion_tokens is None else stated


def reason(value: object) -> str | None:
    """A finish reason as text, whatever type the server gives it."""
    if isinstance(value, Mapping):
        value = value.get("type")
    return None if value in (None, False, "", "None") else str(value)  # Triton writes None as text


def quote(data: bytes) -> str:
    return repr(data[:120].decode("utf-8", "replace")) + ("..." if len(data) > 120 else "")


def render(body: dict[str, Any], extra: Extra) -> bytes:
    """A body with further fields laid over it; objects are merged, all else is replaced."""
    for name, text in extra:
        value: object = msgspec.json.decode(text)
        before = body.get(name)
        body[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return msgspec.json.encode(body)


def prompt_field(prompt: str | Sequence[int], text_name: str, ids_name: str | None) -> dict[str, Any]:
    """The prompt under the name that the API has for text, or for token ids."""
    if isinstance(prompt, str):
        return {text_name: prompt}
    if ids_name is None:
        raise TypeError("this API takes text only; token ids need the completions API")
    return {ids_name: list(prompt)}
