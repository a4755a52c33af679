"""Every recorded transcript becomes the row it should, however its bytes were read."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from loadgen.records import Outcome
from loadgen.transport.base import End
from tests.loadgen.wire import NAMES, exchange, load_transcript, record, split_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """tokens: those of each token event, None for events of unknown tokens; output: the row's count."""

    outcome: Outcome = Outcome.OK
    status: int = 200
    tokens: tuple[int | None, ...] = ()
    output: int | None = None
    source: str = "usage"
    prompt: int | None = None
    cached: int | None = None
    words: str | None = None


def uncounted(num_events: int, outcome: Outcome = Outcome.OK, words: str | None = None) -> Expected:
    """A stream in which the server stated no usage."""
    return Expected(outcome=outcome, tokens=(None,) * num_events, source="unknown", words=words)


def refused(status: int, words: str) -> Expected:
    return Expected(outcome=Outcome.HTTP_STATUS, status=status, source="unknown", words=words)


def five(prompt: int, cached: int | None = None) -> Expected:
    """Five tokens asked for, given one an event, and stated."""
    return Expected(tokens=(1,) * 5, output=5, prompt=prompt, cached=cached)


PINGS_ONLY = uncounted(0, Outcome.TIMEOUT, "no token within the first-token timeout")
PINNED = "Server is pinned to 'model-a/tiny'; requested 'nope'."
UNEXPECTED = "Unexpected fields in the request: {'min_tokens', 'ignore_eos'}"
NO_SUCH_MODEL = "The model `nope` does not exist. Valid aliases: tiny."
TOO_LONG = "max_tokens=100000 cannot be greater than max_model_len=2048."

EXPECTED = {
    "llama_cpp_python.chat_badmodel": PINGS_ONLY,
    "llama_cpp_python.chat_badreq": PINGS_ONLY,
    "llama_cpp_python.chat_nonstream": Expected(output=37, prompt=23),
    "llama_cpp_python.chat_stream": uncounted(2),
    "llama_cpp_python.chat_stream_usage": uncounted(2),
    "llama_cpp_python.completions_interrupted": uncounted(
        21, Outcome.TRUNCATED, "21 token events, then [DONE]"
    ),
    "llama_cpp_python.completions_stream": uncounted(5),
    "llama_cpp_python.completions_stream_ignore_eos": uncounted(5),
    "llama_server.chat_badmodel": five(23, 22),
    "llama_server.chat_badreq": uncounted(3, Outcome.TRUNCATED, "cut within an event"),
    "llama_server.chat_nonstream": Expected(output=5, prompt=23, cached=22),
    # five tokens of no text: one event, of the finish reason; the count is in its timings
    "llama_server.chat_stream": Expected(output=5, prompt=23, cached=0),
    "llama_server.completions_stream": five(5, 0),
    "llama_server.completions_stream_ignore_eos": five(5, 4),
    "llama_server.completions_stream_tokenids": five(5, 0),
    "llama_server.completions_stream_usage": five(5, 4),
    "llama_server.native_stream": Expected(tokens=(1,) * 6, output=6, prompt=2, cached=0),
    "transformers_serve_cb.chat_badmodel": refused(400, PINNED),
    "transformers_serve_cb.chat_badreq": uncounted(4, Outcome.TRUNCATED, "cut within an event"),
    "transformers_serve_cb.chat_nonstream": Expected(output=5, prompt=23),
    "transformers_serve_cb.chat_stream": five(23),
    "transformers_serve_cb.completions_stream": five(5),
    "transformers_serve_cb.completions_stream_ignore_eos": refused(422, UNEXPECTED),
    "transformers_serve_cb.completions_stream_tokenids": refused(400, "prompt must be a string."),
    "transformers_serve_cb.completions_stream_usage": five(5),
    "vllm_cpu.chat_badmodel": refused(404, NO_SUCH_MODEL),
    "vllm_cpu.chat_badreq": refused(400, TOO_LONG),
    "vllm_cpu.chat_nonstream": Expected(output=5, prompt=23),
    # undecodable bytes are tokens of empty text: only the usage can tell them from events without a token
    "vllm_cpu.chat_stream": uncounted(2),
    "vllm_cpu.chat_stream_usage": five(23),
    "vllm_cpu.completions_stream": uncounted(3),
    "vllm_cpu.completions_stream_ignore_eos": five(5),
    "vllm_cpu.completions_stream_usage": five(5),
}


def end_of(name: str) -> End:
    if EXPECTED[name] is PINGS_ONLY:
        return End.FIRST_TOKEN_TIMEOUT
    return End.EOF if load_transcript(name).is_cut else End.COMPLETE


def reads(name: str, seed: int) -> list[bytes]:
    """The transcript's bytes in one read, byte by byte, or in reads of random lengths."""
    wire = load_transcript(name).wire()
    if seed == 0:
        return [wire]
    if seed == 1:
        return [wire[i : i + 1] for i in range(len(wire))]
    source = random.Random(seed)
    return split_at(wire, [source.randrange(len(wire)) for _ in range(source.randrange(1, 40))])


def test_every_transcript_has_an_expectation() -> None:
    assert sorted(EXPECTED) == NAMES


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", NAMES)
def test_transcript(name: str, seed: int) -> None:
    expected = EXPECTED[name]
    row = record(exchange(reads(name, seed), end_of(name)), load_transcript(name).endpoint)
    assert (row.outcome, row.http_status) == (expected.outcome, expected.status)
    assert tuple(row.chunk_tokens) == expected.tokens
    assert (row.output_tokens, row.output_tokens_source) == (expected.output, expected.source)
    assert (row.prompt_tokens, row.cached_tokens) == (expected.prompt, expected.cached)
    assert (row.error is None) is (expected.outcome is Outcome.OK)
    assert (expected.words or "") in (row.error or "")


@pytest.mark.parametrize("name", [name for name in NAMES if ".chat_stream" in name])
def test_first_token_is_not_the_role_event(name: str) -> None:
    transcript = load_transcript(name)
    head, *events = [part for part in transcript.wire().partition(b"data: ") if part]
    whole = b"".join(events).split(b"\n\n\r\n")
    row = record(
        exchange([head, *[part + b"\n\n\r\n" for part in whole[:-1]], whole[-1]]), transcript.endpoint
    )
    assert row.first_event_ns is not None
    if row.chunk_ns:
        assert row.first_token_ns is not None
        assert row.first_token_ns > row.first_event_ns
