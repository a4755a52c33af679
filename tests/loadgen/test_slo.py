"""Objectives: read with their units, evaluated with failures in the denominator."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.measure.metrics import Sample
from loadgen.measure.slo import Objective, met_by_request, parse_slo, statistic_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft=500ms", ("ttft_s", None, 0.5)),
        ("ttft_s=500ms", ("ttft_s", None, 0.5)),
        ("itl.p99 = 50ms", ("itl_s", "p99", 0.05)),
        ("e2e.p99.9=10s", ("e2e_s", "p99.9", 10.0)),
        ("max_gap=1s", ("max_gap_s", None, 1.0)),
        ("ttft_with_failures.p99=2m", ("ttft_with_failures_s", "p99", 120.0)),
        ("in_flight.max=64", ("in_flight", "max", 64.0)),
    ],
)
def test_parse(text: str, expected: tuple[str, str | None, float]) -> None:
    objective = parse_slo(text)
    assert (objective.metric, objective.statistic, objective.limit) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft", "not an objective"),
        ("ttft=", "not an objective"),
        ("ttft=500", "not a duration: '500'"),
        ("tftt=1s", "unknown metric 'tftt'; known: ttft, "),
        ("ttft.p100=1s", "unknown statistic 'p100'"),
        ("ttft.p0=1s", "unknown statistic 'p0'"),
        ("ttft.median=1s", "unknown statistic 'median'"),
        ("in_flight=3", r"has no value per request; name a statistic: in_flight\.p99"),
        ("in_flight.max=many", "not a number: 'many'"),
    ],
)
def test_parse_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_slo(text)


def test_percentiles_that_a_percentage_rounds_badly() -> None:
    assert parse_slo("ttft.p99.9=1s").percentile == 0.999
    assert parse_slo("ttft.p7=1s").percentile == 0.07
    assert parse_slo("ttft.mean=1s").percentile is None


def values(**changes: list[float]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    given = {
        "ttft_s": [0.1, 0.2, 0.3],
        "tpot_s": [0.01, 0.02, 0.03],
        "max_gap_s": [0.02, 0.04, 0.06],
        "e2e_s": [1.0, 2.0, 3.0],
        "output_tokens_per_request": [10.0, 10.0, 10.0],
        **changes,
    }
    return {name: np.array(value) for name, value in given.items()}


def met(texts: list[str], **changes: list[float]) -> list[bool]:
    return [bool(m) for m in met_by_request([parse_slo(text) for text in texts], values(**changes))]


def test_all_limits_hold_jointly() -> None:
    assert met(["ttft=200ms"]) == [True, True, False]
    assert met(["ttft=200ms", "e2e=1s"]) == [True, False, False]
    assert met(["itl=20ms", "max_gap=1s"]) == [True, True, False]
    assert met(["ttft.p99=1ms"]) == [True, True, True]


def test_a_single_token_has_no_gap_that_could_be_too_long() -> None:
    nan = float("nan")
    one = {
        "output_tokens_per_request": [1.0, 10.0, 10.0],
        "tpot_s": [nan, 0.02, 0.03],
        "max_gap_s": [nan, 0.04, 0.06],
    }
    assert met(["tpot=25ms", "max_gap=50ms"], **one) == [True, True, False]


def test_what_is_unknown_is_not_met() -> None:
    nan = float("nan")
    assert met(["ttft=1s"], ttft_s=[nan, 0.2, 0.3]) == [False, True, True]
    unknown = {"output_tokens_per_request": [nan, 10.0, 10.0], "tpot_s": [nan, 0.02, 0.03]}
    assert met(["itl=1s"], **unknown) == [False, True, True]


def test_statistic_of() -> None:
    sample = Sample(values=np.arange(1.0, 101.0))
    assert statistic_of(sample, "p99") == 99
    assert statistic_of(sample, "p97.5") == 98
    assert statistic_of(sample, "mean") == 50.5
    assert statistic_of(sample, "max") == 100
    assert statistic_of(Sample(values=np.zeros(0)), "p50") is None
    failed = Sample(values=np.array([1.0, np.inf]), num_failed=1)
    assert statistic_of(failed, "p50") == 1
    assert statistic_of(failed, "p99") is None
    assert statistic_of(failed, "mean") is None


def test_label() -> None:
    assert Objective(metric="ttft_s", statistic="p99", limit=1.0).label == "ttft.p99"
    assert Objective(metric="e2e_s", statistic=None, limit=1.0).label == "e2e"
