"""What intervals and comparisons promise, held against the reference engine's scheduler in virtual time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.measure.compare import Arm, Rule, compare_arms
from loadgen.measure.measured import Measured, measure
from loadgen.measure.options import MeasureOptions
from loadgen.measure.replicates import Replicate
from loadgen.stats.intervals import mean_interval, quantile_interval
from loadgen.stats.paired import Change
from loadgen.store import load
from tests.test_bad_input import bench

STEP = ("--cost", "affine(base=8ms,per_seq=0.25ms)")
LOAD = ("--simulate", "--rate", "40", "--quiet", "--warmup", "0", *STEP)
NUM_RUNS = 40
QUANTILES = {"p50": 0.5, "p99": 0.99}


def read_replicates(document: dict[str, Any], place: int) -> list[Replicate]:
    return [
        Replicate(**{**run, "reasons": tuple(run["reasons"])})
        for run in document["arms"][place]["replicates"]
    ]


def measured(folder: Path) -> Measured:
    return measure(load(folder), MeasureOptions(warmup_s=0.0))


def test_intervals_of_single_runs_cover(tmp_path: Path) -> None:
    """Truth is a run of 80,000 requests; 40 runs of 2,400 each say where it lies."""
    short = (*LOAD, "--output-tokens", "16")
    assert bench("run", *short, "--duration", "2000s", "--seed", "999", "--out", tmp_path / "truth") == 0
    many = ("--duration", "60s", "--repeat", str(NUM_RUNS), "--out", tmp_path / "many")
    assert bench("run", *short, *many) == 0
    truth = measured(next((tmp_path / "truth").iterdir())).samples
    runs = [measured(path.parent) for path in sorted((tmp_path / "many").glob("*/*/manifest.json"))]
    assert len(runs) == NUM_RUNS
    held: dict[str, list[bool]] = {"p50": [], "p99": [], "mean": []}
    for metric in ("ttft_s", "itl_s", "e2e_s", "tpot_s"):
        values = dict(zip(QUANTILES, truth[metric].quantiles(list(QUANTILES.values())), strict=True))
        mean = truth[metric].moments()[0]
        assert mean is not None
        values["mean"] = mean
        for statistic, value in values.items():
            given = [ends for run in runs if (ends := interval_of(run, metric, statistic)) is not None]
            own = [low <= value <= high for low, high in given]
            print(f"{metric} {statistic}: {len(own)} of {NUM_RUNS} given, {sum(own)} hold {value:.4g}")
            assert statistic == "p99" or len(own) >= 0.9 * NUM_RUNS
            assert len(own) < 10 or np.mean(own) >= 0.85, metric
            held[statistic] += own
    assert len(held["p99"]) >= 1.5 * NUM_RUNS
    for statistic, all_held in held.items():
        assert 0.9 <= np.mean(all_held) <= 0.99, statistic


def interval_of(run: Measured, metric: str, statistic: str) -> tuple[float, float] | None:
    pool = run.pool(metric)
    assert pool is not None
    return (
        mean_interval(pool) if statistic == "mean" else quantile_interval(pool, QUANTILES[statistic]).bounds
    )


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A step that is 5 % slower, 24 seeds."""
    out = tmp_path_factory.mktemp("slower")
    arms = ("--arm", f"base={' '.join(STEP)}", "--arm", "slow=--cost affine(base=8.4ms,per_seq=0.2625ms)")
    assert bench("compare", *LOAD, *arms, "--duration", "10s", "--repeat", "24", "--out", out) == 0
    (folder,) = out.iterdir()
    document: dict[str, Any] = json.loads((folder / "compare.json").read_text())
    return document


def test_a_step_that_is_5_percent_slower_is_found(slower: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    base, slow = (read_replicates(slower, place) for place in (0, 1))
    found = 0
    for _ in range(100):
        picks = rng.choice(24, 8, replace=False)
        arms = [
            Arm(name=name, replicates=tuple(side[i] for i in picks))
            for name, side in (("base", base), ("slow", slow))
        ]
        result = compare_arms(arms[0], arms[1], Rule())
        found += any(f.is_primary and f.change == Change.WORSE for f in result.figures)
    assert found >= 90


STORED = Path(__file__).parent / "loadgen" / "data" / "equal_runs.json"


def test_equal_live_runs_are_rarely_called_different() -> None:
    """20 pairs of equal runs of the torch engine, stored by benchmarks/equal_runs.py; 200 comparisons of 8
    pairs in random roles.
    """
    rng = np.random.default_rng(2)
    stored = json.loads(STORED.read_text())
    pairs = [
        [replace(EMPTY, plan_digest=f"plan-{n}", figures=run["figures"]) for run in pair]
        for n, pair in enumerate(stored["pairs"])
    ]
    print(f"{stored['num_valid']} of {2 * len(pairs)} stored runs were valid")
    assert len(pairs) == 20
    rule = Rule(margin=0.0, detect=0.05)
    alarms = 0
    for _ in range(200):
        picks = [pairs[i][:: rng.choice([-1, 1])] for i in rng.choice(20, 8, replace=False)]
        arms = [Arm(name=name, replicates=tuple(p[side] for p in picks)) for side, name in enumerate("ab")]
        result = compare_arms(arms[0], arms[1], rule)
        alarms += any(f.is_primary and f.change in (Change.WORSE, Change.BETTER) for f in result.figures)
    assert alarms <= 18


EMPTY = Replicate(
    folder="", seed=0, plan_digest="", reasons=(), is_stable=True, failed=0, figures={}, intervals={}
)
