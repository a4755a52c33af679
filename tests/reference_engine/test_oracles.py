"""The simulator against queueing theory: exact identities, and formulas within what the seeds allow.

A formula holds within four standard errors over seeds, plus the error of the formula itself where it is a
limit (small steps). The sources are textbook queues; continuous batching with an affine step cost is a
processor-sharing queue whose speed depends on the number in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from reference_engine.config import DoorConfig, EngineConfig
from reference_engine.steplog import STEP_COLUMNS
from tests.reference_engine.simulated import Outcomes, make_plan, simulate
from workloads.plan import Plan

BASE_S, PER_SEQ_S = 0.008, 0.00025
AFFINE = "affine(base=8ms,per_seq=0.25ms)"
CONSTANT = "affine(base=8ms)"
CONFIG = EngineConfig(kv_tokens=4_000_000, max_batch=1, chunk_tokens=8192, max_model_len=8192)
WAITS = ("wait_align", "wait_slot", "wait_budget", "wait_memory", "wait_order", "wait_policy", "wait_gate")

Lengths = Callable[[np.random.Generator, int], NDArray[np.int64]]


def fixed(mean: int) -> Lengths:
    return lambda _, n: np.full(n, mean)


def geometric(mean: int) -> Lengths:
    return lambda rng, n: rng.geometric(1 / mean, n)


def bimodal(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    """Mean 100: nine short answers to one long."""
    return np.where(rng.random(n) < 0.1, 550, 50)


def poisson(seed: int, rate_per_s: float, n: int, lengths: Lengths) -> Plan:
    rng = np.random.default_rng(seed)
    return make_plan(np.cumsum(rng.exponential(1 / rate_per_s, n)), 1, lengths(rng, n))


def waits_s(outcomes: Outcomes) -> NDArray[np.float64]:
    return sum((outcomes.column(name) for name in WAITS), np.zeros(len(outcomes.buckets))) / 1e9


def check_mean(
    values: list[float], expected: float, *, formula_error: float = 0.0, scatter: float = 0.08
) -> None:
    """values: one per seed. Fails where the seeds themselves say too little, too."""
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    assert error < scatter * expected, f"the seeds scatter too much: {values}"
    assert abs(np.mean(values) - expected) < 4 * error + formula_error * expected, (np.mean(values), expected)


def test_little_holds_exactly() -> None:
    config = replace(CONFIG, max_batch=12, kv_tokens=1200, chunk_tokens=64, max_model_len=512)
    rng = np.random.default_rng(1)
    plan = make_plan(
        np.cumsum(rng.exponential(0.02, 400)), rng.integers(1, 150, 400), rng.integers(1, 90, 400)
    )
    outcomes = simulate(config, plan, has_steps=True)
    assert outcomes.steps is not None
    assert sum(outcomes.preemptions.values()) > 0
    start, end, waiting, running = (
        outcomes.steps[:, STEP_COLUMNS.index(name)] for name in ("start_ns", "end_ns", "waiting", "running")
    )
    queued = sum(outcomes.column(name).sum() for name in (*WAITS[1:], "preempted"))
    assert queued == (waiting * (end - start)).sum()
    last = np.array([outcomes.stamps_ns[row][-1] for row in range(len(plan))])
    ended_with = np.searchsorted(np.sort(last), end, side="right") - np.searchsorted(np.sort(last), end)
    resident = ((running + ended_with) * (end - start)).sum()
    total = outcomes.latencies(plan).sum()
    assert total == resident + queued + outcomes.column("wait_align").sum()


def test_little_holds_exactly_for_blocks() -> None:
    """Blocks times the time that each request held them are the integral of the blocks in use."""
    config = replace(CONFIG, max_batch=12, kv_tokens=2400, max_model_len=512, policy="orca")
    rng = np.random.default_rng(1)
    prompts, outputs = rng.integers(1, 150, 400), rng.integers(1, 90, 400)
    plan = make_plan(np.cumsum(rng.exponential(0.02, 400)), prompts, outputs)
    outcomes = simulate(config, plan, has_steps=True)
    assert outcomes.steps is not None
    start, end, used = (
        outcomes.steps[:, STEP_COLUMNS.index(name)] for name in ("start_ns", "end_ns", "kv_used")
    )
    blocks = -(-(prompts + outputs) // config.block_tokens)  # reserved on admission, given back at the end
    resident_ns = outcomes.latencies(plan) - np.sum([outcomes.column(name) for name in WAITS], axis=0)
    last = np.array([outcomes.stamps_ns[row][-1] for row in range(len(plan))])
    given_back = np.bincount(np.searchsorted(end, last), weights=blocks, minlength=len(end))
    assert (blocks * resident_ns).sum() == ((used + given_back) * (end - start)).sum()


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_m_d_1(load: float) -> None:
    service_s = 20 * BASE_S
    rate = load / service_s
    runs = [waits_s(simulate(CONFIG, poisson(s, rate, 3000, fixed(20)), CONSTANT)) for s in range(6)]
    check_mean([run.mean() for run in runs], load * service_s / (2 * (1 - load)))
    check_mean([float((run == 0).mean()) for run in runs], 1 - load)  # arrivals that find it idle
    for multiple in (0.5, 1.0, 2.5):
        t = multiple * service_s
        check_mean([float((run <= t).mean()) for run in runs], wait_cdf_m_d_1(t, rate, service_s))


def wait_cdf_m_d_1(t: float, rate: float, service_s: float) -> float:
    k = np.arange(int(t / service_s) + 1)
    x = rate * (k * service_s - t)
    factorials = np.cumprod([1.0, *k[1:]])
    return float((1 - rate * service_s) * np.sum(x**k / factorials * np.exp(-x)))


def test_m_g_1_with_geometric_answers() -> None:
    mean, load = 100, 0.6
    service_s = mean * BASE_S
    rate, second = load / service_s, (2 * mean**2 - mean) * BASE_S**2
    runs = [waits_s(simulate(CONFIG, poisson(s, rate, 5000, geometric(mean)), CONSTANT)) for s in range(6)]
    check_mean([run.mean() for run in runs], rate * second / (2 * (1 - load)))
    for t in (0.5 * service_s, 2 * service_s):
        expected = load * np.exp(-(1 - load) * t / service_s)
        check_mean([float((run > t).mean()) for run in runs], expected, formula_error=0.01)


def test_m_m_b() -> None:
    mean, servers, load = 100, 8, 0.7
    config = replace(CONFIG, max_batch=servers)
    rate = load * servers / (mean * BASE_S)
    offered = rate * mean * BASE_S
    waiting, wait = [], []
    for seed in range(9):
        outcomes = simulate(config, poisson(seed, rate, 6000, geometric(mean)), CONSTANT)
        behind = (waits_s(outcomes) * 1e9 - outcomes.column("wait_align")) / 1e9
        waiting.append(float((behind > 0).mean()))
        wait.append(float(behind.mean()))
    expected = erlang_c(servers, offered)
    check_mean(waiting, expected, formula_error=0.02, scatter=0.08)
    check_mean(wait, expected * mean * BASE_S / (servers * (1 - load)), formula_error=0.02, scatter=0.08)


def erlang_c(servers: int, offered: float) -> float:
    blocking = erlang_b(servers, offered)
    return blocking / (1 - offered / servers * (1 - blocking))


def erlang_b(servers: int, offered: float) -> float:
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = offered * blocking / (k + offered * blocking)
    return blocking


def test_without_a_cap_the_number_in_service_is_poisson() -> None:
    mean, offered = 100, 12.0
    config = replace(CONFIG, max_batch=256)
    rate = offered / (mean * BASE_S)
    means, ratios = [], []
    for seed in range(6):
        outcomes = simulate(config, poisson(seed, rate, 3000, bimodal), CONSTANT, has_steps=True)
        level, ticks = number_in_service(outcomes)
        average = np.average(level, weights=ticks)
        means.append(float(average))
        ratios.append(float(np.average((level - average) ** 2, weights=ticks) / average))
    check_mean(means, offered, formula_error=0.01)
    check_mean(ratios, 1.0, formula_error=0.02, scatter=0.08)


def number_in_service(outcomes: Outcomes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the residents of each step and its length, without the first and the last tenth of the run."""
    assert outcomes.steps is not None
    steps = outcomes.steps[len(outcomes.steps) // 10 : -len(outcomes.steps) // 10]
    start, end, decodes, prompts = (
        steps[:, STEP_COLUMNS.index(name)] for name in ("start_ns", "end_ns", "decode_seqs", "prefill_seqs")
    )
    return decodes + prompts, end - start


def test_a_full_queue_turns_away_as_in_m_m_1_k() -> None:
    mean, load, places = 100, 0.8, 3
    config = replace(CONFIG, door=DoorConfig(max_waiting=places - 1))
    rate = load / (mean * BASE_S)
    lost = []
    for seed in range(8):
        outcomes = simulate(config, poisson(seed, rate, 4000, geometric(mean)), CONSTANT)
        lost.append(len(outcomes.failures) / 4000)
    expected = (1 - load) * load**places / (1 - load ** (places + 1))
    check_mean(lost, expected, formula_error=0.02)


LENGTHS = pytest.mark.parametrize(
    "lengths", [fixed(100), geometric(100), bimodal], ids=["fixed", "geometric", "bimodal"]
)


@LENGTHS
def test_without_a_queue_blocking_is_erlangs_whatever_the_lengths(lengths: Lengths) -> None:
    """A request that does not start at the next step is dropped: a queue of one step in a hundred."""
    servers, offered = 4, 3.0
    config = replace(CONFIG, max_batch=servers, door=DoorConfig(drop_after_s=BASE_S))
    lost = []
    for seed in range(6):
        outcomes = simulate(config, poisson(seed, offered / (100 * BASE_S), 2500, lengths), CONSTANT)
        lost.append(len(outcomes.failures) / 2500)
    check_mean(lost, erlang_b(servers, offered), formula_error=0.02)


@LENGTHS
def test_continuous_batching_is_processor_sharing(lengths: Lengths) -> None:
    busy = 0.5  # y = rate * per_seq * mean length
    config = replace(CONFIG, max_batch=512)
    rate = busy / (PER_SEQ_S * 100)
    times, slopes, counts = [], [], []
    for seed in range(4):
        plan = poisson(seed, rate, 2500, lengths)
        outcomes = simulate(config, plan, AFFINE, has_steps=True)
        e2e_s = outcomes.latencies(plan) / 1e9 - outcomes.column("wait_align") / 1e9
        settled = slice(300, -300)
        times.append(float(e2e_s[settled].mean()))
        slowdown = e2e_s[settled] / plan.output_tokens[settled]
        is_short = plan.output_tokens[settled] <= np.median(plan.output_tokens)
        slopes.append(float(slowdown[is_short].mean() / slowdown.mean()))
        level, ticks = number_in_service(outcomes)
        counts.append(float(np.average(level, weights=ticks)))
    per_token_s = (BASE_S + PER_SEQ_S) / (1 - busy)
    check_mean(times, per_token_s * 100, formula_error=0.015)
    check_mean(slopes, 1.0, formula_error=0.02)  # short and long are slowed down alike
    expected = stats.nbinom.mean(BASE_S / PER_SEQ_S + 1, 1 - busy)
    check_mean(counts, float(expected), formula_error=0.03)


def test_a_batch_cap_makes_it_a_birth_death_queue() -> None:
    cap, mean = 16, 60
    config = replace(CONFIG, max_batch=cap)
    rate = 0.75 * cap / ((BASE_S + PER_SEQ_S * cap) * mean)
    n = np.arange(1, 4000)
    service = np.minimum(n, cap) / ((BASE_S + PER_SEQ_S * np.minimum(n, cap)) * mean)
    weight = np.concatenate([[1.0], np.exp(np.cumsum(np.log(rate / service)))])
    share = weight / weight.sum()
    in_system = float((np.arange(4000) * share).sum()) / rate
    times = []
    for seed in range(6):
        plan = poisson(seed, rate, 5000, geometric(mean))
        outcomes = simulate(config, plan, AFFINE)
        times.append(float((outcomes.latencies(plan) - outcomes.column("wait_align"))[300:].mean() / 1e9))
    check_mean(times, in_system, formula_error=0.02)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (geometric(60), sum(1 / k for k in range(1, 9))),
        (lambda rng, n: rng.integers(1, 121, n), 2 * 8 / 9),
        (fixed(60), 1.0),
    ],
    ids=["geometric", "uniform", "fixed"],
)
def test_a_static_batch_wastes_what_its_longest_member_takes(lengths: Lengths, expected: float) -> None:
    ratios = []
    for seed in range(5):
        plan = make_plan(np.zeros(1600), 1, lengths(np.random.default_rng(seed), 1600))
        static, continuous = (
            simulate(replace(CONFIG, max_batch=8, policy=policy), plan, AFFINE)
            for policy in ("static", "vllm-v1")
        )
        ratios.append(
            max(s[-1] for s in static.stamps_ns.values()) / max(s[-1] for s in continuous.stamps_ns.values())
        )
    check_mean(ratios, expected, formula_error=0.03)  # the last batches are not full


def backlog_slope(config: EngineConfig, plan: Plan, cost: str) -> float:
    """Return how fast the number of requests in the system grows while they arrive, per second."""
    outcomes = simulate(config, plan, cost)
    until_ns = int(plan.arrival_ns[-1])
    left = sum(stamps[-1] > until_ns for stamps in outcomes.stamps_ns.values())
    half = int(plan.arrival_ns[len(plan) // 2])
    left_half = sum(
        stamps[-1] > half and plan.arrival_ns[row] <= half for row, stamps in outcomes.stamps_ns.items()
    )
    return float(left - left_half) / (until_ns - half) * 1e9


STATIC_MAX = 8 / (30 * sum(1 / k for k in range(1, 9)) * (BASE_S + 8 * PER_SEQ_S))
PROMPT_S, DECODES_S = 0.040, 30 * (BASE_S + 8 * PER_SEQ_S) / 8
CASES = {
    "static": (replace(CONFIG, policy="static", max_batch=8), 1, AFFINE, STATIC_MAX),
    "prefill-first": (
        replace(CONFIG, policy="vllm-v0", max_batch=8, chunk_tokens=60, max_model_len=512),
        400,
        "affine(base=8ms,per_seq=0.25ms,per_token=79.375us)",
        1 / (PROMPT_S + DECODES_S),
    ),
    "one budget": (
        replace(CONFIG, policy="vllm-v1", max_batch=256, chunk_tokens=64),
        34,
        CONSTANT,
        64 / (BASE_S * (34 + 30 - 1)),  # the prompt's last token is the step of the first answer token
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_backlog_grows_by_what_is_above_capacity(case: str) -> None:
    config, prompt, cost, most_per_s = CASES[case]

    def plan(seed: int, rate: float) -> Plan:
        rng = np.random.default_rng(seed)
        n = 3000
        return make_plan(np.cumsum(rng.exponential(1 / rate, n)), prompt, rng.geometric(1 / 30, n))

    below, above = 0.85 * most_per_s, 1.5 * most_per_s
    calm = [backlog_slope(config, plan(seed, below), cost) for seed in range(4)]
    assert abs(np.mean(calm)) < 0.03 * most_per_s
    growing = [backlog_slope(config, plan(seed, above), cost) for seed in range(4)]
    check_mean(growing, above - most_per_s, formula_error=0.1)


def test_shortest_first_waits_by_class() -> None:
    short, long, load = 10, 50, 0.7
    lengths: Lengths = lambda rng, n: np.where(rng.random(n) < 0.5, short, long)  # noqa: E731
    config = replace(CONFIG, knobs={"order": "sjf-oracle"})
    services = np.array([short, long]) * BASE_S
    rate = load / services.mean()
    residual = rate * (services**2).mean() / 2
    share = rate * services / 2
    expected = residual / (1 - share[0]), residual / ((1 - share[0]) * (1 - load))
    waits: tuple[list[float], list[float]] = ([], [])
    for seed in range(8):
        plan = poisson(seed, rate, 5000, lengths)
        wait = waits_s(simulate(config, plan, CONSTANT))
        for found, length in zip(waits, (short, long), strict=True):
            found.append(float(wait[plan.output_tokens == length].mean()))
    for found, value in zip(waits, expected, strict=True):
        check_mean(found, value)


def test_a_class_that_displaces_the_other_waits_for_none_of_it() -> None:
    """Preemptive resume, cap 1: an evicted answer is computed again at once, for a prompt costs one step."""
    short, long, load = 10, 50, 0.6
    lengths: Lengths = lambda rng, n: np.where(rng.random(n) < 0.5, short, long)  # noqa: E731
    config = replace(CONFIG, knobs={"order": "srpt-oracle", "displace": True})
    services = np.array([short, long]) * BASE_S
    rate = load / services.mean()
    shares = rate * services / 2
    alone_s = services[0] / (1 - shares[0]) * (1 - shares[0] / 2)  # M/D/1 of the short ones: sojourn
    times = []
    for seed in range(6):
        plan = poisson(seed, rate, 2000, lengths)
        outcomes = simulate(config, plan, CONSTANT)
        e2e_s = (outcomes.latencies(plan) - outcomes.column("wait_align")) / 1e9
        times.append(float(e2e_s[plan.output_tokens == short].mean()))
    check_mean(times, alone_s, formula_error=0.05)
