"""The gate: assertions read, decided, and never passed for want of samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.measure.assertions import AssertionResult, Decision, check, exit_code, parse_assertion
from loadgen.measure.baseline import Figures
from loadgen.measure.options import MeasureOptions
from loadgen.measure.replicates import Replicate
from loadgen.measure.slo import parse_slo
from loadgen.measure.summary import summarize
from loadgen.records import Outcome
from loadgen.store import Run, RunFolder
from tests.loadgen.rows import make_failure, make_record, make_run

SLO = {"config": {"slo": {"value": ["ttft=150ms"], "origin": "flag"}}}


def run_of(
    out: Path, *, n: int = 4000, scale: float = 1.0, num_failed: int = 0, seed: int = 1, **manifest: Any
) -> Run:
    """Independent latencies around 100 ms, a request each 50 ms."""
    rng = np.random.default_rng(seed)
    ttft_ms = 100 * scale * rng.lognormal(0, 0.2, n)
    records = [
        make_record(i, scheduled_s=i / 20, token_ms=(first, first + 10 * scale))
        for i, first in enumerate(ttft_ms)
    ]
    for i in range(num_failed):
        records[i * 7] = make_failure(i * 7, scheduled_s=i * 7 / 20, outcome=Outcome.RESET)
    workload = {"arrival": "constant", "rate_per_s": 20.0, "duration_s": n / 20}
    return make_run(out, records, workload=workload, manifest={**SLO, **manifest})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("base"), num_failed=4)


def as_figures(run: Run) -> Figures:
    RunFolder(run.path).write_summary(summarize(run))
    return Figures(name=run.path.name, workload={}, replicates=(Replicate.of(run),))


def decisions(run: Run | Figures, *texts: str, baseline: Run | None = None) -> list[str]:
    return [str(r.decision) for r in check(run, [parse_assertion(text) for text in texts], baseline)]


@pytest.mark.parametrize(
    ("text", "subject", "statistic", "relation", "limit"),
    [
        ("ttft.p99 < 400ms", "ttft_s", "p99", "<", 0.4),
        ("errors.rate<0.1%", "errors.rate", None, "<", 0.001),
        ("attained >= 0.95", "attained", None, ">=", 0.95),
        ("goodput > 9.5/s", "goodput", None, ">", 9.5),
        ("in_flight.max <= 64", "in_flight", "max", "<=", 64.0),
        ("itl.p99 vs baseline <= +5%", "itl_s", "p99", "<=", 1.05),
        ("tpot.p50 vs baseline <= +3% (floor 0.2ms)", "tpot_s", "p50", "<=", 1.03),
        ("goodput vs baseline >= -10%", "goodput", None, ">=", 0.9),
    ],
)
def test_parse(text: str, subject: str, statistic: str | None, relation: str, limit: float) -> None:
    found = parse_assertion(text)
    assert (found.subject, found.statistic, found.relation) == (subject, statistic, relation)
    assert found.limit == pytest.approx(limit)
    assert found.is_vs_baseline == ("baseline" in text)
    assert found.floor == pytest.approx(0.0002 if "floor" in text else 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft.p99", "not an assertion"),
        ("ttft.p99 = 3ms", "not an assertion"),
        ("tftt.p99 < 1s", "unknown metric 'tftt'"),
        ("ttft.q99 < 1s", "unknown statistic 'q99'"),
        ("ttft < 1s", "names no statistic; write ttft.p99"),
        ("ttft.p99 < 400", "not a duration: '400'"),
        ("errors.rate < 3", "not a share: '3'"),
        ("itl.p99 vs baseline <= 5ms", "not a change against the baseline"),
        ("ttft.p99 < 1s (floor 3ms)", "a floor belongs to a comparison"),
    ],
)
def test_parse_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_assertion(text)


def test_limits_far_from_the_interval_are_decided_and_near_ones_are_not(base: Run) -> None:
    assert decisions(base, "ttft.p50 < 150ms", "ttft.p50 < 50ms", "ttft.p50 < 100ms") == [
        "pass",
        "fail",
        "undecided",
    ]


def test_shares_and_rates_are_compared_as_they_are(base: Run) -> None:
    texts = [
        "errors.rate < 0.2%",
        "errors.rate < 0.05%",
        "attained > 90%",
        "attained > 99.9%",
        "goodput > 1/s",
    ]
    assert decisions(base, *texts) == ["pass", "fail", "pass", "fail", "pass"]


def test_no_samples_and_thin_tails_never_pass(base: Run, tmp_path: Path) -> None:
    assert decisions(base, "connect.p50 < 1s", "ttft.p99.9 < 10s") == ["invalid", "invalid"]
    without_slo = run_of(tmp_path, n=200, config={})
    assert decisions(without_slo, "goodput > 0", "attained >= 0") == ["invalid", "invalid"]


def test_a_percentile_that_falls_on_a_failure_fails(tmp_path: Path) -> None:
    failing = run_of(tmp_path, n=700, num_failed=90)
    assert decisions(failing, "e2e_with_failures.p99 < 60s", "e2e_with_failures.p50 < 60s") == [
        "fail",
        "pass",
    ]


@pytest.mark.parametrize("statistic", ["mean", "max", "p99"])
@pytest.mark.parametrize("metric", ["ttft", "e2e", "ttft_from_send", "normalized_latency"])
def test_a_server_that_fails_passes_no_gate_on_its_latency(
    tmp_path: Path, metric: str, statistic: str
) -> None:
    text, slo = f"{metric}.{statistic} < 10s", f"{metric}.{statistic}=10s"
    failing = run_of(tmp_path / "failing", n=3000, num_failed=90)
    assert decisions(failing, text) == ["fail"]
    options = MeasureOptions(warmup_s=0.0, objectives=(parse_slo(slo),))
    (target,) = summarize(failing, options)["slo"]["targets"]
    assert (target["value"], target["is_met"]) == (None, False)
    healthy = run_of(tmp_path / "healthy", n=3000)
    assert decisions(healthy, text) == ["pass"]
    if statistic != "p99" or metric in ("ttft", "e2e"):  # the other percentiles of all are not in a summary
        assert decisions(as_figures(failing), text) == ["fail"]
    assert decisions(as_figures(healthy), text) == ["pass"]


def test_an_invalid_run_passes_nothing(tmp_path: Path) -> None:
    interrupted = run_of(tmp_path, n=200, status="interrupted")
    (result,) = check(interrupted, [parse_assertion("ttft.p50 < 10s")])
    assert result.decision == Decision.INVALID
    assert "interrupted" in result.message


def test_a_baseline_of_the_same_speed_passes_and_a_slower_candidate_fails(base: Run, tmp_path: Path) -> None:
    again, slower = run_of(tmp_path, seed=2), run_of(tmp_path, scale=1.2, seed=3)
    healthy = run_of(tmp_path, seed=4)
    text = "ttft.p50 vs baseline <= +10%"
    assert decisions(again, text, baseline=base) == ["pass"]
    assert decisions(slower, text, baseline=base) == ["fail"]
    assert decisions(slower, "ttft.p50 vs baseline <= +20%", baseline=base) == ["undecided"]
    for statistic in ("mean", "max"):  # of this baseline, which had failures, they are infinite
        assert decisions(slower, f"ttft.{statistic} vs baseline <= +10%", baseline=base) == ["undecided"]
    assert decisions(slower, "ttft.mean vs baseline <= +10%", baseline=healthy) == ["fail"]
    assert decisions(slower, "ttft.p50 vs baseline <= +10% (floor 50ms)", baseline=base) == ["pass"]
    assert decisions(slower, "ttft.max vs baseline <= +10%", baseline=healthy) == ["undecided"]


def test_a_comparison_needs_a_baseline(base: Run) -> None:
    with pytest.raises(UsageError, match="--baseline"):
        check(base, [parse_assertion("ttft.p50 vs baseline <= +5%")])


def test_exit_codes_by_precedence(base: Run) -> None:
    (passed,) = check(base, [parse_assertion("ttft.p50 < 10s")])

    def with_decision(*found: Decision) -> list[AssertionResult]:
        return [replace(passed, decision=decision) for decision in found]

    assert exit_code(with_decision(Decision.PASS)) == 0
    assert exit_code(with_decision(Decision.PASS, Decision.UNDECIDED)) == 4
    assert exit_code(with_decision(Decision.UNDECIDED, Decision.FAIL)) == 1
    assert exit_code(with_decision(Decision.FAIL, Decision.INVALID)) == 3
