"""Asking a target one thing at a time, and naming in words what went wrong.

A question gets three tries of two seconds; a refusal, a status and an answer that is none are answers and are
not asked again. What an answer means for the metrics is decided in `loadgen.preflight`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any

import httpx

from loadgen.endpoints.base import ChunkFacts, Endpoint, Usage
from loadgen.endpoints.errors import error_text
from loadgen.errors import TargetError
from loadgen.interpret import read_answer
from loadgen.redaction import redact
from loadgen.transport.base import End, Exchange

NUM_TRIES = 3
TRY_TIMEOUT_S = 2.0  # to connect, and between two reads
MAX_TIMEOUTS = 15  # for the whole of one answer of the model; one a token, and two, where that is less
PAGE_TIMEOUTS = 2  # for the whole of a page, such as /metrics
MAX_BYTES = 4 << 20
MAX_WORDS_CHARS = 300


@dataclass(slots=True, kw_only=True)
class Answer:
    """What came back to one probe. failure: why nothing did. num_words: words in its prompt."""

    num_words: int = 0
    status: int = 0
    content_type: str = ""
    body: bytes = b""
    clock_skew_s: float | None = None  # the server's Date against our clock, to the second
    failure: str | None = None
    error: str | None = None
    facts: list[ChunkFacts] = field(default_factory=list)
    usage: Usage | None = None
    finish_reason: str | None = None

    @property
    def is_page(self) -> bool:
        return "html" in self.content_type or self.body[:15].lstrip().lower().startswith((b"<!doc", b"<html"))

    @property
    def num_prompt_tokens(self) -> int | None:
        return self.usage.prompt_tokens if self.usage else None

    @property
    def is_stream(self) -> bool:
        return "event-stream" in self.content_type or "ndjson" in self.content_type

    @property
    def num_usages(self) -> int:
        return sum(fact.usage is not None for fact in self.facts)

    def json(self) -> Any:
        """The body decoded; None where it is no JSON or the status is no 200."""
        try:
            return json.loads(self.body) if self.status == 200 else None
        except (ValueError, RecursionError):
            return None

    def complaint(self) -> str | None:
        """Say what is wrong with the answer, None where nothing is."""
        if self.failure:
            return self.failure
        if self.is_page:
            return f"answered {self.status} with a web page ({page_title(self.body)})"
        if self.status != 200:
            return f"answered {self.status} ({self.error or excerpt(self.body, self.content_type)})"
        if self.error:
            return f"answered with an error: {self.error}"
        if self.finish_reason is None and self.usage is None and not any(f.is_token for f in self.facts):
            return f"answered 200, but no completion ({excerpt(self.body, self.content_type)})"
        return None


class Prober:
    """A client for the questions before a run; no request of it is ever a row."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        secrets: Sequence[str] = (),
        verify: bool = True,
        trust_env: bool = False,
        timeout_s: float = TRY_TIMEOUT_S,
        stop: threading.Event | None = None,
    ) -> None:
        self.url = url
        self._stop = stop or threading.Event()
        self._secrets = secrets
        self._timeout_s = timeout_s
        self.cut_after_s: float | None = None  # how long the first answer that did not end was read
        self._client = httpx.Client(
            base_url=url, headers=dict(headers), timeout=timeout_s, verify=verify, trust_env=trust_env
        )

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._client.close()

    def get(self, path: str) -> Answer:
        """GET a path below the target, or a whole URL. Raises TargetError where there is no server to ask."""
        return self._request("GET", path, b"", PAGE_TIMEOUTS)

    def get_json(self, path: str) -> Any:
        """The decoded answer to a GET; None where it is no JSON or not there."""
        return self.get(path).json()

    def post_json(self, path: str, value: Mapping[str, Any]) -> Any:
        """The decoded answer to a small POST; None where it is no JSON or not there."""
        return self._request("POST", path, json.dumps(value).encode(), PAGE_TIMEOUTS).json()

    def ask(self, endpoint: Endpoint, prompt_words: Sequence[str], output_tokens: int, model: str) -> Answer:
        """Have the model answer a prompt."""
        body = endpoint.body(" ".join(prompt_words), output_tokens, model)
        answer = self._request("POST", endpoint.path, body, min(2 + output_tokens, MAX_TIMEOUTS))
        answer.num_words = len(prompt_words)
        if answer.status == 200 and not answer.is_page:
            self._read(answer, endpoint)
        elif answer.status:
            answer.error = redact(error_text(answer.body), self._secrets)[:MAX_WORDS_CHARS]
        return answer

    def _request(self, method: str, path: str, body: bytes, num_timeouts: float) -> Answer:
        failure = ""
        for _ in range(NUM_TRIES):
            self._end_if_stopped()
            try:
                return self._try(method, path, body, num_timeouts)
            except httpx.ConnectTimeout:
                failure = "connecting timed out" + (", or it speaks no TLS" if "https:" in self.url else "")
            except httpx.ConnectError as exc:
                raise TargetError(connect_words(self.url, str(exc))) from exc
            except httpx.TimeoutException:
                failure = f"no answer within {self._timeout_s:g} s"
            except httpx.HTTPError as exc:
                failure = f"broke off ({type(exc).__name__}: {exc})"
                if "http:" in self.url:
                    failure += "; if it speaks TLS, write https:// in --target"
        return Answer(failure=f"{failure} ({NUM_TRIES} tries; --probe-timeout gives it longer)")

    def _try(self, method: str, path: str, body: bytes, num_timeouts: float) -> Answer:
        """One try. An answer that does not end (a server without max_tokens) is cut, the next ones soon."""
        headers = {"content-type": "application/json"}
        begun_s = time.monotonic()
        limit_s = self._timeout_s * (num_timeouts if self.cut_after_s is None else 0.5)
        with self._client.stream(method, path, content=body or None, headers=headers) as response:
            parts = bytearray()
            for part in response.iter_bytes():
                self._end_if_stopped()
                parts += part
                lasted_s = time.monotonic() - begun_s
                if len(parts) > MAX_BYTES or lasted_s > limit_s:
                    self.cut_after_s = self.cut_after_s or lasted_s
                    break
            else:
                parts += b"\n\n"  # ends a last event that lacks its end; one that was cut is left out
            return Answer(
                status=response.status_code,
                content_type=response.headers.get("content-type", ""),
                body=bytes(parts),
                clock_skew_s=_skew_s(response.headers.get("date")),
            )

    def _end_if_stopped(self) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt

    def _read(self, answer: Answer, endpoint: Endpoint) -> None:
        exchange = Exchange(
            index=0, request_id="", scheduled_ns=0, framed=False, status=200, ended=End.COMPLETE
        )
        exchange.headers, exchange.chunks = {"content-type": answer.content_type}, [answer.body]
        read = read_answer(exchange, endpoint)
        answer.facts, answer.usage, answer.finish_reason = read.facts, read.usage, read.finish_reason
        if error := read.error or read.malformed:
            answer.error = redact(error, self._secrets)


def models_in(answer: Answer) -> list[dict[str, Any]] | None:
    """The entries of a model list; None where the answer is none."""
    try:
        return [entry for entry in answer.json()["data"] if is_sendable(entry["id"])]
    except (KeyError, TypeError):
        return None


def is_sendable(name: object) -> bool:
    """Whether a model's name is text that a request can carry; half a surrogate pair is not."""
    return isinstance(name, str) and name == name.encode("utf-8", "replace").decode()


def native_models(prober: Prober) -> list[dict[str, Any]]:
    """What servers without OpenAI's model list say: Ollama, TGI, SGLang."""
    tags = prober.get_json("/api/tags")
    if isinstance(tags, dict) and isinstance(tags.get("models"), list):
        return [{"id": m["name"], "owned_by": "Ollama"} for m in tags["models"] if "name" in m]
    info = prober.get_json("/info")
    if isinstance(info, dict) and isinstance(info.get("model_id"), str):
        limit = info.get("max_total_tokens")
        return [{"id": info["model_id"], "owned_by": "TGI", "max_model_len": limit}]
    model = prober.get_json("/get_model_info")
    if isinstance(model, dict) and isinstance(model.get("model_path"), str):
        return [{"id": model["model_path"], "owned_by": "SGLang"}]
    return []


def _skew_s(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time() if date else None
    except ValueError:
        return None


def connect_words(url: str, reason: str) -> str:
    """Say why no connection came about, and what to do."""
    lowered = reason.lower()
    if "name or service" in lowered or "nodename" in lowered or "name resolution" in lowered:
        return f"{url}: no such host ({reason}); check the name in --target"
    if "wrong_version_number" in lowered or "wrong version number" in lowered:
        return f"{url} speaks plain HTTP, not TLS: write http:// in --target"
    if "certificate" in lowered:
        return f"{url}: its certificate is not trusted ({reason}); --insecure measures it all the same"
    return f"{url} refuses connections ({reason}); is the server running, and on this port?"


def excerpt(body: bytes, content_type: str) -> str:
    """The beginning of an answer, for a message."""
    text = " ".join(body[:200].decode("utf-8", "replace").split())
    kind = content_type.split(";")[0] or "no content type"
    return f"{kind}: {text}" if text else kind


def page_title(body: bytes) -> str:
    """The title of a web page, else its beginning."""
    found = re.search(rb"<(title|h1)[^>]*>\s*([^<]*)", body, re.IGNORECASE)
    return repr(found[2].decode("utf-8", "replace").strip()) if found else excerpt(body, "text/html")
