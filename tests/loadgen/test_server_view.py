"""The server's figures beside ours: counters through resets, quantiles as buckets, the difference said."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from loadgen.measure.columns import OUTCOMES, Columns
from loadgen.measure.server import bucket_of, describe_server, increase, num_resets
from loadgen.records import Outcome
from loadgen.store import RequestRows, Run
from loadgen.telemetry import Sample

MS = 1_000_000


class Watched:
    """A run of which only the server's samples are read."""

    def __init__(self, samples: list[Sample], slack_ms: int = 0) -> None:
        self.samples = samples
        stamps = [[30 * MS, 40 * MS], [], [50 * MS]]
        lowers = [[at - slack_ms * MS for at in row] for row in stamps]
        self.rows = RequestRows(pa.table({"chunk_ns": stamps, "chunk_lower_ns": lowers}))

    def server_rows(self) -> pa.Table | None:
        rows = [
            {"t_ns": at * MS, "name": name, "value": float(value)}
            for at, sample in enumerate(self.samples)
            for name, value in sample.items()
        ]
        return pa.Table.from_pylist(rows) if rows else None


def columns(sent_ms: list[float], first_ms: list[float], last_ms: list[float], tokens: list[int]) -> Columns:
    n = len(sent_ms)
    nothing = np.full(n, np.nan)
    return Columns(
        scheduled_ns=np.array(sent_ms) * MS,
        sent_ns=np.array(sent_ms) * MS,
        connected_ns=nothing,
        first_token_ns=np.array(first_ms) * MS,
        first_answer_ns=nothing,
        last_token_ns=np.array(last_ms) * MS,
        done_ns=nothing,
        recv_lag_ns=nothing,
        write_lag_ns=nothing,
        prompt_tokens_planned=nothing,
        output_tokens_planned=nothing,
        prompt_tokens=nothing,
        output_tokens=np.array(tokens, np.float64),
        cached_tokens=nothing,
        outcome_code=np.full(n, OUTCOMES.index(Outcome.OK), np.int8),
        is_kernel_stamped=np.ones(n, np.bool_),
    )


TWO = columns([0, 100], [30, 150], [130, 250], [11, 11])


def describe(samples: list[Sample], ours: Columns = TWO, slack_ms: int = 0) -> dict[str, Any]:
    return describe_server(cast(Run, Watched(samples, slack_ms)), ours)


@pytest.mark.parametrize(
    ("values", "rise", "resets"),
    [([5, 7, 12], 7, 0), ([5, 5], 0, 0), ([5], 0, 0), ([5, 9, 2, 4], 8, 1), ([5, 0, 0], 0, 1)],
)
def test_counters_rise_and_begin_again(values: list[float], rise: float, resets: int) -> None:
    assert increase(np.array(values, np.float64)) == rise
    assert num_resets(np.array(values, np.float64)) == resets


@pytest.mark.parametrize(
    ("q", "bucket"), [(0.1, [0.0, 1.0]), (0.5, [1.0, 2.0]), (0.8, [2.0, 4.0]), (0.99, [4.0, None])]
)
def test_a_quantile_is_a_bucket(q: float, bucket: list[float | None]) -> None:
    bounds, counts = np.array([1.0, 2.0, 4.0]), np.array([2.0, 6.0, 9.0])
    assert bucket_of(q, bounds, counts, 10) == bucket


def test_nothing_was_watched() -> None:
    assert describe([]) == {}


def test_gauges_counters_and_resets() -> None:
    samples: list[Sample] = [
        {"running": 0, "waiting": 1, "output_tokens": 100, "gpu0_energy_j": 10},
        {"running": 4, "waiting": 1, "output_tokens": 180, "gpu0_energy_j": 12},
        {"running": 2, "waiting": 4, "output_tokens": 20, "gpu0_energy_j": 20},
    ]
    seen = describe(samples)
    assert seen["gauges"] == {"running": {"mean": 2.0, "max": 4.0}, "waiting": {"mean": 2.0, "max": 4.0}}
    assert seen["counters"] == {"output_tokens": 100.0, "gpu0_energy_j": 10.0}
    assert (seen["num_samples"], seen["num_resets"], seen["tokens_per_joule"]) == (3, 1, 10.0)


def test_time_to_first_token_beside_ours() -> None:
    before: Sample = {"ttft_s.sum": 9, "ttft_s.count": 90, "ttft_s.le=0.02": 5, "ttft_s.le=0.1": 80}
    after: Sample = {"ttft_s.sum": 9.06, "ttft_s.count": 92, "ttft_s.le=0.02": 5, "ttft_s.le=0.1": 82}
    queue: Sample = {"queue_s.sum": 0.0, "queue_s.count": 0}
    queued: Sample = {"queue_s.sum": 0.02, "queue_s.count": 2}
    seen = describe([before | queue, after | queued])
    histograms = seen["histograms"]
    view = histograms["ttft_s"]
    assert (view["n"], view["mean"]) == (2, pytest.approx(0.03))
    assert view["p50"] == view["p99"] == [0.02, 0.1]
    assert view["client"] == {
        "n": 2,
        "mean": pytest.approx(0.04),
        "mean_lower": pytest.approx(0.04),
        "p50": 0.03,
        "p99": 0.05,
    }
    assert view["difference_s"] == pytest.approx(0.01)
    assert view["explanation"].startswith("our mean is 10 ms above the server's: ")
    assert "10 ms of the server's was queueing" in view["explanation"]
    assert "other clients" not in view["explanation"]
    assert histograms["queue_s"] == {"n": 2, "mean": 0.01, "p50": [0.0, None], "p99": [0.0, None]}


def test_our_own_late_reading_is_told_from_the_server_s_doing() -> None:
    samples: list[Sample] = [{"ttft_s.sum": 0, "ttft_s.count": 0}, {"ttft_s.sum": 0.06, "ttft_s.count": 2}]
    exact, late = describe(samples), describe(samples, slack_ms=15)
    assert "late reading" not in exact["histograms"]["ttft_s"]["explanation"]
    view = late["histograms"]["ttft_s"]
    assert view["client"]["mean_lower"] == pytest.approx(0.025)
    assert "15 ms of ours may be our own late reading" in view["explanation"]


def test_another_count_than_ours_is_said() -> None:
    seen = describe([{"e2e_s.sum": 0, "e2e_s.count": 0}, {"e2e_s.sum": 1, "e2e_s.count": 7}])
    histograms = seen["histograms"]
    assert "the server counted 7 requests, we 2 ok ones" in histograms["e2e_s"]["explanation"]


def test_gaps_are_weighted_by_tokens() -> None:
    ours = columns([0, 0], [0, 0], [100, 10], [11, 2])
    seen = describe([{"itl_s.sum": 0, "itl_s.count": 0}, {"itl_s.sum": 0.11, "itl_s.count": 11}], ours)
    histograms = seen["histograms"]
    assert histograms["itl_s"]["client"] == {"n": 11, "mean": pytest.approx(0.01)}
    assert histograms["itl_s"]["difference_s"] == pytest.approx(0.0)


def test_a_histogram_that_did_not_move_has_no_figures() -> None:
    seen = describe([{"ttft_s.sum": 9, "ttft_s.count": 90}] * 2)
    histograms = seen["histograms"]
    view = histograms["ttft_s"]
    assert (view["n"], view["mean"], view["p50"], view["client"]) == (0, None, None, None)
