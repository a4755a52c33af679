"""Systems whose steady state is known in closed form, simulated: what statistics are tried on.

Seeds fix the unit-rate gaps and the sizes; a rate only stretches the gaps (common random numbers).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def fifo_waits(gaps: Floats, services: Floats) -> Floats:
    """Time in the queue of a FIFO server (Lindley's recursion, vectorised); gaps: before each arrival."""
    walk = np.cumsum(np.concatenate([[0.0], services[:-1]]) - gaps)
    return np.asarray(walk - np.minimum.accumulate(np.minimum(walk, 0)))


def md1_wait_cdf(t: float, rate: float) -> float:
    """P(wait <= t) of M/D/1 with service time 1 (Erlang 1909); exact enough for t up to 20."""
    terms = (math.exp(-rate * (k - t)) * (rate * (k - t)) ** k / math.factorial(k) for k in range(int(t) + 1))
    return (1 - rate) * math.fsum(terms)


def batching_times(gaps: Floats, tokens: Floats, *, c: float, a: float, cap: int) -> Floats:
    """Time in system under continuous batching: a step of n sequences costs c + a n and gives each a token.

    In the limit of small steps: all that run progress at the same speed 1 / (c + a n), at most `cap` at once,
    the others wait in order of arrival.
    """
    arrivals = np.cumsum(gaps).tolist()
    num = len(arrivals)
    times = [0.0] * num
    running: list[tuple[float, int]] = []  # progress at which each ends
    waiting: deque[int] = deque()
    now = progress = 0.0
    index = 0
    while index < num or running:
        per_token = c + a * len(running)
        ends = now + (running[0][0] - progress) * per_token if running else math.inf
        if index < num and arrivals[index] <= ends:
            progress += (arrivals[index] - now) / per_token
            now = arrivals[index]
            if len(running) < cap:
                heapq.heappush(running, (progress + tokens[index], index))
            else:
                waiting.append(index)
            index += 1
            continue
        progress, ended = heapq.heappop(running)
        now = ends
        times[ended] = now - arrivals[ended]
        if waiting:
            admitted = waiting.popleft()
            heapq.heappush(running, (progress + tokens[admitted], admitted))
    return np.array(times)


def batching_mean_time(rate: float, *, c: float, a: float, cap: int, tokens: float) -> float:
    """Mean time in system of that system with exponential lengths: a birth-death chain and Little's law."""
    weight, total, weighted = 1.0, 1.0, 0.0
    for n in range(1, 20_000):
        busy = min(n, cap)
        weight *= rate * (c + a * busy) * tokens / busy
        total += weight
        weighted += n * weight
        if n > cap and weight < 1e-15 * total:
            break
    return weighted / total / rate


def solve(function: Callable[[float], float], low: float, high: float) -> float:
    """Where an increasing function crosses 0."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return (low + high) / 2
