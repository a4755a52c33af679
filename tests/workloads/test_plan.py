"""Plans: the same in any process, independent streams, limits with counts, honest source, cheap."""

import os
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from workloads import Plan, Workload, WorkloadError

BASE = Workload(rate_per_s=20)


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_another_process_makes_the_same_plan(hash_seed: str) -> None:
    workload = "Workload(rate_per_s=20, arrival='gamma(cv=2)', output_tokens='gamma(mean=9,cv=1)')"
    printed = _run(f"from workloads import Workload; print({workload}.plan(3).digest())", hash_seed)
    here = Workload(rate_per_s=20, arrival="gamma(cv=2)", output_tokens="gamma(mean=9,cv=1)").plan(3)
    assert printed == here.digest()


def test_importing_workloads_imports_nothing_heavy() -> None:
    heavy = ("scipy", "pandas", "pyarrow", "matplotlib", "torch")
    assert _run(f"import sys, workloads; print([m for m in {heavy} if m in sys.modules])", "0") == "[]"


def _run(code: str, hash_seed: str) -> str:
    env = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_every_purpose_has_its_own_stream() -> None:
    plan = BASE.plan(1)
    other_output = replace(BASE, output_tokens="fixed(9)").plan(1)
    np.testing.assert_array_equal(plan.arrival_ns, other_output.arrival_ns)
    np.testing.assert_array_equal(plan.prompt_tokens, other_output.prompt_tokens)
    other_arrivals = replace(BASE, arrival="constant", num_requests=len(plan)).plan(1)
    np.testing.assert_array_equal(plan.prompt_tokens, other_arrivals.prompt_tokens)
    np.testing.assert_array_equal(plan.output_tokens, other_arrivals.output_tokens)
    assert plan.digest() != BASE.plan(2).digest()


def test_source_tells_the_wish_and_what_came_of_it() -> None:
    source = BASE.plan(1).source
    assert source["workload"]["rate_per_s"] == 20
    assert source["seed"] == 1
    assert source["realised"]["rate_per_s"] == pytest.approx(20, rel=0.15)
    assert source["law_means"]["input_tokens"] == pytest.approx(38.2, rel=0.01)


@pytest.mark.parametrize("policy", ["clip", "drop", "resample"])
def test_policies_for_a_full_context_count_what_they_did(policy: Any) -> None:
    free = BASE.plan(1)
    over = int((free.prompt_tokens + free.output_tokens > 100).sum())
    limited = replace(BASE, context_tokens=100, over_context=policy).plan(1)
    assert over > 0
    assert int((limited.prompt_tokens + limited.output_tokens).max()) <= 100
    assert len(limited) == len(free) - (over if policy == "drop" else 0)
    name = {"clip": "clipped", "drop": "dropped", "resample": "resampled"}[policy]
    assert limited.source["limits"] == {name: over}


def test_a_context_that_is_never_full_changes_nothing() -> None:
    limited = replace(BASE, context_tokens=4096).plan(1)
    assert limited.digest() == BASE.plan(1).digest()
    assert limited.source["limits"] == {}


def test_clipping_keeps_the_answer_and_shortens_the_prompt() -> None:
    plan = Workload(
        rate_per_s=9,
        dist="fixed",
        input_tokens="90",
        output_tokens="30",
        context_tokens=100,
        over_context="clip",
    ).plan(1)
    assert set(plan.prompt_tokens.tolist()) == {70}
    assert set(plan.output_tokens.tolist()) == {30}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rate_per_s": None}, "poisson needs a rate"),
        ({"rate_per_s": 0.0}, "the rate must be above 0, not 0"),
        ({"rate_per_s": -3.0}, "above 0, not -3"),
        ({"rate_per_s": float("nan")}, "above 0, not nan"),
        ({"duration_s": -1.0}, "the duration must be above 0"),
        ({"duration_s": None}, "a duration or a number"),
        ({"num_requests": 0}, "number of requests"),
        ({"arrival": "onoff(on=1s,off=1s)", "rate_per_s": None}, "needs a rate"),
        ({"arrival": "burst"}, "unknown arrival process 'burst'; known: at-once, constant"),
        ({"dist": "pareto"}, "unknown distribution 'pareto'; known: empirical"),
        ({"over_context": "cut"}, "known: clip, drop, error, resample"),
        ({"bad_rows": "skip"}, "bad-rows"),
        ({"zero_output": "keep"}, "zero-output"),
        ({"rank_correlation": 2.0}, "between -1 and 1"),
        ({"context_tokens": 1}, "holds no prompt and answer"),
        ({"context_tokens": 20}, "over the context of 20 .* choose --over-context clip"),
        ({"context_tokens": 2, "over_context": "resample", "dist": "fixed"}, "no pair of 1000 drawn fits"),
        ({"rate_per_s": 1e9}, "more than 100,000,000"),
        ({"rate_per_s": 0.01, "duration_s": 0.1}, "not one request"),
        ({"input_tokens": "1e12"}, "tokens came out"),
    ],
)
def test_bad_workloads_are_one_clear_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(WorkloadError, match=says) as caught:
        replace(BASE, **changes).plan(1)
    assert "\n" not in str(caught.value)


def test_a_negative_seed_is_told() -> None:
    with pytest.raises(WorkloadError, match="seed"):
        BASE.plan(-1)


def test_a_plan_is_read_only_and_named_by_its_columns() -> None:
    plan = BASE.plan(1)
    with pytest.raises(ValueError, match="read-only"):
        plan.arrival_ns[0] = 1
    assert plan.with_source(more=1).digest() == plan.digest()
    n = np.array([1, 2])
    assert Plan.of(n, n, n).digest() != Plan.of(n, n, n + 1).digest()


def test_a_million_requests_are_cheap() -> None:
    """The bound is 10 s and 500 MB; the peak of allocations is what tracemalloc sees of numpy."""
    workload = Workload(rate_per_s=5000, num_requests=1_000_000, arrival="gamma(cv=2)", dist="gamma")
    start = time.process_time()
    workload.plan(1)
    assert time.process_time() - start < 10
    tracemalloc.start()
    workload.plan(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400e6
