"""Servers whose steady state is known, as a capacity search meets them: a trial in, what the run says out.

Simulated without the reference engine, judged by the code that judges a run folder. Seeds fix the unit-rate
gaps and the work; a rate only stretches the gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log
from typing import cast

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.capacity import MIN_REQUESTS, Said
from loadgen.measure.columns import Columns
from loadgen.measure.events import BY_REQUEST, Events
from loadgen.measure.gaps import Gaps
from loadgen.measure.measured import Measured
from loadgen.measure.metrics import compute_samples, request_values
from loadgen.measure.slo import parse_slo
from loadgen.measure.window import choose_window
from loadgen.stats.capacity import Evidence, Search, Trial, next_trial
from tests.loadgen.queues import batching_mean_time, batching_times, fifo_waits, md1_wait_cdf, solve

Floats = NDArray[np.float64]
# gaps and work (mean 1) in, waits for the first token and times in system out
Serve = Callable[[Floats, Floats], tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """true_per_s: the highest rate at which the objective holds. tokens: of a mean answer."""

    name: str
    slo: str
    true_per_s: float
    serve: Serve
    is_exponential: bool = False
    tokens: float = 100.0

    def run(self, trial: Trial, key: int) -> Evidence:
        """Make a run, and judge it as `bench capacity` does."""
        length_s = max(trial.length_s, MIN_REQUESTS / trial.rate_per_s)
        rng, of_work = (np.random.default_rng([key, trial.replicate, stream]) for stream in (0, 1))
        at = np.cumsum(rng.exponential(size=int(1.5 * length_s * trial.rate_per_s) + 100)) / trial.rate_per_s
        at = at[at < length_s]
        work = of_work.exponential(size=len(at)) if self.is_exponential else np.ones(len(at))
        ttft, took = self.serve(np.diff(at, prepend=0.0), work)
        said = Said.of(
            _measured(at, ttft, took, work * self.tokens, length_s, trial.rate_per_s), [parse_slo(self.slo)]
        )
        return Evidence(
            trial=trial,
            margin=said.margin if said.is_healthy else inf,
            served_per_s=said.served_per_s,
            num_values=said.num_values,
            shortfall=said.shortfall,
            answer_s=said.answer_s,
        )

    def search(self, key: int, search: Search) -> list[Evidence]:
        """Search to the end."""
        runs: list[Evidence] = []
        while (trial := next_trial(runs, search)) is not None:
            runs.append(self.run(trial, key))
        return runs


def _measured(
    at: Floats, ttft: Floats, took: Floats, tokens: Floats, length_s: float, rate_per_s: float
) -> Measured:
    due, first, last = at * 1e9, (at + ttft) * 1e9, (at + took) * 1e9
    columns = Columns(
        scheduled_ns=due,
        sent_ns=due,
        connected_ns=due,
        first_token_ns=first,
        first_answer_ns=first,
        last_token_ns=last,
        done_ns=last,
        recv_lag_ns=np.zeros(len(at)),
        write_lag_ns=np.zeros(len(at)),
        prompt_tokens_planned=np.ones(len(at)),
        output_tokens_planned=tokens,
        prompt_tokens=np.ones(len(at)),
        output_tokens=tokens,
        cached_tokens=np.zeros(len(at)),
        outcome_code=np.zeros(len(at), np.int8),
        is_kernel_stamped=np.ones(len(at), np.bool_),
    )
    window = choose_window(columns, None, length_s * 1e9)
    counted = np.asarray(columns.is_ok & window.holds(due))
    nothing = np.zeros(0, np.int64)
    gaps = Gaps(ns=nothing, offsets=np.zeros(int(counted.sum()) + 1, np.int64), tokens=None)
    by_request = {name: np.full(int(counted.sum()), np.nan) for name in BY_REQUEST}
    values = request_values(columns, counted, by_request)
    return Measured(
        columns=columns,
        workload={"arrival": "poisson", "rate_per_s": rate_per_s},
        window=window,
        flow=window,
        counted=counted,
        is_open=np.ones(len(at), np.bool_),
        events=cast(Events, None),  # no figure here rests on them
        gaps=gaps,
        values=values,
        ranges={},
        samples=compute_samples(values, {}, gaps, columns, window),
    )


def one_at_a_time(service_s: float) -> Serve:
    """The first token comes with the last."""

    def serve(gaps: Floats, work: Floats) -> tuple[Floats, Floats]:
        took = fifo_waits(gaps, work * service_s) + work * service_s
        return took, took

    return serve


def constant_steps(room: int, step_s: float, tokens: int) -> Serve:
    """Every step takes as long, however many are in it, up to `room`; answers are equally long.

    In order of arrival each place is taken by every room-th request: so many queues of their own.
    """

    def serve(gaps: Floats, _: Floats) -> tuple[Floats, Floats]:
        at, waits = np.cumsum(gaps), np.zeros(len(gaps))
        for place in range(min(room, len(gaps))):
            own = at[place::room]
            waits[place::room] = fifo_waits(np.diff(own, prepend=0.0), np.full(len(own), step_s * tokens))
        return waits + step_s, waits + step_s * tokens

    return serve


def held_batches(size: int, batch_s: float) -> Serve:
    """`static`: at most `size` are let in together, and nobody else until all of them have ended."""

    def serve(gaps: Floats, _: Floats) -> tuple[Floats, Floats]:
        at = np.cumsum(gaps)
        begun = np.zeros(len(at))
        free, index = 0.0, 0
        while index < len(at):
            start = max(free, at[index])
            end = min(index + size, int(np.searchsorted(at, start, side="right")))
            begun[index:end] = start
            free, index = start + batch_s, end
        return begun - at + batch_s / 100, begun - at + batch_s

    return serve


def slower_when_full(c: float, a: float, cap: int, tokens: float) -> Serve:
    """Continuous batching: a step of n costs c + a n."""

    def serve(gaps: Floats, work: Floats) -> tuple[Floats, Floats]:
        took = batching_times(gaps, work * tokens, c=c, a=a, cap=cap)
        return took, took

    return serve


def md1_rate(service_s: float, share: float, limit_s: float) -> float:
    """Where a percentile of the time in M/D/1 reaches the limit; far out by the tail of the wait."""

    def cdf(t: float, load: float) -> float:
        if t < 15:
            return md1_wait_cdf(t, load)
        theta = solve(lambda x: load * (exp(x) - 1) - x, 1e-9, 50)
        return 1 - (1 - load) / (load * exp(theta) - 1) * exp(-theta * t)

    return solve(lambda load: share - cdf(limit_s / service_s - 1, load), 0.05, 0.999) / service_s


def simulated_rate(serve: Serve, share: float, limit_s: float, highest_per_s: float) -> float:
    """Where a percentile of TTFT reaches the limit, by long runs: 30 times 200,000 requests."""

    def excess(rate: float) -> float:
        shares = []
        for seed in range(30):
            gaps = np.random.default_rng([99, seed]).exponential(size=200_000) / rate
            ttft, _ = serve(gaps, np.ones(len(gaps)))
            shares.append(float(np.mean(ttft[20_000:] > limit_s)))
        return float(np.mean(shares)) - (1 - share)

    low, high = highest_per_s / 2, highest_per_s
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return (low + high) / 2


STEP = {"c": 0.008, "a": 0.00025}
SERVERS = [
    Server(
        name="M/D/1, 10 ms",
        slo="ttft.mean=15ms",
        true_per_s=50.0,
        serve=one_at_a_time(0.01),
    ),
    Server(
        name="M/D/1, 50 ms",
        slo="ttft.p99=450ms",
        true_per_s=md1_rate(0.05, 0.99, 0.45),
        serve=one_at_a_time(0.05),
    ),
    Server(
        name="slow: M/D/1, 2 s",
        slo="ttft.p90=10s",
        true_per_s=md1_rate(2.0, 0.9, 10.0),
        serve=one_at_a_time(2.0),
    ),
    Server(
        name="slow: M/D/1, 2 s",
        slo="ttft.p90=60s",
        true_per_s=md1_rate(2.0, 0.9, 60.0),
        serve=one_at_a_time(2.0),
    ),
    Server(
        name="M/M/1, 50 ms",
        slo="ttft.mean=250ms",
        true_per_s=20 - 1 / 0.25,
        serve=one_at_a_time(0.05),
        is_exponential=True,
    ),
    Server(
        name="M/M/1, 2 s",
        slo="ttft.p90=10s",
        true_per_s=0.5 + log(0.1) / 10,
        serve=one_at_a_time(2.0),
        is_exponential=True,
    ),
    Server(
        name="M/M/1, 50 ms",
        slo="ttft.p99=600ms",
        true_per_s=20 + log(0.01) / 0.6,
        serve=one_at_a_time(0.05),
        is_exponential=True,
    ),
    Server(
        name="continuous batching, 32 at once",
        slo="e2e.mean=1.65s",
        true_per_s=solve(
            lambda rate: batching_mean_time(rate, cap=32, tokens=100.0, **STEP) - 1.65, 0.1, 19.8
        ),
        serve=slower_when_full(cap=32, tokens=100.0, **STEP),
        is_exponential=True,
    ),
    Server(
        name="constant steps of 30 ms, room for 4,096, answers of 600",
        slo="ttft.p90=1s",
        true_per_s=4096 / 18,
        serve=constant_steps(4096, 0.03, 600),
        tokens=600,
    ),
    Server(
        name="constant steps of 30 ms, room for 32, answers of 600",
        slo="ttft.p90=1s",
        true_per_s=1.434,
        serve=constant_steps(32, 0.03, 600),
        tokens=600,
    ),
    Server(
        name="held batches of 8, 2 s each",
        slo="ttft.p90=10s",
        true_per_s=3.878,
        serve=held_batches(8, 2.0),
    ),
    Server(
        name="constant steps of 30 ms, room for 32, answers of 600",
        slo="tpot.p99=50ms",
        true_per_s=32 / 18,
        serve=constant_steps(32, 0.03, 600),
        tokens=600,
    ),
]
