"""Every nanosecond of every request in one bucket: random requests under every policy with random knobs.

`python -m benchmarks.sum_identity --requests 100000` serves so many under each policy and checks each one as
it ends: its buckets sum to the time from arrival to last token, and to that to its first token. Nothing of it
depends on the wall clock.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadgen.drive.dispatch import OpenSchedule, split_plan
from reference_engine.account import BUCKETS, Account
from reference_engine.config import DoorConfig, EngineConfig
from reference_engine.cost import PS_PER_NS, CostModel, Weights
from reference_engine.executors.simulated import to_ns
from reference_engine.policies import POLICIES
from reference_engine.policies.eviction import VICTIMS
from reference_engine.policies.order import ORDERS
from reference_engine.sequence import Sequence
from reference_engine.simulate import Failure, Patience, Simulation
from reference_engine.steplog import split_accounts
from workloads.plan import Plan

PER_SIMULATION = 500
OWN_KNOBS: dict[str, dict[str, tuple[Any, ...]]] = {
    "static": {"padded": (True, False)},
    "orca": {"reserve": ("context", "pow2", "declared")},
    "vllm-v0": {"chunked": (True, False), "decode_interval": (0, 3), "watermark": (0.01, 0.1)},
    "vllm-v1": {"long_prefill_tokens": (0, 16), "whole_prompt": (True, False), "watermark": (0.0, 0.1)},
    "sarathi": {"watermark": (0.01, 0.1)},
    "sglang": {"decode_interval": (0, 3), "conservativeness": (0.5, 1.0)},
    "no-evict": {"decode_interval": (0, 6)},
}


def draw_config(policy: str, rng: np.random.Generator) -> EngineConfig:
    """Draw an engine with knobs that fit its policy."""

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    own = {name: one(*choices) for name, choices in OWN_KNOBS[policy].items()}
    order = one("fcfs", *ORDERS)
    knobs = {**own, "order": order, "skip_window": one(0, 0, 3)}
    is_sharing = bool(order == "lpm" or one(False, False, True))
    if order in ("priority", "srpt-oracle"):
        knobs["displace"] = one(True, False)
    evicts = policy in ("vllm-v0", "vllm-v1", "sarathi", "sglang")
    if evicts:
        knobs |= {"victim": one(*VICTIMS), "requeue": one("front", "order", "back"), "swap": one(True, False)}
    return EngineConfig(
        policy=policy,
        knobs=knobs,
        block_tokens=one(4, 16),
        kv_tokens=one(336, 640, 1600, 6400),
        max_batch=one(2, 8, 32),
        chunk_tokens=one(32, 128, 512),
        max_model_len=320,
        swap_tokens=one(256, 2048),
        is_prefix_shared=is_sharing,
        door=one(*[DoorConfig()] * 8, DoorConfig(max_waiting=12), DoorConfig(drop_after_s=0.5)),
    )


def draw_plan(num: int, rng: np.random.Generator) -> Plan:
    """Draw requests, some of which come at the same instant and some of which share their first tokens."""
    gaps = rng.exponential(float(rng.choice([0.002, 0.02, 0.1])), num) * (rng.random(num) < 0.9)
    prompts, outputs = rng.integers(1, 200, num), rng.geometric(1 / 30, num).clip(max=100)
    blocks = [rng.integers(0, 3, min(2, int(tokens) // 8)) for tokens in prompts]
    arrival_ns = (np.cumsum(gaps) * 1e9).astype(np.int64)
    return replace(
        Plan.of(arrival_ns, prompts.astype(np.int32), outputs.astype(np.int32)),
        prefix_blocks=np.concatenate(blocks).astype(np.int64),
        prefix_offsets=np.append(0, np.cumsum([len(block) for block in blocks])),
        block_tokens=8,
    )


def draw_cost(rng: np.random.Generator) -> CostModel:
    """Draw a cost of many odd picoseconds, sometimes the larger of two."""
    names = ("base", "per_decode", "per_context", "per_prompt", "per_token", "per_pair", "mixed")
    scales = (5e9, 1e8, 1e5, 1e8, 2e7, 1e4, 1e9)
    work, bound = (
        Weights(**{name: int(rng.uniform(1, scale)) for name, scale in zip(names, scales, strict=True)})
        for _ in range(2)
    )
    return CostModel(work=work, bound=bound if rng.random() < 0.3 else None, per_swap_block=12_345_677)


@dataclass(slots=True)
class IdentityChecker:
    """A listener that checks each account as it ends."""

    plan: Plan
    num_checked: int = 0
    num_failed: int = 0
    num_preempted: int = 0

    def sent(self, row: int, scheduled_ns: int, sent_ns: int) -> None: ...

    def completed(self, sequence: Sequence, account: Account) -> None:
        (split,) = split_accounts([account], np.asarray, PS_PER_NS)
        assert split is not None
        arrived = int(self.plan.arrival_ns[sequence.handle])
        whole, to_first = split[: len(BUCKETS)], split[len(BUCKETS) :]
        assert sum(whole) == to_ns(account.stamps[-1]) - arrived, f"{sequence}: {whole}"
        assert sum(to_first) == to_ns(account.stamps[0]) - arrived, f"{sequence}: {to_first}"
        assert min(split) >= 0, f"{sequence}: {split}"
        assert whole[-1] == to_first[-1] == 0, f"{sequence} has a residual in virtual time"
        assert len(account.stamps) == self.plan.output_tokens[sequence.handle]
        self.num_checked += 1
        self.num_preempted += sequence.num_preemptions > 0

    def failed(self, sequence: Sequence, failure: Failure, at_ns: int, stamps_ps: list[int]) -> None:  # noqa: ARG002
        self.num_failed += 1


def check_policy(policy: str, num_requests: int, seed: int = 0) -> tuple[int, int, int]:
    """Simulate and check; return how many were checked, were turned away or dropped, were ever evicted."""
    totals = np.zeros(3, np.int64)
    number = 0
    while totals[0] < num_requests:
        rng = np.random.default_rng([seed, number, *policy.encode()])
        config, cost = draw_config(policy, rng), draw_cost(rng)
        plan = draw_plan(min(PER_SIMULATION, num_requests), rng)
        checker = IdentityChecker(plan)
        patience = Patience(total_ns=int(rng.choice([2_000_000_000, 2**62], p=[0.1, 0.9])))
        schedule = OpenSchedule(split_plan(plan, 1)[0], 0)
        Simulation(config, cost, plan, schedule, checker, patience=patience).run()
        assert checker.num_checked + checker.num_failed == len(plan), "a request was lost"
        totals += (checker.num_checked, checker.num_failed, checker.num_preempted)
        number += 1
    checked, failed, preempted = totals.tolist()
    return checked, failed, preempted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    gc.disable()
    print("| policy | requests | served, each sum exact | of these evicted at least once | not served |")
    print("|---|---|---|---|---|")
    for policy in POLICIES:
        checked, failed, preempted = check_policy(policy, args.requests, args.seed)
        print(f"| {policy} | {checked + failed:,} | {checked:,} | {preempted:,} | {failed:,} |", flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
