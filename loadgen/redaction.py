"""Keys and credentials: which values are secret, and keeping them out of what is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "***"
MIN_SECRET_CHARS = 6  # shorter values are no keys, and masking them would mangle ordinary words


def secrets_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The values in headers that must not be written anywhere, longest first; `Bearer x` and x are two."""
    values = {*headers.values(), *(value.rpartition(" ")[2] for value in headers.values())}
    return tuple(sorted((v for v in values if len(v) >= MIN_SECRET_CHARS), key=len, reverse=True))


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret in it masked: servers like to quote the key that they refuse."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def redacted(value: Any, secrets: Sequence[str]) -> Any:
    """The same for every text in a JSON-able value."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, dict):
        return {name: redacted(item, secrets) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item, secrets) for item in value]
    return value
