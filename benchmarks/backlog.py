"""How often the backlog is judged wrongly: servers of known capacity, below and above it, in virtual time.

Steps of 30 ms, answers of 1 to 60 s. `slots`: so many answers at once, the others wait in line. `batches`: a
whole batch is taken when the one before it has ended (a sawtooth). `sharing`: everybody is taken at once, and
a step takes longer the more there are. Each run is as long as `run_length_s` says, and made again, longer, as
long as it is undecided: to eight times that (as `bench sweep` does), then on to 60,000 requests.

    python -m benchmarks.backlog --runs 200
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.backlog import Backlog, Trend, judge_backlog, run_length_s
from loadgen.measure.columns import OUTCOMES, Columns
from loadgen.records import Outcome

Floats = NDArray[np.float64]

STEP_S = 0.03
ANSWERS_S = (1.0, 5.0, 18.0, 60.0)
BELOW, ABOVE = (0.2, 0.5, 0.8, 0.9), (1.1, 1.25, 2.0, 4.0)
SERVERS = (("slots", 1), ("slots", 8), ("slots", 64), ("batches", 8), ("batches", 32), ("sharing", 8))
LOADS = (("poisson", "fixed"), ("constant", "fixed"), ("gamma", "fixed"), ("poisson", "lognormal"))
MAX_LONGER = 8
MAX_REQUESTS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A server, what is sent to it, and how far below or above its capacity."""

    server: str
    size: int
    arrival: str
    lengths: str
    load: float
    answer_s: float

    @property
    def rate_per_s(self) -> float:
        """`size` answers at once; for `sharing` the limit as ever more are in flight."""
        return self.load * self.size / self.answer_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What came of a case. is_early: within eight times the first length."""

    backlog: Backlog
    num_runs: int
    is_early: bool
    lengths_of_answer: float


def decide(case: Case, seed: int) -> Decision:
    """Run a case until it is decided."""
    first_s = length_s = run_length_s(case.answer_s, case.rate_per_s)
    num_runs = 0
    while True:
        num_runs += 1
        found = judge_backlog(simulate(case, seed, length_s), length_s, case.rate_per_s)
        assert found.trend != Trend.UNDECIDED or found.needed_s is not None
        needed_s = found.needed_s or length_s
        if found.trend != Trend.UNDECIDED or needed_s * case.rate_per_s > MAX_REQUESTS:
            break
        length_s = needed_s
    return Decision(
        backlog=found,
        num_runs=num_runs,
        is_early=length_s <= MAX_LONGER * first_s,
        lengths_of_answer=length_s / case.answer_s,
    )


def simulate(case: Case, seed: int, length_s: float) -> Columns:
    """What a client sees of the requests of a run; a longer run begins as a shorter one does."""
    gaps_rng, lengths_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    mean = case.rate_per_s * length_s
    num = int(mean + 20 * math.sqrt(mean)) + 50
    arrivals = np.cumsum(draw_gaps(case.arrival, gaps_rng, num)) / case.rate_per_s
    arrivals = arrivals[arrivals < length_s]
    tokens = draw_tokens(case.lengths, lengths_rng, len(arrivals), case.answer_s / STEP_S)
    serve = {"slots": in_slots, "batches": in_batches, "sharing": in_shares}[case.server]
    first, last = serve(arrivals, tokens, case.size)
    return make_columns(arrivals * 1e9, first * 1e9, last * 1e9, tokens)


def make_columns(scheduled_ns: Floats, first_ns: Floats, last_ns: Floats, tokens: Floats) -> Columns:
    """Requests that were sent on time and all answered."""
    unknown, num = np.full(len(tokens), np.nan), len(tokens)
    return Columns(
        scheduled_ns=scheduled_ns,
        sent_ns=scheduled_ns,
        connected_ns=unknown,
        first_token_ns=first_ns,
        first_answer_ns=first_ns,
        last_token_ns=last_ns,
        done_ns=last_ns,
        recv_lag_ns=np.zeros(num),
        write_lag_ns=np.zeros(num),
        prompt_tokens_planned=unknown,
        output_tokens_planned=tokens,
        prompt_tokens=unknown,
        output_tokens=tokens,
        cached_tokens=unknown,
        outcome_code=np.full(num, OUTCOMES.index(Outcome.OK), np.int8),
        is_kernel_stamped=np.ones(num, np.bool_),
    )


def draw_gaps(arrival: str, rng: np.random.Generator, num: int) -> Floats:
    """Gaps of mean 1; `gamma` has a coefficient of variation of 2."""
    match arrival:
        case "poisson":
            return rng.exponential(1.0, num)
        case "gamma":
            return rng.gamma(0.25, 4.0, num)
    return np.ones(num)


def draw_tokens(lengths: str, rng: np.random.Generator, num: int, mean: float) -> Floats:
    """Answers of that mean; lognormal ones with a sigma of 0.8."""
    if lengths == "fixed":
        return np.full(num, round(mean), np.float64)
    return np.ceil(mean * rng.lognormal(-0.32, 0.8, num))


def in_slots(arrivals: Floats, tokens: Floats, size: int) -> tuple[Floats, Floats]:
    """First and last tokens of a FIFO server with `size` places."""
    free, starts = [0.0] * size, np.empty(len(arrivals))
    for i, (at, num) in enumerate(zip(arrivals.tolist(), tokens.tolist(), strict=True)):
        starts[i] = max(at, free[0])
        heapq.heapreplace(free, starts[i] + num * STEP_S)
    return starts + STEP_S, starts + tokens * STEP_S


def in_batches(arrivals: Floats, tokens: Floats, size: int) -> tuple[Floats, Floats]:
    """First and last tokens where a batch is taken when the one before it has ended."""
    starts, now, i = np.empty(len(arrivals)), 0.0, 0
    while i < len(arrivals):
        now = max(now, float(arrivals[i]))
        end = min(int(np.searchsorted(arrivals, now, side="right")), i + size)
        starts[i:end] = now
        now += float(tokens[i:end].max()) * STEP_S
        i = end
    return starts + STEP_S, starts + tokens * STEP_S


def in_shares(arrivals: Floats, tokens: Floats, size: int) -> tuple[Floats, Floats]:
    """First and last tokens where n at once take a step of STEP_S (1 + n / size)."""
    first, last = np.empty(len(arrivals)), np.empty(len(arrivals))
    running: list[tuple[float, int]] = []
    now = progress = 0.0
    i = 0
    while i < len(arrivals) or running:
        step_s = STEP_S * (1 + len(running) / size)
        ends = now + (running[0][0] - progress) * step_s if running else math.inf
        if i < len(arrivals) and arrivals[i] <= ends:
            progress += (float(arrivals[i]) - now) / step_s if running else 0.0
            now = float(arrivals[i])
            heapq.heappush(running, (progress + float(tokens[i]), i))
            first[i] = now + STEP_S * (1 + len(running) / size)
            i += 1
            continue
        (progress, ended), now = heapq.heappop(running), ends
        last[ended] = now
    return np.minimum(first, last), last


def cases(loads: tuple[float, ...], number: int) -> Iterator[Case]:
    """Every server under every load, with the answers of that number."""
    for server, size in SERVERS:
        for arrival, lengths in LOADS:
            if server == "batches" and lengths != "fixed":
                continue  # a batch lasts as long as its longest: its capacity is another
            for load in loads:
                yield Case(
                    server=server,
                    size=size,
                    arrival=arrival,
                    lengths=lengths,
                    load=load,
                    answer_s=ANSWERS_S[number % len(ANSWERS_S)],
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="of each server, load and rate")
    runs = parser.parse_args().runs
    found: dict[tuple[str, ...], list[Decision]] = {}
    for number in range(runs):
        for case in cases(BELOW + ABOVE, number):
            key = (f"{case.server} {case.size}", f"{case.arrival}, {case.lengths}", f"{case.load:g}")
            found.setdefault(key, []).append(decide(case, number))
    print("| server | arrivals, lengths | rate | steady | unstable | undecided to 8x | answers | runs |")
    print("|---|---|---|---|---|---|---|---|")
    for name, decisions in found.items():
        trends = Counter(decision.backlog.trend for decision in decisions)
        late = sum(not decision.is_early for decision in decisions)
        answers = np.median([decision.lengths_of_answer for decision in decisions])
        repeats = np.mean([decision.num_runs for decision in decisions])
        told = (trends[Trend.STEADY], trends[Trend.UNSTABLE], late, f"{answers:.0f}", f"{repeats:.1f}")
        print("|", " | ".join([*name, *map(str, told)]), "|", flush=True)


if __name__ == "__main__":
    main()
