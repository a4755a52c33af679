"""A few questions to the target before the load: is it there, what does it speak, does it do as asked?

Decides the protocol, the model and how many tokens the server adds to a prompt (chat template, BOS), and
tells apart the ways in which a target can be wrong. Its requests are never rows. What a server does not say
(usage, context length) is noted, not guessed.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from loadgen.endpoints import ENDPOINTS
from loadgen.endpoints.base import Endpoint, EndpointDataError, Usage
from loadgen.endpoints.errors import error_text
from loadgen.endpoints.openai import Chat, Completions
from loadgen.errors import TargetError, UsageError
from loadgen.sse import SseParser

PROBE_WORDS = (24, 96)
PROBE_OUTPUT_TOKENS = 8
MAX_WORDS_CHARS = 300
AUTO_ORDER = ("completions", "chat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What the target turned out to be.

    endpoint: the API, without the fields that this server refuses.
    prompt_offset: tokens that the server adds to every prompt; None where it does not report usage.
    context_tokens: longest prompt plus answer, where the server says.
    notes: one sentence each, what was found and what it means for the metrics.
    """

    api: str
    endpoint: Endpoint
    model: str
    prompt_offset: int | None
    context_tokens: int | None
    notes: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """The same as JSON-able facts for the manifest."""
        return {name: getattr(self, name) for name in ("api", "model", "prompt_offset", "context_tokens")} | {
            "notes": list(self.notes)
        }


def base_url(target: str) -> str:
    """Normalise `--target`: scheme and host required, a trailing `/v1` or slash is cut."""
    parts = urlsplit(target)
    try:
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_complete = False
    if not is_complete:
        raise UsageError(f"--target {target!r} is not a URL such as http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def probe(
    url: str,
    *,
    api: str,
    model: str | None,
    headers: Mapping[str, str],
    words: Sequence[str],
    verify: bool = True,
    timeout_s: float = 30.0,
) -> Preflight:
    """Ask the target what it is. url: as from `base_url`; words: one-token words for the probes.

    Raises TargetError, in one line, where the target cannot be measured.
    """
    with httpx.Client(base_url=url, headers=dict(headers), timeout=timeout_s, verify=verify) as client:
        listed = _list_models(client, url)
        name = model or _first_model(listed, url)
        candidates = AUTO_ORDER if api == "auto" else (api,)
        notes: list[str] = []
        chosen, endpoint, first = _first_that_answers(client, url, candidates, name, words, notes)
        second = _ask(client, endpoint, name, words[: PROBE_WORDS[1]], 1)
        offset = _prompt_offset(first, second, notes)
        _check_lengths(_ask(client, endpoint, name, words[:8], PROBE_OUTPUT_TOKENS), notes)
    return Preflight(
        api=chosen,
        endpoint=endpoint,
        model=name,
        prompt_offset=offset,
        context_tokens=_context_tokens(listed, name),
        notes=tuple(notes),
    )


@dataclass(slots=True)
class _Answer:
    """One probe's answer. num_words: words in its prompt."""

    num_words: int
    status: int
    content_type: str
    body: bytes
    num_token_events: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None

    def complaint(self) -> str | None:
        """Say what is wrong with the answer, None where nothing is."""
        if self.status != 200:
            return f"answered {self.status} ({self.error or _excerpt(self.body, self.content_type)})"
        if self.error:
            return f"answered with an error: {self.error}"
        if self.finish_reason is None and self.usage is None and not self.num_token_events:
            return f"answered 200, but no completion ({_excerpt(self.body, self.content_type)})"
        return None


def _excerpt(body: bytes, content_type: str) -> str:
    text = " ".join(body[:200].decode("utf-8", "replace").split())
    kind = content_type.split(";")[0] or "no content type"
    return f"{kind}: {text}" if text else kind


def _get(client: httpx.Client, url: str, path: str) -> httpx.Response:
    try:
        return client.get(path)
    except httpx.ConnectTimeout as exc:
        raise TargetError(f"{url} does not answer: connecting timed out") from exc
    except httpx.ConnectError as exc:
        raise TargetError(f"{url} refuses connections ({exc}); is the server running?") from exc
    except httpx.HTTPError as exc:
        raise TargetError(f"{url} does not answer HTTP ({type(exc).__name__}: {exc})") from exc


def _list_models(client: httpx.Client, url: str) -> list[dict[str, Any]]:
    response = _get(client, url, "/v1/models")
    if response.status_code in (401, 403):
        raise TargetError(
            f"{url} wants a key (GET /v1/models answered {response.status_code}); "
            "set BENCH_API_KEY or give --header 'Authorization: Bearer ...'"
        )
    try:
        models = response.json()["data"] if response.status_code == 200 else []
        return [entry for entry in models if isinstance(entry.get("id"), str)]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        kind = response.headers.get("content-type", "")
        raise TargetError(
            f"{url} is not an OpenAI-compatible server: GET /v1/models answered "
            f"{_excerpt(response.content, kind)}"
        ) from exc


def _first_model(listed: list[dict[str, Any]], url: str) -> str:
    if not listed:
        raise TargetError(
            f"{url} lists no model at /v1/models; is it an OpenAI-compatible server? Else say --model NAME"
        )
    return str(listed[0]["id"])


def _context_tokens(listed: list[dict[str, Any]], model: str) -> int | None:
    for entry in listed:
        length = entry.get("max_model_len")
        if entry["id"] == model and isinstance(length, int) and length > 0:
            return length
    return None


def _first_that_answers(
    client: httpx.Client,
    url: str,
    candidates: Sequence[str],
    model: str,
    words: Sequence[str],
    notes: list[str],
) -> tuple[str, Endpoint, _Answer]:
    """Find the first API that answers, leaving out fields that the server refuses."""
    complaints = []
    for name in candidates:
        for endpoint, note in _variants(ENDPOINTS[name]):
            answer = _ask(client, endpoint, model, words[: PROBE_WORDS[0]], 1)
            complaint = answer.complaint()
            if complaint is None:
                notes.extend(filter(None, [note]))
                return name, endpoint, answer
            if note == "":
                complaints.append(f"POST {endpoint.path} {complaint}")
            if answer.status not in (400, 422):
                break
    raise TargetError(f"{url} cannot be measured: " + "; ".join(complaints))


def _variants(endpoint: Completions | Chat) -> list[tuple[Endpoint, str]]:
    """The API as it is, then without the extensions that some servers refuse, and what that means."""
    without_eos = replace(endpoint, ignore_eos=False)
    without_usage = replace(without_eos, include_usage=False)
    return [
        (endpoint, ""),
        (without_eos, "the server refuses ignore_eos: answers may end before the length asked for"),
        (
            without_usage,
            "the server refuses ignore_eos and stream_options: lengths are its own, counts unknown",
        ),
    ]


def _ask(
    client: httpx.Client, endpoint: Endpoint, model: str, words: Sequence[str], output_tokens: int
) -> _Answer:
    body = endpoint.body(" ".join(words), output_tokens, model)
    try:
        response = client.post(endpoint.path, content=body, headers={"content-type": "application/json"})
    except httpx.HTTPError as exc:
        raise TargetError(
            f"{client.base_url} broke off a probe of {endpoint.path} ({type(exc).__name__}: {exc})"
        ) from exc
    kind = response.headers.get("content-type", "")
    answer = _Answer(len(words), response.status_code, kind, response.content)
    if response.status_code != 200:
        answer.error = error_text(response.content)[:MAX_WORDS_CHARS]
        return answer
    try:
        if "event-stream" in kind:
            facts = [endpoint.interpret(event.data) for event in SseParser().feed(response.content + b"\n\n")]
        else:
            facts = [endpoint.interpret_body(response.content)]
    except EndpointDataError as exc:
        answer.error = str(exc)
        return answer
    for fact in facts:
        answer.num_token_events += fact.is_token
        answer.finish_reason = fact.finish_reason or answer.finish_reason
        answer.usage = fact.usage or answer.usage
        answer.error = fact.error or answer.error
    return answer


def _prompt_offset(short: _Answer, long: _Answer, notes: list[str]) -> int | None:
    """Tokens that the server adds to a prompt, from two prompts of known length."""
    few = short.usage.prompt_tokens if short.usage else None
    many = long.usage.prompt_tokens if long.usage else None
    if few is None or many is None:
        notes.append("the server reports no usage: prompt lengths are as planned, not as counted")
        return None
    slope = (many - few) / (long.num_words - short.num_words)
    if slope != 1:
        notes.append(
            f"the server counts {slope:.3f} tokens for each one-token word: prompts are longer than planned"
        )
    return few - round(slope * short.num_words)


def _check_lengths(answer: _Answer, notes: list[str]) -> None:
    """Note where the server does not stream, does not count, or does not give the length asked for."""
    if "event-stream" not in answer.content_type:
        notes.append("the server does not stream: there is no first token apart from the last")
    produced = answer.usage.completion_tokens if answer.usage else None
    if produced is None:
        notes.append("the server reports no usage: output tokens are counted from events, or unknown")
    elif produced != PROBE_OUTPUT_TOKENS:
        notes.append(
            f"asked for {PROBE_OUTPUT_TOKENS} output tokens, the server gave {produced}: lengths are its own"
        )
    if produced and answer.num_token_events not in (0, produced):
        notes.append(
            f"{produced / answer.num_token_events:.2g} tokens an event: event gaps are not token gaps"
        )


def accepts_connections(url: str, timeout_s: float = 2.0) -> bool:
    """Say whether something still listens there."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname, port), timeout_s):
            return True
    except OSError:
        return False
