"""How often the interval of `bench capacity` holds the truth: searches of servers whose capacity is known.

python -m benchmarks.capacity             20 searches of each of 12 servers, a quarter of an hour, as Markdown
python -m benchmarks.capacity --truth     the two that have no closed form, by long runs
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from math import expm1, log
from multiprocessing import get_context

import numpy as np

from loadgen.stats.capacity import Answer, Capacity, Search, conclude
from tests.loadgen.served import SERVERS, Server, constant_steps, held_batches, simulated_rate

SEARCH = Search(lowest_per_s=0.01, highest_per_s=10_000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What one search said, and the requests and the runs that it took."""

    said: Capacity
    num_requests: float
    num_runs: int


def search(server: int, key: int) -> Searched:
    """Search one of the servers with the seeds of a key."""
    runs = SERVERS[server].search(key, SEARCH)
    num_requests = sum(run.rate_per_s * run.trial.length_s for run in runs)
    return Searched(said=conclude(runs, SEARCH), num_requests=num_requests, num_runs=len(runs))


def describe(server: Server, searched: list[Searched]) -> str:
    """A row of the table."""
    intervals = [one.said for one in searched if one.said.answer == Answer.INTERVAL]
    ends = [(said.low_per_s or 0.0, said.high_per_s or 0.0) for said in intervals]
    held = sum(low <= server.true_per_s <= high for low, high in ends)
    halves = [100 * expm1(log(high / low) / 2) for low, high in ends]
    requests = np.mean([one.num_requests for one in searched])
    runs = np.mean([one.num_runs for one in searched])
    return (
        f"| {server.name} | {server.slo} | {server.true_per_s:.4g} | {held} of {len(intervals)} | "
        f"{np.mean(halves):.1f} % ({max(halves):.1f} %) | "
        f"{np.median([said.length_s or 0.0 for said in intervals]):,.0f} s | {runs:.0f} | {requests:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--truth", action="store_true")
    given = parser.parse_args()
    if given.truth:
        print("room for 32:", simulated_rate(constant_steps(32, 0.03, 600), 0.9, 1.0, 32 / 18))
        print("held batches:", simulated_rate(held_batches(8, 2.0), 0.9, 10.0, 4.0))
        return
    print(
        "| server | objective | true /s | intervals hold it | half width (most) | runs of | runs | requests |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with get_context("spawn").Pool() as pool:
        for index, server in enumerate(SERVERS):
            print(describe(server, pool.map(partial(search, index), range(given.searches), 1)), flush=True)


if __name__ == "__main__":
    main()
