"""What the engine tests share: a stub executor, sequences, and runs to the end with invariants asserted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, pairwise

from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.policies import make_policy
from reference_engine.scheduler import Scheduler
from reference_engine.sequence import Sequence
from reference_engine.step import StepPlan


class VirtualClock:
    """Nanoseconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def stub_token(tokens: list[int]) -> int:
    """Return the next token of the stub model: a function of all tokens before it, between 1 and 512."""
    return 1 + sum((i + 1) * token for i, token in enumerate(tokens)) % 512


class StubExecutor:
    """A model without arithmetic; each step takes base + per_token of virtual time."""

    def __init__(self, clock: VirtualClock, base_ns: int, per_token_ns: int) -> None:
        self._clock = clock
        self._base_ns = base_ns
        self._per_token_ns = per_token_ns

    def execute(self, plan: StepPlan) -> list[int]:
        num_tokens = sum(entry.num_tokens for entry in plan.scheduled + plan.padding)
        self._clock.now_ns += self._base_ns + self._per_token_ns * num_tokens
        return [
            stub_token(sequence.tokens) if sequence.num_missing == n else -1 for sequence, n in plan.scheduled
        ]


def stub_engine(config: EngineConfig, base_ns: int = 1_000_000, per_token_ns: int = 10_000) -> Engine:
    clock = VirtualClock()
    executor = StubExecutor(clock, base_ns, per_token_ns)
    return Engine(config, Scheduler(config, make_policy(config)), executor, clock)


_handles = count()


def make_sequence(
    prompt: Iterable[int], max_tokens: int, *, arrived_ns: int = 0, priority: int = 0, user: str = ""
) -> Sequence:
    tokens, handle = list(prompt), next(_handles)
    return Sequence(
        handle=handle,
        request_id=f"r-{handle}",
        tokens=tokens,
        num_prompt=len(tokens),
        max_tokens=max_tokens,
        arrived_ns=arrived_ns,
        priority=priority,
        user=user,
    )


def answer_of(sequence: Sequence) -> list[int]:
    return sequence.tokens[sequence.num_prompt :]


def run_to_end(engine: Engine, sequences: Iterable[Sequence] = (), max_steps: int = 100_000) -> int:
    """Add the sequences, step until nothing is left, and return the number of steps."""
    for sequence in sequences:
        engine.add(sequence)
    num_steps = 0
    while engine.has_work:
        engine.step()
        num_steps += 1
        assert num_steps < max_steps, "the engine does not come to an end"
    return num_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came of a simulated load. token_ns: for each request, when each of its tokens came out."""

    requests: list[Sequence]
    token_ns: dict[int, list[int]]
    engine: Engine

    @property
    def num_preemptions(self) -> int:
        return sum(request.num_preemptions for request in self.requests)

    @property
    def span_ns(self) -> int:
        return max(times[-1] for times in self.token_ns.values())

    def ttft_ns(self, request: Sequence) -> int:
        return self.token_ns[request.handle][0] - request.arrived_ns

    def e2e_ns(self, request: Sequence) -> int:
        return self.token_ns[request.handle][-1] - request.arrived_ns

    def max_gap_ns(self, request: Sequence) -> int:
        times = self.token_ns[request.handle]
        return max((b - a for a, b in pairwise(times)), default=0)


def simulate(engine: Engine, requests: list[Sequence], max_steps: int = 200_000) -> Simulated:
    """Play requests in virtual time, each added when it arrives, until all are done."""
    clock = engine.clock_ns
    assert isinstance(clock, VirtualClock)
    pending = deque(sorted(requests, key=lambda request: request.arrived_ns))
    token_ns: dict[int, list[int]] = {request.handle: [] for request in requests}
    for _ in range(max_steps):
        if not engine.has_work and pending:
            clock.now_ns = max(clock.now_ns, pending[0].arrived_ns)
        while pending and pending[0].arrived_ns <= clock.now_ns:
            engine.add(pending.popleft())
        if not engine.has_work:
            return Simulated(requests=requests, token_ns=token_ns, engine=engine)
        for emission in engine.step():
            token_ns[emission.sequence.handle].append(clock.now_ns)
    raise AssertionError("the load does not come to an end")
