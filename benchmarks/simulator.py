"""How fast virtual time passes: requests per second of CPU time, with full KV accounting and attribution.

`python -m benchmarks.simulator` runs Poisson requests of 512 prompt and 128 answer tokens at 60 % of capacity
(a step of 8 ms and 0.25 ms a request, 64 in a batch, whole prompts in a step), each row in a process of its
own. Memory is the peak above what the plan takes, which alone grows with the run.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from loadgen.cli.simulate import Recorder
from loadgen.drive.dispatch import OpenSchedule, split_plan
from loadgen.virtual import VirtualRows
from reference_engine.account import Account
from reference_engine.config import EngineConfig
from reference_engine.cost import parse_cost
from reference_engine.sequence import Sequence
from reference_engine.simulate import Failure, Listener, Simulation
from reference_engine.simulation_log import RequestLog, StepRows, open_logs
from workloads.plan import Plan

POLICIES = ("vllm-v1", "sarathi", "vllm-v0", "static")
COST = "affine(base=8ms,per_seq=0.25ms)"
PROMPT, OUTPUT, BATCH, LOAD = 512, 128, 64, 0.6
CAPACITY_PER_S = BATCH / ((0.008 + 0.00025 * BATCH) * OUTPUT)
CONFIG = EngineConfig(kv_tokens=65_536, max_batch=BATCH, chunk_tokens=65_536)


class Counter:
    """A listener that only counts."""

    num_served = 0

    def sent(self, row: int, scheduled_ns: int, sent_ns: int) -> None: ...

    def completed(self, sequence: Sequence, account: Account) -> None:  # noqa: ARG002
        self.num_served += 1

    def failed(self, sequence: Sequence, failure: Failure, at_ns: int, stamps_ps: list[int]) -> None:
        raise AssertionError(f"{sequence}: {failure} at {at_ns} after {len(stamps_ps)} tokens")


def make_plan(num_requests: int) -> Plan:
    gaps = np.random.default_rng(1).exponential(1e9 / (LOAD * CAPACITY_PER_S), num_requests)
    prompts, outputs = (np.full(num_requests, tokens, np.int32) for tokens in (PROMPT, OUTPUT))
    return Plan.of(np.cumsum(gaps).astype(np.int64), prompts, outputs)


def run_engine(num_requests: int, policy: str, folder: Path | None = None) -> dict[str, float]:
    """Simulate in this process; return requests per CPU second and the peak of memory above the plan's.

    folder: where to write the files of a run, all but the verdict.
    """
    plan, cost = make_plan(num_requests), parse_cost(COST).cost
    (share,) = split_plan(plan, 1)
    schedule, config = OpenSchedule(share, 0), replace(CONFIG, policy=policy)
    steps, counter = None, Counter()
    listener: Listener = counter
    logs: tuple[StepRows | RequestLog | VirtualRows, ...] = ()
    if folder is not None:
        steps, requests = open_logs(folder, cost, {})
        rows = VirtualRows(folder, plan)
        listener, logs = Recorder("run", rows, requests, 0), (steps, requests, rows)
    simulation = Simulation(config, cost, plan, schedule, listener, steps=steps)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gc.disable()
    started = time.process_time()
    simulation.run()
    for log in logs:
        log.close()
    took_s = time.process_time() - started
    assert folder is not None or counter.num_served == num_requests
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"per_s": num_requests / took_s, "grown_mb": (peak_kb - before_kb) / 1024}


def in_a_process(num_requests: int, policy: str, *more: str) -> str:
    """Run in a process of its own and return the cells of its row."""
    command = [sys.executable, "-m", "benchmarks.simulator", "--one", policy, *more]
    done = subprocess.run([*command, "--requests", str(num_requests)], capture_output=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return f"{num_requests:,} | {found['per_s']:,.0f} | {found['grown_mb']:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--files", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    num: int = args.requests
    if args.one:
        with tempfile.TemporaryDirectory() as out:
            print(json.dumps(run_engine(num, args.one, Path(out) if args.files else None)))
        return
    print("| what | requests | requests/s of CPU time | memory above the plan, MB |\n|---|---|---|---|")
    first, *others = POLICIES
    print(f"| {first} | {in_a_process(num, first)} |", flush=True)
    print(
        f"| {first}, with every file of the run folder | {in_a_process(num, first, '--files')} |", flush=True
    )
    print(f"| {first}, ten times as long | {in_a_process(10 * num, first)} |", flush=True)
    for policy in others:
        print(f"| {policy} | {in_a_process(num, policy)} |", flush=True)


if __name__ == "__main__":
    main()
