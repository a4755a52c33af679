"""From what happened on the wire to the row of a request: which events were tokens, when, and how it ended.

Pure, and run after a request has ended. An outcome is decided from the answer first and from the way the
connection ended second: a finish reason makes an answer whole whatever came behind it, an error event or an
end without a finish reason never counts as a short success. What is not known stays None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadgen.endpoints.base import ChunkFacts, Endpoint, EndpointDataError, Framing, Usage
from loadgen.endpoints.errors import error_text, one_line
from loadgen.http1 import HttpSyntaxError, IncompleteHeadError, Response, parse_response
from loadgen.records import MAX_ERROR_CHARS, Outcome, RequestRecord
from loadgen.sse import SseEvent, parse_events, parse_lines
from loadgen.token_events import TokenCount, count_tokens
from loadgen.transport.base import End, Exchange

_EVENT_LINE = {
    Framing.EVENTS: re.compile(rb"(?:^|[\r\n])data:[ ]?([^\r\n]+)(?=[\r\n])"),
    Framing.LINES: re.compile(rb"(?:^|[\r\n])(\{[^\r\n]+\})(?=[\r\n])"),
}
_EVENT_END = {Framing.EVENTS: re.compile(rb"\n\r?\n|\r\r"), Framing.LINES: re.compile(rb"\n")}
_FAILED_FINISH = ("abort", "error")
_NO_TOKENS = TokenCount(events=[], tokens=[], total=None, source="unknown")

_OUTCOME_OF_END = {
    End.UNSENT: (Outcome.UNSENT, "never sent"),
    End.CONNECT_FAILED: (Outcome.CONNECT_FAILED, "no connection"),
    End.CONNECT_TIMEOUT: (Outcome.CONNECT_TIMEOUT, "no connection within the connect timeout"),
    End.COMPLETE: (Outcome.TRUNCATED, "the answer ended without a finish reason"),
    End.EOF: (Outcome.TRUNCATED, "the connection closed without a finish reason"),
    End.RESET: (Outcome.RESET, "the connection broke"),
    End.FIRST_TOKEN_TIMEOUT: (Outcome.TIMEOUT, "no token within the first-token timeout"),
    End.TOTAL_TIMEOUT: (Outcome.TIMEOUT, "not done within the total timeout"),
    End.STALLED: (Outcome.STALLED, "no further token within the stall timeout"),
    End.CANCELLED: (Outcome.CANCELLED, "in flight when the run was stopped"),
    End.MALFORMED: (Outcome.MALFORMED, "not an answer"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """What the plan says of one request."""

    index: int
    session: int = -1
    turn: int = -1
    request_class: str = "default"
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True, kw_only=True)
class Reading:
    """What the bytes of one exchange say; filled while they are read.

    facts, chunks, lasts: of each event, the index of the chunk that completed it, and whether nothing came
    behind it in that chunk. malformed, error: the first thing that was wrong, in words.
    """

    response: Response | None = None
    facts: list[ChunkFacts] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    lasts: list[bool] = field(default_factory=list)
    body_end_chunk: int | None = None  # for an answer that was not streamed
    usage: Usage | None = None
    finish_reason: str | None = None
    is_done: bool = False
    pending: bytes = b""
    error: str | None = None
    malformed: str | None = None

    def take(self, facts: ChunkFacts) -> None:
        self.usage = self.usage.updated(facts.usage) if self.usage else facts.usage
        self.finish_reason = facts.finish_reason or self.finish_reason
        self.error = facts.error or self.error
        self.is_done = facts.is_done


def to_record(exchange: Exchange, endpoint: Endpoint, *, epoch_ns: int, row: PlanRow) -> RequestRecord:
    """Decide what became of a request. epoch_ns: the run's start, from which a record's instants count."""
    answer = read_answer(exchange, endpoint)
    count = count_tokens(answer.facts, endpoint.token_events) if answer.facts else _NO_TOKENS
    if answer.body_end_chunk is not None:
        total = answer.usage.completion_tokens if answer.usage else None
        count = TokenCount(events=[], tokens=[], total=total, source="unknown" if total is None else "usage")
    outcome, error = _decide(exchange, answer, count, row)
    usage, response = answer.usage or Usage(), answer.response
    record = RequestRecord(
        index=row.index,
        session=row.session,
        turn=row.turn,
        request_class=row.request_class,
        scheduled_ns=exchange.scheduled_ns - epoch_ns,
        sent_ns=_offset(exchange.sent_ns, epoch_ns),
        connected_ns=_offset(exchange.connected_ns, epoch_ns),
        written_ns=_offset(exchange.written_ns, epoch_ns),
        write_lag_ns=None if exchange.written_ns is None else exchange.write_lag_ns,
        prompt_tokens_planned=row.prompt_tokens,
        output_tokens_planned=row.output_tokens,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=count.total,
        cached_tokens=usage.cached_tokens,
        prompt_tokens_source="unknown" if usage.prompt_tokens is None else "usage",
        output_tokens_source=count.source,
        chunk_tokens=count.tokens,
        outcome=outcome,
        http_status=response.status if response else None,
        server_request_id=response.headers.get("x-request-id") if response else None,
        error=one_line(error)[:MAX_ERROR_CHARS] if error else None,
        worker=exchange.worker,
        connection_reused=exchange.reused,
    )
    _stamp(record, exchange, answer, count, epoch_ns)
    return record


def has_token_since(chunks: Sequence[bytes], start_index: int, endpoint: Endpoint) -> bool:
    """Whether a token-bearing event ended in chunks[start_index:]; for a timer about to fire.

    Looks at bytes as read, framing included and perhaps cut. Comments are no tokens. A data line that cannot
    be read (framing inside it) counts as one: that delays a timeout, where the opposite kills a live stream.
    """
    tail = _from_event_start(chunks, start_index, _EVENT_END[endpoint.framing])
    for match in _EVENT_LINE[endpoint.framing].finditer(tail):
        try:
            facts = endpoint.interpret(match[1])
        except EndpointDataError:
            return True
        if facts.is_content_event:
            return True
    return False


def _from_event_start(chunks: Sequence[bytes], start_index: int, event_end: re.Pattern[bytes]) -> bytes:
    """Join the chunks from `start_index`, and before them the beginning of an event cut there."""
    tail: list[bytes] = []
    for chunk in reversed(chunks[:start_index]):
        ends = [match.end() for match in event_end.finditer(chunk)]
        tail.append(chunk[ends[-1] :] if ends else chunk)
        if ends:
            break
    return b"".join([*reversed(tail), *chunks[start_index:]])


def read_answer(exchange: Exchange, endpoint: Endpoint) -> Reading:
    """Take the events, or the body, out of what came back."""
    answer = Reading()
    try:
        answer.response = _response(exchange)
    except IncompleteHeadError:
        return answer
    except HttpSyntaxError as exc:
        answer.malformed = str(exc)
        return answer
    response = answer.response
    if response is None or response.status != 200:
        return answer
    if response.headers.get("content-encoding", "identity") not in ("", "identity"):
        answer.malformed = (
            f"content-encoding {response.headers['content-encoding']!r}, which was not asked for"
        )
        return answer
    if endpoint.framing is Framing.EVENTS and _is_json(response.body):
        _read_body(response, endpoint, answer)
    else:
        _read_events(response, endpoint, answer)
    if response.syntax_error is not None and answer.malformed is None:
        answer.malformed = response.syntax_error
    return answer


def _response(exchange: Exchange) -> Response | None:
    """The response in an exchange; None where no byte of one came."""
    if exchange.framed:
        return parse_response(exchange.chunks) if exchange.chunks else None
    if exchange.status is None:
        return None
    return Response(
        status=exchange.status,
        reason="",
        headers=exchange.headers or {},
        body=[(chunk, index) for index, chunk in enumerate(exchange.chunks)],
        head_chunk=-1,
        is_complete=exchange.ended is End.COMPLETE,
        is_until_close=False,
        keep_alive=True,
    )


def _is_json(body: Sequence[tuple[bytes, int]]) -> bool:
    """Whether the body is one JSON object, whatever its content type says."""
    for piece, _ in body:
        if start := piece.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]:
            return start in b"{["
    return False


def _read_body(response: Response, endpoint: Endpoint, answer: Reading) -> None:
    answer.body_end_chunk = response.body[-1][1]
    if not response.is_complete and not response.is_until_close:
        return
    try:
        answer.take(endpoint.interpret(b"".join(piece for piece, _ in response.body)))
    except EndpointDataError as exc:
        if response.is_complete:
            answer.malformed = str(exc)


def _read_events(response: Response, endpoint: Endpoint, answer: Reading) -> None:
    is_lines = endpoint.framing is Framing.LINES
    events, answer.pending = (parse_lines if is_lines else parse_events)(response.body)
    for event, chunk, is_last in events:
        try:
            facts = _facts(event, endpoint)
        except EndpointDataError as exc:
            answer.malformed = str(exc)
            break
        answer.facts.append(facts)
        answer.chunks.append(chunk)
        answer.lasts.append(is_last)
        if facts.usage is not None or facts.finish_reason or facts.error or facts.is_done:
            answer.take(facts)
            if facts.is_done or facts.error:
                break
    kind = response.headers.get("content-type", "")
    if not events and response.body and "event-stream" not in kind:
        seen = b"".join(piece for piece, _ in response.body[:4])
        answer.malformed = (
            f"neither a stream nor JSON ({kind or 'no content type'}): {error_text(seen)[:200]}"
        )


def _facts(event: SseEvent, endpoint: Endpoint) -> ChunkFacts:
    if event.event == "error":
        return ChunkFacts(error=error_text(event.data) or "an error event without words")
    try:
        return endpoint.interpret(event.data)
    except EndpointDataError:
        if event.event in (None, "message"):
            raise
        return ChunkFacts()  # an event of another kind, such as a ping


def _decide(
    exchange: Exchange, answer: Reading, count: TokenCount, row: PlanRow
) -> tuple[Outcome, str | None]:
    """Return the outcome and the words for it; words of an `ok` are a note on how its connection ended."""
    ended = exchange.ended
    outcome, words = _OUTCOME_OF_END[ended]
    response = answer.response
    is_count_reached = (
        count.source == "usage" and count.total is not None and count.total >= row.output_tokens
    )
    if response is None:
        if answer.malformed is not None:
            return Outcome.MALFORMED, answer.malformed
        if ended in (End.EOF, End.COMPLETE):
            return Outcome.RESET, exchange.error or "the connection closed before an answer"
        return outcome, exchange.error or words
    if response.status != 200:
        return Outcome.HTTP_STATUS, _status_words(response)
    if answer.error is not None:
        return Outcome.ERROR_EVENT, answer.error
    if answer.finish_reason in _FAILED_FINISH:
        return Outcome.ERROR_EVENT, f"finish_reason {answer.finish_reason!r}"
    if answer.finish_reason or is_count_reached:
        is_orderly = response.is_complete or ended in (End.COMPLETE, End.EOF)
        note = None if is_orderly else f"whole, then: {exchange.error or words}"
        return Outcome.OK, answer.malformed or note
    if answer.malformed is not None:
        return Outcome.MALFORMED, answer.malformed
    return outcome, (exchange.error or words) + _how_far(answer, count)


def _how_far(answer: Reading, count: TokenCount) -> str:
    words = f" ({len(count.events)} token events"
    if answer.is_done:
        words += ", then [DONE]"
    if answer.pending:
        words += f", cut within an event: {answer.pending[:60]!r}"
    return words + ")"


def _status_words(response: Response) -> str:
    """The server's own words, and what it said about when or where to try again."""
    body = b"".join(piece for piece, _ in response.body)
    words = error_text(body) or f"{response.status} {response.reason}".strip()
    notes = "".join(
        f" ({name}: {response.headers[name.lower()]})"
        for name in ("Retry-After", "Location")
        if name.lower() in response.headers
    )[: MAX_ERROR_CHARS // 2]
    return words[: MAX_ERROR_CHARS - len(notes)] + notes


def _stamp(
    record: RequestRecord, exchange: Exchange, answer: Reading, count: TokenCount, epoch_ns: int
) -> None:
    """Fill in when things happened, as offsets from the run's start."""
    stamps, response = exchange.stamps, answer.response
    if exchange.ended is not End.UNSENT:
        is_whole = response is not None and response.is_complete and bool(stamps)
        record.done_ns = _offset(stamps[-1] if is_whole else exchange.ended_ns, epoch_ns)
    if not stamps:
        return
    record.stamp_source = exchange.stamp_source
    if exchange.stamp_source == "kernel":
        lag = max(read - stamp for read, stamp in zip(exchange.reads_ns, stamps, strict=True))
        record.recv_lag_ns = max(lag, 0)
    if response is None:
        return
    head_ns = stamps[response.head_chunk] if exchange.framed else exchange.headers_ns
    record.headers_ns = _offset(head_ns, epoch_ns)
    if answer.chunks:
        record.first_event_ns = stamps[answer.chunks[0]] - epoch_ns
    if count.events:
        record.chunk_ns = [stamps[answer.chunks[i]] - epoch_ns for i in count.events]
        record.chunk_lower_ns = [_lower_ns(exchange, answer, i) - epoch_ns for i in count.events]
        record.first_token_ns, record.last_token_ns = record.chunk_ns[0], record.chunk_ns[-1]
        answered = (i for i in count.events if not answer.facts[i].is_reasoning)
        first = next(answered, None)
        record.first_answer_ns = None if first is None else stamps[answer.chunks[first]] - epoch_ns
    elif answer.body_end_chunk is not None and answer.finish_reason:
        record.last_token_ns = stamps[answer.body_end_chunk] - epoch_ns


def _lower_ns(exchange: Exchange, answer: Reading, event: int) -> int:
    """The earliest that an event can have come.

    A kernel's stamp is that of the last bytes of its chunk, and exact for an event that ends there. Where two
    reads share one (the kernel merges segments and keeps the newer stamp), only the second is exact. Any
    other event came after all reads before, and after the transport last knew that nothing was there.
    """
    stamps, chunk = exchange.stamps, answer.chunks[event]
    stamp = stamps[chunk]
    is_shared = chunk + 1 < len(stamps) and stamps[chunk + 1] == stamp
    if answer.lasts[event] and not is_shared and exchange.stamp_source == "kernel":
        return stamp
    since = exchange.since_ns[chunk]
    sent = exchange.written_ns or exchange.sent_ns
    before = next((earlier for earlier in reversed(stamps[:chunk]) if earlier < stamp), sent)
    return min(stamp, since if before is None else max(since, before))


def _offset(instant_ns: int | None, epoch_ns: int) -> int | None:
    return None if instant_ns is None else instant_ns - epoch_ns
