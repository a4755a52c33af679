"""What intervals and comparisons promise, held against the reference engine's scheduler in virtual time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.measure.compare import Arm, Rule, compare_arms
from loadgen.measure.replicates import Replicate
from loadgen.stats.paired import Change
from loadgen.store import load
from tests.test_bad_input import bench

LOAD = ("--simulate", "--rate", "40", "--quiet", "--warmup", "0")
STEP = ("--cost", "affine(base=8ms,per_seq=0.25ms)")
NUM_RUNS = 40


def read_replicates(document: dict[str, Any], place: int) -> list[Replicate]:
    return [
        Replicate(**{**run, "reasons": tuple(run["reasons"])})
        for run in document["arms"][place]["replicates"]
    ]


def test_intervals_of_single_runs_cover(tmp_path: Path) -> None:
    """Truth is a run of 60,000 requests; 40 runs of 1,600 each say where it lies."""
    assert bench("run", *LOAD, *STEP, "--duration", "1500s", "--seed", "999", "--out", tmp_path) == 0
    truth = load(max(tmp_path.iterdir())).summary
    assert truth is not None
    flags = ("--duration", "40s", "--repeat", str(NUM_RUNS), "--name", "many")
    assert bench("run", *LOAD, *STEP, *flags, "--out", tmp_path) == 0
    (folder,) = tmp_path.glob("*-many")
    runs = json.loads((folder / "repeat.json").read_text())["runs"]
    pooled = []
    for metric, statistic in (("ttft", "p50"), ("itl", "p50"), ("e2e", "p50"), ("tpot", "p50")):
        value = truth["metrics"][f"{metric}_s"][statistic]
        given = [run["intervals"].get(f"{metric}.{statistic}") for run in runs]
        known = [ends for ends in given if ends is not None]
        held = [low <= value <= high for low, high in known]
        print(f"{metric}.{statistic}: {len(known)} intervals of {NUM_RUNS} runs, {np.mean(held):.3f} hold it")
        assert len(known) >= NUM_RUNS // 2, metric
        assert np.mean(held) >= 0.85, metric
        pooled += held
    assert 0.9 <= np.mean(pooled) <= 0.99


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
    """20 pairs of equal runs of the torch engine, stored; 200 comparisons of 8 pairs in random roles.

    They were made on two processors that other work shared, so that equal runs differ by 10 to 50 % and
    none was valid for what it says of the engine (client_slow): as noise, that is the harder case.
    """
    rng = np.random.default_rng(2)
    stored = json.loads(STORED.read_text())
    pairs = [
        [replace(EMPTY, plan_digest=f"plan-{n}", figures=f) for f in pair] for n, pair in enumerate(stored)
    ]
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
