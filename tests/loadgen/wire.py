"""Building blocks for wire tests: recorded transcripts, framing, exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from loadgen.endpoints import ENDPOINTS
from loadgen.endpoints.base import Endpoint
from loadgen.interpret import PlanRow, to_record
from loadgen.records import RequestRecord
from loadgen.transport.base import End, Exchange

TRANSCRIPTS = Path(__file__).parent / "transcripts"
NAMES = sorted(path.stem for path in TRANSCRIPTS.glob("*.txt"))
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
SENT_NS, STEP_NS = 1_000, 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One recorded exchange. is_cut: its end is not the server's."""

    name: str
    head: bytes
    body: bytes
    is_cut: bool

    @property
    def is_chunked(self) -> bool:
        return b"transfer-encoding: chunked" in self.head.lower()

    @property
    def endpoint(self) -> Endpoint:
        if ".native_" in self.name:
            return ENDPOINTS["llamacpp"]
        return ENDPOINTS["chat" if ".chat_" in self.name else "completions"]

    def wire(self) -> bytes:
        """The bytes as they were on the wire, each event a chunk of its own."""
        if not self.is_chunked:
            length = int(self.head.lower().partition(b"content-length:")[2].split(None, 1)[0])
            assert len(self.body) >= length
            return self.head + self.body[:length]
        *events, rest = self.body.split(b"\n\n")
        chunks = [*(event + b"\n\n" for event in events), *([rest] if rest else [])]
        return self.head + b"".join(map(frame, chunks)) + (b"" if self.is_cut else LAST_CHUNK)


def load_transcript(name: str) -> Transcript:
    """Read a transcript, without the comments of the recorder."""
    text = (TRANSCRIPTS / f"{name}.txt").read_bytes()
    head, _, body = text[text.index(b"HTTP/1.1") :].partition(b"\r\n\r\n")
    whole, _, by_hand = body.partition(b"... (cut:")
    whole, _, by_server = whole.partition(b"# curl exit")
    if not by_hand:
        whole = whole.rstrip(b"\n") + b"\n\n"
    return Transcript(name=name, head=head + b"\r\n\r\n", body=whole, is_cut=bool(by_hand or by_server))


def frame(data: bytes) -> bytes:
    """Render one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(json_text: str) -> bytes:
    return f"data: {json_text}\n\n".encode()


def text_event(text: str, finish: str | None = None) -> bytes:
    """A completions event."""
    reason = "null" if finish is None else f'"{finish}"'
    return event(f'{{"choices":[{{"index":0,"text":"{text}","finish_reason":{reason}}}]}}')


def delta_event(delta: str, finish: str | None = None) -> bytes:
    """A chat event; delta as JSON."""
    reason = "null" if finish is None else f'"{finish}"'
    return event(f'{{"choices":[{{"index":0,"delta":{delta},"finish_reason":{reason}}}]}}')


def usage_event(prompt: int, completion: int) -> bytes:
    return event(
        f'{{"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},'
        f'"total_tokens":{prompt + completion}}}}}'
    )


def exchange(chunks: Sequence[bytes], ended: End = End.COMPLETE, stamp_source: str = "kernel") -> Exchange:
    """An exchange whose read i is stamped STEP_NS * (i + 1) and came within a tenth of it."""
    stamps = [STEP_NS * (i + 1) for i in range(len(chunks))]
    return Exchange(
        index=7,
        request_id="run-7",
        scheduled_ns=0,
        sent_ns=SENT_NS,
        connected_ns=SENT_NS,
        written_ns=SENT_NS,
        chunks=list(chunks),
        stamps=stamps,
        reads_ns=[stamp + 500 for stamp in stamps],
        since_ns=[stamp - STEP_NS // 10 for stamp in stamps],
        stamp_source=stamp_source,
        ended=ended,
        ended_ns=STEP_NS * (len(chunks) + 1),
        worker=0,
    )


def stream(events: Sequence[bytes], ended: End = End.COMPLETE) -> Exchange:
    """A stream in which the head and each event came in reads of their own."""
    chunks = [STREAM_HEAD, *map(frame, events)]
    if ended is End.COMPLETE:
        chunks.append(LAST_CHUNK)
    return exchange(chunks, ended)


def record(
    exchanged: Exchange, endpoint: str | Endpoint = "completions", output_tokens: int = 5
) -> RequestRecord:
    """The row of an exchange whose plan asked for `output_tokens`."""
    known = ENDPOINTS[endpoint] if isinstance(endpoint, str) else endpoint
    row = PlanRow(index=7, prompt_tokens=5, output_tokens=output_tokens)
    return to_record(exchanged, known, epoch_ns=0, row=row)


def split_at(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Cut bytes at the given places."""
    edges = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]
