"""Who may come in at all: admission control before a request is queued, and the end of patience after.

Four rules, each off by default: a cap on the queue, a token bucket, a predicted wait above what was promised,
and a waiting request whose deadline has passed. Whoever is turned away is told at once, with 429.
"""

from __future__ import annotations

from collections import deque

from reference_engine.config import DoorConfig
from reference_engine.policies.base import State
from reference_engine.sequence import Sequence, Status
from reference_engine.step import StepPlan

RATE_MEMORY = 0.98  # weight of the past in the running mean of the service rate


class TurnedAwayError(Exception):
    """A request that the engine could serve, but will not now."""


class Door:
    """Keeps the token bucket and the measured service rate."""

    def __init__(self, config: DoorConfig) -> None:
        self._config = config
        self._bucket_tokens = float(config.bucket_tokens)
        self._filled_ns = 0
        self._tokens_per_ns = 0.0
        self._due: deque[tuple[int, Sequence]] = deque()

    def check(self, sequence: Sequence, state: State, now_ns: int) -> None:
        """Let a request in; raises TurnedAwayError with the rule that it met."""
        config = self._config
        if config.max_waiting and len(state.waiting) >= config.max_waiting:
            raise TurnedAwayError(f"{len(state.waiting)} requests are waiting, which is the most allowed")
        if config.max_wait_s and self._tokens_per_ns:
            wait_s = self._work_ahead(sequence, state) / self._tokens_per_ns / 1e9
            if wait_s > config.max_wait_s:
                raise TurnedAwayError(
                    f"the first token would take about {wait_s:.1f} s, above {config.max_wait_s:g} s"
                )
        if config.bucket_tokens:
            self._take_from_bucket(sequence.num_prompt, now_ns)
        if config.drop_after_s:
            self._due.append((sequence.arrived_ns + int(config.drop_after_s * 1e9), sequence))

    def _work_ahead(self, sequence: Sequence, state: State) -> int:
        unfinished = sum(s.num_missing for s in state.running if not s.is_decoding)
        return sequence.num_prompt + unfinished + sum(s.max_total for s in state.waiting)

    def _take_from_bucket(self, num_tokens: int, now_ns: int) -> None:
        config = self._config
        refill = (now_ns - self._filled_ns) / 1e9 * config.bucket_tokens_per_s
        self._bucket_tokens = min(float(config.bucket_tokens), self._bucket_tokens + refill)
        self._filled_ns = now_ns
        if num_tokens > self._bucket_tokens:
            raise TurnedAwayError(
                f"the prompt has {num_tokens} tokens, and the bucket holds {self._bucket_tokens:.0f} now"
            )
        self._bucket_tokens -= num_tokens

    def expired(self, now_ns: int) -> list[Sequence]:
        """Return the requests whose deadline has passed before they were first scheduled."""
        late: list[Sequence] = []
        while self._due and self._due[0][0] <= now_ns:
            sequence = self._due.popleft()[1]
            if sequence.status is Status.WAITING and sequence.first_scheduled_ns is None:
                late.append(sequence)
        return late

    def next_deadline_ns(self) -> int | None:
        """Return when `expired` may next give something; None for never, as things stand."""
        while self._due:
            due_ns, sequence = self._due[0]
            if sequence.status is Status.WAITING and sequence.first_scheduled_ns is None:
                return due_ns
            self._due.popleft()
        return None

    def observe(self, plan: StepPlan, duration_ns: int) -> None:
        """Learn the service rate from a step."""
        rate = (plan.num_decodes + plan.num_prefill_tokens) / max(1, duration_ns)
        past = self._tokens_per_ns
        self._tokens_per_ns = rate if not past else RATE_MEMORY * past + (1 - RATE_MEMORY) * rate
