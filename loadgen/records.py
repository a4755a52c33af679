"""The raw record: one row per *scheduled* request, failures included, and the schema of requests.parquet.

Instants are int nanoseconds of CLOCK_MONOTONIC, stored as offsets from the run's start. Undefined is None,
never 0. Everything else in a run folder can be computed again from these rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

REQUESTS_SCHEMA_VERSION = 1


class Outcome(StrEnum):
    """How a request ended; every scheduled request has exactly one."""

    OK = "ok"  # a finish reason was seen, or the number of tokens asked for by usage
    HTTP_STATUS = "http_status"  # answered with another status than 200
    CONNECT_FAILED = "connect_failed"  # refused, unreachable, TLS failure, or no socket could be had
    CONNECT_TIMEOUT = "connect_timeout"
    TIMEOUT = "timeout"  # first-token or total timeout
    STALLED = "stalled"  # tokens came, then none for the stall timeout
    RESET = "reset"  # the connection broke before the answer was complete
    TRUNCATED = "truncated"  # a clean end of the stream without finish reason or full count
    MALFORMED = "malformed"  # bytes that are not HTTP, SSE or JSON as they must be
    ERROR_EVENT = "error_event"  # a 200 stream that carried an error
    CANCELLED = "cancelled"  # in flight when the run was stopped
    UNSENT = "unsent"  # scheduled, but never sent


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One scheduled request, from plan to last byte. DESIGN section 3 defines each field.

    chunk_ns: the stamp of each token-bearing event; chunk_lower_ns: the earliest it can have been (equal
    where the stamp is exact); chunk_tokens: tokens in it, None where unknown. first_answer_ns: the first
    token that is not reasoning; equal to first_token_ns where a server tells no reasoning apart.
    write_lag_ns: the most that we can have held the request back between sent_ns and the kernel, handshakes
    apart.
    """

    index: int
    session: int = -1
    turn: int = -1
    request_class: str = "default"
    scheduled_ns: int
    sent_ns: int | None = None
    connected_ns: int | None = None
    written_ns: int | None = None
    write_lag_ns: int | None = None
    headers_ns: int | None = None
    first_event_ns: int | None = None
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    last_token_ns: int | None = None
    done_ns: int | None = None
    prompt_tokens_planned: int
    output_tokens_planned: int
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_tokens_source: str = "unknown"
    output_tokens_source: str = "unknown"
    chunk_ns: list[int] = field(default_factory=list)
    chunk_lower_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int | None] = field(default_factory=list)
    stamp_source: str | None = None
    recv_lag_ns: int | None = None
    outcome: Outcome
    http_status: int | None = None
    error: str | None = None
    worker: int = -1
    connection_reused: bool | None = None
    server_request_id: str | None = None


MAX_ERROR_CHARS = 500


def column_names() -> list[str]:
    """Column names of requests.parquet, in order (`request_class` is stored as `class`)."""
    return ["class" if f.name == "request_class" else f.name for f in fields(RequestRecord)]


def to_row(record: RequestRecord) -> dict[str, Any]:
    """Return the record as a row of requests.parquet."""
    row = {f.name: getattr(record, f.name) for f in fields(RequestRecord)}
    row["class"] = row.pop("request_class")
    row["outcome"] = str(record.outcome)
    if record.error is not None:
        row["error"] = record.error[:MAX_ERROR_CHARS]
    return row


def arrow_schema() -> pa.Schema:
    """The Arrow schema of requests.parquet, with its version in the metadata."""
    import pyarrow as pa

    i32, i64, text = pa.int32(), pa.int64(), pa.string()
    types: dict[str, pa.DataType] = {
        "index": i64,
        "session": i64,
        "turn": i64,
        "class": text,
        "scheduled_ns": i64,
        "sent_ns": i64,
        "connected_ns": i64,
        "written_ns": i64,
        "write_lag_ns": i64,
        "headers_ns": i64,
        "first_event_ns": i64,
        "first_token_ns": i64,
        "first_answer_ns": i64,
        "last_token_ns": i64,
        "done_ns": i64,
        "prompt_tokens_planned": i32,
        "output_tokens_planned": i32,
        "prompt_tokens": i32,
        "output_tokens": i32,
        "cached_tokens": i32,
        "prompt_tokens_source": text,
        "output_tokens_source": text,
        "chunk_ns": pa.list_(i64),
        "chunk_lower_ns": pa.list_(i64),
        "chunk_tokens": pa.list_(i32),
        "stamp_source": text,
        "recv_lag_ns": i64,
        "outcome": text,
        "http_status": i32,
        "error": text,
        "worker": i32,
        "connection_reused": pa.bool_(),
        "server_request_id": text,
    }
    return pa.schema(
        [(name, types[name]) for name in column_names()],
        metadata={"schema_version": str(REQUESTS_SCHEMA_VERSION)},
    )
