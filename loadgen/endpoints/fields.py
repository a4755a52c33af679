"""Reading a server's JSON field by field: what every endpoint shares.

Counts that a row cannot hold and objects that are none are refused here, once; what a field means is each
endpoint's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from loadgen.endpoints.base import EndpointDataError, Usage

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
    if value is True:  # a flag says that it ended, and no more
        return "stop"
    return None if value in (None, False, "", "None") else str(value)  # Triton writes None as text


def quote(data: bytes) -> str:
    return repr(data[:120].decode("utf-8", "replace")) + ("..." if len(data) > 120 else "")
