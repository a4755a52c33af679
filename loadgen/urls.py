"""The URL of a target: what is accepted, in one form, and whether anything listens there."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit, urlunsplit

from loadgen.errors import UsageError

API_SUFFIXES = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1")


def is_url(text: str) -> bool:
    """Say whether a text names a host to be asked over HTTP."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def base_url(target: str) -> str:
    """Normalise `--target`: scheme and host required; a trailing slash, `/v1` or API path is cut."""
    if not is_url(target):
        raise UsageError(f"--target {target!r} is not a URL such as http://127.0.0.1:8000")
    parts = urlsplit(target)
    if parts.username is not None:
        raise UsageError(
            "--target holds a user name: give credentials by --header 'Authorization: Basic ...'"
        )
    path = parts.path.rstrip("/")
    for suffix in API_SUFFIXES:
        path = path.removesuffix(suffix)
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def accepts_connections(url: str, timeout_s: float = 2.0) -> bool:
    """Say whether something still listens there."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname, port), timeout_s):
            return True
    except OSError:
        return False
