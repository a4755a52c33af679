"""Fuzz the response parser: mutated transcripts and streams in random splits, through to the row.

    python -m tests.fuzz_response --inputs 1000000

Any exception and any input that takes longer than a second is a finding: it is printed with the seed that
repeats it, and the exit code is 1. Without a seed the inputs are the same each time.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType

from loadgen.endpoints import ENDPOINTS
from loadgen.endpoints.template import load_template
from loadgen.http1 import HttpSyntaxError, ResponseFramer
from loadgen.interpret import has_token_since
from loadgen.records import MAX_ERROR_CHARS, RequestRecord
from loadgen.transport.base import End
from tests.loadgen.wire import (
    DONE,
    LAST_CHUNK,
    NAMES,
    STREAM_HEAD,
    delta_event,
    event,
    exchange,
    frame,
    load_transcript,
    record,
    split_at,
    text_event,
    usage_event,
)

NATIVE = {  # an event, or a line, and the last one of each server's own API
    "sglang": event('{"text":"ab","output_ids":[1,2],"meta_info":{"completion_tokens":2}}')
    + event('{"text":"abc","meta_info":{"finish_reason":{"type":"length"},"completion_tokens":3}}'),
    "tgi": event('{"index":1,"token":{"id":5,"text":"a","special":false},"details":null}')
    + event('{"token":{"id":6},"details":{"finish_reason":"length","generated_tokens":2}}'),
    "llamacpp": event('{"content":"a","tokens":[5],"stop":false}')
    + event('{"content":"","stop":true,"tokens_predicted":1,"timings":{"cache_n":2}}'),
    "anthropic_messages": event('{"type":"content_block_delta","delta":{"text":"a"}}')
    + event('{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":1}}'),
    "ollama": b'{"model":"m","response":"a","done":false}\n{"response":"","done":true,"eval_count":1}\n',
}
MAX_INPUT_S = 1.0
MAX_BYTES = 3_000
ENDS = list(End)
TEMPLATES = Path(__file__).parents[1] / "examples" / "endpoints"
APIS = ENDPOINTS | {file.stem: load_template(file, "m") for file in sorted(TEMPLATES.glob("*.toml"))}
Seed = tuple[str, bytes, bytes]  # API, head, body
TOKENS = [
    *(
        b"\r\n",
        b"\n\n",
        b"\r",
        b"\n",
        b"\r\n\r\n",
        b"0\r\n\r\n",
        b"data: ",
        b"data:",
        b"event: error\n",
        b": ping\n\n",
    ),
    *(
        b"[DONE]",
        b"{",
        b"}",
        b'"',
        b"[",
        b"]",
        b"null",
        b"-1",
        b"1e999",
        b"NaN",
        b'{"error":{"message":"x"}}',
        b"\\ud800",
    ),
    *(
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"Content-Length: 5\r\n",
        b"Connection: close\r\n",
    ),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"ffffffffffffff\r\n",
        b"7fffffff\r\n",
        b";x=y",
        b"\xef\xbb\xbf",
        b"\xff",
        b"\0",
    ),
    *(
        b'"finish_reason":"stop"',
        b'"usage":{"completion_tokens":3}',
        b'"token_ids":[1,2]',
        b'"choices":[]',
        b" " * 200,
    ),
]


def make_seeds() -> list[Seed]:
    """What to begin from: each transcript, and the events of every kind of server."""
    role, error = delta_event('{"role":"assistant"}'), b'event: error\ndata: {"message":"x"}\n\n'
    events = [role, text_event("a"), error, text_event("", "length"), usage_event(5, 2), DONE]
    until_close = b"HTTP/1.0 200 OK\r\n\r\n"
    return [
        *(
            ("chat" if ".chat_" in name else "completions", transcript.head, transcript.body[:MAX_BYTES])
            for name, transcript in ((name, load_transcript(name)) for name in NAMES)
        ),
        ("completions", STREAM_HEAD, b"".join(events[:2] + events[3:])),
        ("completions", STREAM_HEAD, b"".join(events).replace(b"\n", b"\r\n")),
        ("completions", until_close, b"".join(events)),
        *((api, STREAM_HEAD, body) for api, body in NATIVE.items()),
    ]


def mutate(source: random.Random, data: bytes) -> bytes:
    """Change a few places: bytes flipped, tokens put in, spans lost, doubled or moved."""
    for _ in range(source.randrange(0, 6)):
        place = source.randrange(len(data) + 1)
        other = min(len(data), place + source.randrange(1, 60))
        kind = source.randrange(6)
        if kind == 0 and place < len(data):
            data = data[:place] + bytes([source.randrange(256)]) + data[place + 1 :]
        elif kind == 1:
            data = data[:place] + source.choice(TOKENS) + data[place:]
        elif kind == 2:
            data = data[:place] + data[other:]
        elif kind == 3:
            data = data[:other] + data[place:]
        elif kind == 4:
            data = data[:place]
        else:
            data = data[place:other] + data[:place] + data[other:]
    return data[: 2 * MAX_BYTES]


def render_body(source: random.Random, head: bytes, body: bytes) -> bytes:
    """Frame a body as its head says, cut into HTTP chunks anywhere."""
    if b"chunked" not in head.lower():
        return body
    pieces = split_at(body, [source.randrange(len(body) + 1) for _ in range(source.randrange(0, 6))])
    return b"".join(frame(piece) for piece in pieces if piece) + LAST_CHUNK


def check(source: random.Random, seeds: list[Seed]) -> RequestRecord:
    """Make one input, run every entry to the parser on it, and check what must hold of any row."""
    api, head, body = source.choice(seeds)
    if source.random() < 0.1:
        api = source.choice(list(APIS))
    if source.random() < 0.5:  # damage what is said, in framing that holds
        data = head + render_body(source, head, mutate(source, body))
    else:
        data = mutate(source, head + render_body(source, head, body))
    chunks = split_at(data, [source.randrange(len(data) + 1) for _ in range(source.randrange(0, 8))])
    try:
        framer = ResponseFramer()
        for chunk in chunks:
            framer.feed(chunk)
    except HttpSyntaxError:
        pass  # the only error that bytes may cause
    has_token_since(chunks, source.randrange(len(chunks) + 1), APIS[api])
    row = record(exchange(chunks, source.choice(ENDS)), APIS[api])
    assert len(row.chunk_ns) == len(row.chunk_lower_ns) == len(row.chunk_tokens)
    assert all(lower <= stamp for lower, stamp in zip(row.chunk_lower_ns, row.chunk_ns, strict=True))
    assert row.error is None or 0 < len(row.error) <= MAX_ERROR_CHARS
    assert row.outcome == "ok" or row.error
    assert row.output_tokens is None or 0 <= row.output_tokens < 2**31
    return row


def _raise_timeout(_signum: int, _stack: FrameType | None) -> None:
    raise TimeoutError(f"one input took longer than {MAX_INPUT_S} s")


def fuzz(num_inputs: int, seed: int) -> tuple[Counter[str], int]:
    """Run the inputs; return how many ended in each outcome, and the number of findings."""
    seeds, outcomes, num_findings = make_seeds(), Counter[str](), 0
    signal.signal(signal.SIGALRM, _raise_timeout)
    for i in range(num_inputs):
        signal.setitimer(signal.ITIMER_REAL, MAX_INPUT_S)
        try:
            outcomes[check(random.Random(seed + i), seeds).outcome] += 1
        except Exception:
            num_findings += 1
            print(f"FOUND at --inputs 1 --seed {seed + i}", file=sys.stderr)
            traceback.print_exc()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return outcomes, num_findings


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = time.monotonic()
    outcomes, num_findings = fuzz(arguments.inputs, arguments.seed)
    took = time.monotonic() - start
    rate = arguments.inputs / took
    print(f"{arguments.inputs} inputs in {took:.0f} s ({rate:.0f}/s), {num_findings} findings")
    print(", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common()))
    return 1 if num_findings else 0


if __name__ == "__main__":
    sys.exit(main())
