"""Stands between HTTP connections and the engine process: routes, and which answer waits for what.

One asyncio loop, no torch. A request is checked here, so the engine only sees what it can serve; the head of
a stream leaves with its first token, so that a refusal by the engine still has a status of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import msgspec

from reference_engine.answers import Answer, Choice, http_chunk
from reference_engine.api import (
    ApiError,
    ServedModel,
    Submission,
    parse_chat,
    parse_completion,
    parse_tokenize,
)
from reference_engine.channel import (
    Cached,
    Cancel,
    FrameSplitter,
    FromEngine,
    GetLog,
    GetStatus,
    Log,
    Ready,
    Refused,
    Shutdown,
    Status,
    Submit,
    ToEngine,
    Tokens,
    encode_frame,
    unpack_tokens,
)
from reference_engine.connection import Connection, HttpRequest
from reference_engine.metrics import CONTENT_TYPE, Histogram, render
from reference_engine.sequence import FinishReason
from reference_engine.steplog import NUM_VALUES, requests_table, steps_table

PARQUET = "application/vnd.apache.parquet"


@dataclass(slots=True)
class InFlight:
    """A prompt that the engine has. last_ns: when it arrived, then when its latest token left."""

    answer: Answer
    choice: Choice
    connection: Connection
    last_ns: int


class EngineLink(asyncio.Protocol):
    """The HTTP process's end of the channel; hands each message to the frontend."""

    def __init__(self, on_message: Callable[[FromEngine], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._splitter = FrameSplitter()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for payload in self._splitter.feed(data):
            self._on_message(self._decoder.decode(payload))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._on_lost()

    def send(self, message: ToEngine) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(message))


class Frontend:
    """The server's state: is the engine ready, and who waits for what."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self._started_s = int(time.time())
        self._in_flight: dict[int, InFlight] = {}
        self._answers: dict[Connection, Answer] = {}
        self._waiters: dict[int, tuple[Connection, str]] = {}
        self._next_handle = 0
        self._first_token_times = Histogram()
        self._gaps = Histogram()
        self._is_draining = False
        self.link = EngineLink(self._on_message, self._on_engine_lost)
        self.facts = Ready(num_params=0, device="", dtype="", kv_tokens=0)
        self.ready = asyncio.Event()
        self.engine_gone = asyncio.Event()
        self.drained = asyncio.Event()
        self.drained.set()
        self._routes: dict[tuple[str, str], Callable[[HttpRequest, Connection], None]] = {
            ("POST", "/v1/completions"): self._complete,
            ("POST", "/v1/chat/completions"): self._chat,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/steps"): self._ask_engine,
            ("GET", "/requests"): self._ask_engine,
            ("GET", "/metrics"): self._ask_engine,
            ("POST", "/tokenize"): self._tokenize,
        }

    def start_drain(self) -> None:
        """Take no further requests; those in flight go on."""
        self._is_draining = True

    def stop_engine(self) -> None:
        """Tell the engine to write its logs and leave."""
        self.link.send(Shutdown())

    # What connections ask for.

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        route = self._routes.get((request.method, request.path))
        try:
            if route is None:
                raise self._no_route(request)
            route(request, connection)
        except ApiError as error:
            connection.respond(error.status, error.body(), headers=error.headers)

    def _no_route(self, request: HttpRequest) -> ApiError:
        if any(path == request.path for _, path in self._routes):
            return ApiError(405, f"{request.method} is not allowed on {request.path}")
        return ApiError(404, f"there is nothing at {request.path}", kind="not_found_error")

    def on_lost(self, connection: Connection) -> None:
        """The client went away: whatever it waited for is cancelled."""
        if (answer := self._answers.get(connection)) is not None:
            self._abandon(answer, FinishReason.CANCELLED)

    def _complete(self, request: HttpRequest, connection: Connection) -> None:
        self._submit(parse_completion(bytes(request.body), self.model), request, connection)

    def _chat(self, request: HttpRequest, connection: Connection) -> None:
        self._submit(parse_chat(bytes(request.body), self.model), request, connection)

    def _submit(self, submission: Submission, request: HttpRequest, connection: Connection) -> None:
        arrived_ns = time.monotonic_ns()
        self._require_ready()
        request_id = request.headers.get("x-request-id") or f"{self._started_s:x}-{self._next_handle}"
        answer = self._answers[connection] = Answer(
            request_id=request_id,
            submission=submission,
            model=self.model.name,
            created_s=int(time.time()),
            new_text=self.model.tokenizer.detokenizer,
        )
        self.drained.clear()
        body = submission.body
        for choice, prompt in zip(answer.choices, submission.prompts, strict=True):
            handle = self._next_handle
            self._next_handle += 1
            self._in_flight[handle] = InFlight(answer, choice, connection, arrived_ns)
            answer.waits_for.add(handle)
            self.link.send(
                Submit(
                    handle=handle,
                    request_id=request_id if len(answer.choices) == 1 else f"{request_id}-{choice.index}",
                    prompt=prompt,
                    max_tokens=submission.max_tokens,
                    arrived_ns=arrived_ns,
                    min_tokens=body.min_tokens,
                    ignore_eos=body.ignore_eos,
                    priority=body.priority,
                    user=body.user or "",
                    temperature=body.temperature or 0.0,
                    top_p=body.top_p or 1.0,
                    top_k=max(0, body.top_k or 0),
                    # Without a seed every prompt draws numbers of its own.
                    seed=abs(body.seed) if body.seed is not None else handle,
                )
            )

    def _require_ready(self) -> None:
        if self.engine_gone.is_set():
            raise ApiError(503, "the engine has stopped", kind="service_unavailable")
        if not self.ready.is_set():
            raise ApiError(503, "the engine is loading", kind="service_unavailable")
        if self._is_draining:
            raise ApiError(503, "the server is shutting down", kind="service_unavailable")

    def _models(self, _request: HttpRequest, connection: Connection) -> None:
        model = {
            "id": self.model.name,
            "object": "model",
            "created": self._started_s,
            "owned_by": "reference_engine",
            "max_model_len": self.model.max_model_len,
        }
        connection.respond(200, msgspec.json.encode({"object": "list", "data": [model]}))

    def _health(self, _request: HttpRequest, connection: Connection) -> None:
        self._require_ready()
        connection.respond(200, b'{"status":"ok"}')

    def _tokenize(self, request: HttpRequest, connection: Connection) -> None:
        ids = parse_tokenize(bytes(request.body), self.model)
        about = {"count": len(ids), "max_model_len": self.model.max_model_len, "tokens": ids}
        connection.respond(200, msgspec.json.encode(about))

    def _ask_engine(self, request: HttpRequest, connection: Connection) -> None:
        self._require_ready()
        ticket = self._next_handle
        self._next_handle += 1
        self._waiters[ticket] = (connection, request.path)
        self.link.send(GetStatus(ticket) if request.path == "/metrics" else GetLog(ticket))

    # What the engine says.

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case Tokens():
                now_ns = time.monotonic_ns()
                for handle, token_id, reason in unpack_tokens(message):
                    if (in_flight := self._in_flight.get(handle)) is not None:
                        times = self._gaps if in_flight.choice.num_tokens else self._first_token_times
                        times.observe((now_ns - in_flight.last_ns) / 1e9)
                        in_flight.last_ns = now_ns
                        self._on_token(handle, in_flight, token_id, reason)
            case Cached(handle, num_tokens):
                if (in_flight := self._in_flight.get(handle)) is not None:
                    in_flight.choice.num_cached = num_tokens
            case Refused(handle, status, text):
                if (in_flight := self._in_flight.get(handle)) is not None:
                    self._fail(in_flight, ApiError(status, text))
            case Log():
                self._on_log(message)
            case Status(ticket, status):
                connection, _ = self._waiters.pop(ticket)
                text = render(status, self._first_token_times, self._gaps)
                connection.respond(200, text.encode(), CONTENT_TYPE)
            case Ready():
                self.facts = message
                self.ready.set()

    def _on_token(self, handle: int, in_flight: InFlight, token_id: int, reason: FinishReason | None) -> None:
        answer, choice, connection = in_flight.answer, in_flight.choice, in_flight.connection
        choice.take(token_id, reason)
        if choice.reason is not None:
            self._drop(handle)
            if reason is None:
                self.link.send(Cancel(handle, choice.reason))
        if not answer.is_stream:
            if not answer.waits_for:
                connection.respond(200, answer.body(), headers=answer.headers)
            return
        head = b"" if answer.has_begun else connection.start_stream(answer.headers)
        answer.has_begun = True
        data = head + http_chunk(choice.token_event())
        if not answer.waits_for:
            connection.end_stream(data + http_chunk(answer.closing_events()))
        elif not connection.write_stream(data):
            self._abandon(answer, FinishReason.SLOW_READER)

    def _on_log(self, log: Log) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        connection, path = self._waiters.pop(log.ticket)
        if path == "/steps":
            rows = np.frombuffer(log.steps, np.int64).reshape(-1, NUM_VALUES)
            table = steps_table(rows, log.metadata)
        else:
            table = requests_table(log.requests, log.metadata)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        connection.respond(200, sink.getvalue().to_pybytes(), PARQUET)

    def _on_engine_lost(self) -> None:
        self.engine_gone.set()
        for in_flight in list(self._in_flight.values()):
            self._fail(in_flight, ApiError(503, "the engine has stopped", kind="service_unavailable"))

    def _fail(self, in_flight: InFlight, error: ApiError) -> None:
        """End an answer that will not come; one that has begun can only be broken off."""
        if not in_flight.answer.waits_for:
            return
        self._abandon(in_flight.answer, FinishReason.CANCELLED)
        if in_flight.answer.has_begun:
            in_flight.connection.close()
        else:
            in_flight.connection.respond(error.status, error.body(), headers=error.headers)

    def _abandon(self, answer: Answer, reason: FinishReason) -> None:
        for handle in list(answer.waits_for):
            self._drop(handle)
            self.link.send(Cancel(handle, reason))

    def _drop(self, handle: int) -> None:
        """Forget a prompt; its answer is over with the last of them."""
        in_flight = self._in_flight.pop(handle)
        in_flight.answer.waits_for.remove(handle)
        if not in_flight.answer.waits_for:
            del self._answers[in_flight.connection]
        if not self._in_flight:
            self.drained.set()
