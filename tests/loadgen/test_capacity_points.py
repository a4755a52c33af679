"""What one run says of a rate: figures with failures in them, steady or not, and the client's own error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.measure.capacity import (
    CapacityPoint,
    decide,
    parse_objectives,
    read_points,
    say,
)
from loadgen.measure.summary import summarize
from loadgen.records import Outcome
from loadgen.stats.capacity import Answer, Capacity, Trial
from loadgen.store import RunFolder, load
from tests.loadgen.rows import make_failure, make_record, make_run

TRIAL = Trial(rate_per_s=20.0, length_s=50.0, replicate=1)


def point(
    out: Path, slo: list[str], *, num_failed: int = 0, lag_ms: float = 0.0, **manifest: Any
) -> CapacityPoint:
    """1,000 requests, TTFT 1 to 1,000 ms in shuffled order; the first failed ones have no answer."""
    records = [
        make_record(i, scheduled_s=i / 20, token_ms=(1 + i * 7 % 1000 + lag_ms,), lag_ms=lag_ms)
        for i in range(1000)
    ]
    for i in range(num_failed):
        records[i] = make_failure(i, scheduled_s=i / 20, outcome=Outcome.RESET)
    workload = {"arrival": "constant", "rate_per_s": 20.0, "duration_s": 50.0}
    config = {"slo": {"value": slo, "origin": "flag"}, "warmup": {"value": "0", "origin": "flag"}}
    run = make_run(out, records, workload=workload, manifest={"config": config, **manifest})
    RunFolder(run.path).write_summary(summarize(run))
    return CapacityPoint.of(load(run.path), TRIAL, parse_objectives(slo), seed=1, seconds=50.0)


def test_the_worst_objective_decides(tmp_path: Path) -> None:
    found = point(tmp_path, ["ttft.p90=1s", "ttft.mean=250ms"])
    assert found.figures["ttft.p90"] == pytest.approx(0.9)
    assert found.margin == pytest.approx(math.log(0.5005 / 0.25))
    assert (found.passes, found.is_stable) == (False, True)
    assert found.evidence().margin == found.margin


def test_a_percentile_counts_failed_requests_as_infinite(tmp_path: Path) -> None:
    without, with_some = (point(tmp_path, ["ttft.p90=910ms"], num_failed=n) for n in (0, 10))
    assert without.figures["ttft.p90"] == pytest.approx(0.9)
    assert without.passes
    assert with_some.figures["ttft.p90"] == pytest.approx(0.91, abs=0.005)


def test_more_than_one_percent_of_failures_fails_whatever_the_figures(tmp_path: Path) -> None:
    found = point(tmp_path, ["ttft.p50=10s"], num_failed=30)
    assert (found.passes, found.margin) == (False, None)
    assert found.evidence().margin == math.inf


def test_a_late_client_decides_only_what_its_error_cannot(tmp_path: Path) -> None:
    far, near = (point(tmp_path, [f"ttft.p90={limit}"], lag_ms=60) for limit in ("2s", "930ms"))
    assert "client_late" in far.reasons
    assert (far.passes, near.passes) == (True, None)
    assert near.evidence().margin is None


def test_any_other_fault_decides_nothing(tmp_path: Path) -> None:
    assert point(tmp_path, ["ttft.p90=10s"], status="interrupted").passes is None


@pytest.mark.parametrize(
    ("margin", "reasons", "is_healthy", "expected"),
    [
        (-1.0, (), True, True),
        (0.1, (), True, False),
        (-1.0, (), False, False),
        (-1.0, ("too_few_samples", "not_steady"), True, True),
        (-1.0, ("client_slow",), True, True),
        (-1.0, ("client_slow",), False, None),
        (0.5, ("client_slow",), False, False),
        (-1.0, ("token_mismatch",), True, None),
    ],
)
def test_decisions(margin: float, reasons: tuple[str, ...], is_healthy: bool, expected: bool | None) -> None:
    assert decide(margin, reasons, is_healthy) is expected


@pytest.mark.parametrize(
    ("capacity", "words"),
    [
        (Capacity(answer=Answer.NONE), "no passing rate"),
        (Capacity(answer=Answer.ABOVE, low_per_s=40.0), "up to the highest rate tried, 40"),
        (Capacity(answer=Answer.BRACKET, low_per_s=4.0, high_per_s=5.0), "no confidence can be stated"),
        (Capacity(answer=Answer.UNDECIDED), "nothing was decided"),
        (Capacity(answer=Answer.UNDECIDED, low_per_s=3.0), "held at 3 requests/s"),
        (
            Capacity(
                answer=Answer.INTERVAL, low_per_s=18.0, high_per_s=20.0, confidence=0.95, num_replicates=5
            ),
            "between 18 and 20 requests/s (95 % confidence, ±5.4 %, 5 replicates)",
        ),
    ],
)
def test_every_answer_has_its_words(capacity: Capacity, words: str) -> None:
    assert words in say(capacity, ["ttft.p99=500ms"])


def test_points_are_read_back(tmp_path: Path) -> None:
    from dataclasses import asdict

    found = point(tmp_path, ["ttft.p90=1s"])
    document = {"schema_version": 1, "points": [{**asdict(found), "reasons": list(found.reasons)}]}
    assert read_points(document, "capacity.json") == [found]


@pytest.mark.parametrize("line", ["ttft=1s", "ttft.max=1s", "ttft.std=1s"])
def test_an_objective_that_no_rate_could_be_held_to_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="percentile or a mean"):
        parse_objectives([line])
