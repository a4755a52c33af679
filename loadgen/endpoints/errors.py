"""The server's own words about what went wrong, out of whatever shape it put them in."""

from __future__ import annotations

import json
import re

_KEYS = ("error", "message", "detail", "msg", "errors", "title", "reason")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # among them what moves a terminal's cursor
_MAX_DEPTH = 6
_MAX_BYTES = 64 * 1024


def error_text(body: bytes) -> str:
    """Find the message in an error body: `error.message`, `detail` and their kin, else the body as text."""
    text = body[:_MAX_BYTES].decode("utf-8", "replace").strip().removeprefix("data:")
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return one_line(text)
    return message_in(value) or one_line(text)


def message_in(value: object, depth: int = 0) -> str:
    """Find the message in a decoded error; empty where there is none."""
    if isinstance(value, str):
        return one_line(value)
    if depth == _MAX_DEPTH or not value:
        return ""
    if isinstance(value, list):
        return "; ".join(filter(None, (message_in(item, depth + 1) for item in value[:5])))
    if isinstance(value, dict):
        for key in _KEYS:
            if found := message_in(value.get(key), depth + 1):
                return found
        return one_line(json.dumps(value))
    return str(value)


def one_line(text: str) -> str:
    """Put text that came over the wire on one line that any terminal and any file can hold."""
    whole = text.encode("utf-8", "replace").decode()  # half a surrogate pair fits in no file
    return " ".join(_CONTROL.sub(" ", whole).split())
