"""One request inside the engine: its tokens, what of it the cache holds, and its time line.

A sequence is mutable and belongs to the scheduler. `num_computed` (q) counts the tokens with valid KV; the
target is all tokens known so far. A step that brings q to the target emits one token at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec


class Status(StrEnum):
    WAITING = "waiting"  # not resident: new, or preempted and queued again
    RUNNING = "running"  # resident: holds a row of the block tables
    SWAPPED = "swapped"  # evicted, what it computed lies on the host
    FINISHED = "finished"


class FinishReason(StrEnum):
    LENGTH = "length"  # max_tokens reached
    STOP = "stop"  # the model emitted EOS, or the text came to a stop string
    CANCELLED = "cancelled"  # the client went away
    SLOW_READER = "slow-reader"  # the client let its answer pile up
    EXPIRED = "expired"  # its deadline passed before it was started


class SpanKind(StrEnum):
    PREFILL = (
        "prefill"  # a part of what was there before the next token: the prompt, and after an eviction all
    )
    DECODE = "decode"  # one token in each of the steps in which anybody decoded
    EVICTED = "evicted"  # memory ran out; `tokens` lost or swapped out
    DISPLACED = "displaced"  # gave its place to a request that outranks it


class Span(msgspec.Struct, array_like=True, gc=False):
    """What a request did in some steps, first to last, and how many tokens of it that concerned."""

    kind: SpanKind
    first_step: int
    last_step: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn; temperature 0 is greedy, top_k 0 and top_p 1 keep everything."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


GREEDY = Sampling()


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """tokens: prompt, then what was emitted. slot: its row in the block tables, -1 while not resident.

    high_water: the most tokens that ever had valid KV; what is computed below it is recomputation.
    num_cached: tokens that were found in the cache on admission. host_blocks: where it was swapped out to.
    spans: in which steps it was computed or evicted, in order.
    """

    handle: int
    request_id: str
    tokens: list[int]
    num_prompt: int
    max_tokens: int
    arrived_ns: int
    min_tokens: int = 0
    ignore_eos: bool = True
    priority: int = 0
    user: str = ""
    sampling: Sampling = GREEDY

    status: Status = Status.WAITING
    slot: int = -1
    num_computed: int = 0
    high_water: int = 0
    num_recomputed: int = 0
    num_cached: int = 0
    host_blocks: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    spans: list[Span] = field(default_factory=list)
    enqueued_ns: int = 0
    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    finish_reason: FinishReason | None = None

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_missing(self) -> int:
        """Tokens still to compute before the next one can be emitted; 1 while decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        num_tokens = len(self.tokens)
        return num_tokens - self.num_computed == 1 and num_tokens > self.num_prompt

    @property
    def max_total(self) -> int:
        return self.num_prompt + self.max_tokens

    def note_decodes(self, first_step: int, last_step: int, num_tokens: int, decoded_before: int) -> None:
        """Extend the span of decodes; decoded_before: the last step before these in which anybody decoded."""
        span = self.spans[-1]
        if span.kind is SpanKind.DECODE and span.last_step == decoded_before:
            span.last_step = last_step
            span.tokens += num_tokens
        else:
            self.spans.append(Span(SpanKind.DECODE, first_step, last_step, num_tokens))

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.handle} {self.status} q={self.num_computed}/{len(self.tokens)}"
            f" emitted={self.num_emitted}/{self.max_tokens} slot={self.slot}>"
        )
