"""The judge of the verdict, judged: figures of made-up runs whose truth is known, and both error rates."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.kinds import KINDS
from benchmarks.truth import MAX_WAY_NS, METRICS, PERCENTILES, Interval, RunOfRows, compute_truth
from benchmarks.verdicts import Figure, Judged, describe_kind, judge_summary, score
from loadgen.errors import BenchError
from loadgen.golden.process import GoldenLog

MS = 1_000_000
EPOCH_NS = 10**12
KIND = KINDS[0]
BUNDLING = next(kind for kind in KINDS if kind.bundles)


def made_up(writes_ms: list[list[float]], *, way_ns: int = 100_000, **more: Any) -> dict[str, Interval]:
    """The truth of requests due each 100 ms and sent 5 ms late; writes_ms: from each one's arrival."""
    due_ns = [100 * MS * i for i in range(len(writes_ms))]
    rows = pa.Table.from_pylist(
        [
            {
                "index": i,
                "outcome": "ok",
                "scheduled_ns": due,
                "sent_ns": due + 5 * MS,
                "output_tokens_planned": more.get("num_tokens", len(writes)),
                "chunk_ns": [0] * len(writes),
                "chunk_tokens": [more.get("chunk_tokens", 1)] * len(writes),
            }
            for i, (due, writes) in enumerate(zip(due_ns, writes_ms, strict=True))
        ]
    )
    arrived_ns = np.array(due_ns) + 5 * MS + way_ns + EPOCH_NS
    written = [
        arrived + round(at * MS) for arrived, row in zip(arrived_ns, writes_ms, strict=True) for at in row
    ]
    log = GoldenLog(
        row_of={f"r-{i}": i for i in range(len(writes_ms))},
        arrived_ns=arrived_ns,
        offsets=np.cumsum([0, *map(len, writes_ms)]),
        due_ns=np.array(written),
        before_ns=np.array(written),
        after_ns=np.array(written) + more.get("write_ns", 0),
    )
    run = RunOfRows(
        rows=rows,
        run_id="r",
        epoch_ns=EPOCH_NS,
        start_ns=more.get("start_ns", 0),
        end_ns=10**12,
        tokens_per_event=more.get("tokens_per_event", 1),
    )
    return compute_truth(run, log)


def test_truth_is_free_of_late_sends_and_holds_the_way_there() -> None:
    truth = made_up([[20, 30, 45], [40, 50, 75]])
    assert truth["ttft_s.p50"] == pytest.approx((0.0201, 0.0201))
    assert truth["ttft_s.p99"] == pytest.approx((0.0401, 0.0401))
    assert truth["e2e_s.p99"] == pytest.approx((0.0751, 0.0751))
    assert truth["tpot_s.p50"] == pytest.approx((0.0125, 0.0125))
    assert [truth[f"itl_s.{q}"][0] for q in ("p50", "p90")] == pytest.approx([0.010, 0.025])


def test_what_no_way_takes_is_the_client_s_own_delay() -> None:
    assert made_up([[20]], way_ns=9 * MS)["ttft_s.p50"][0] == pytest.approx(0.020 + MAX_WAY_NS / 1e9)


def test_a_figure_is_as_unsure_as_its_writes() -> None:
    truth = made_up([[20, 30]], write_ns=50_000)
    assert truth["ttft_s.p50"] == pytest.approx((0.0201, 0.02015))
    assert truth["itl_s.p50"] == pytest.approx((0.00995, 0.01005))


def test_a_gap_before_several_tokens_is_as_many_gaps() -> None:
    truth = made_up([[20, 60, 72]], tokens_per_event=4, num_tokens=10, chunk_tokens=4)
    assert truth["itl_s.p50"][0] == pytest.approx(0.010)  # 4 gaps of 10 ms, 2 of 6
    assert truth["tpot_s.p50"][0] == pytest.approx(0.052 / 6)


def test_events_whose_tokens_are_unknown_have_no_token_gaps() -> None:
    assert "itl_s.p50" not in made_up([[20, 60]], chunk_tokens=None)


def test_events_of_one_write_share_the_silence_before_it_and_one_write_has_no_tpot() -> None:
    shared = made_up([[20, 50, 50, 60]], write_ns=50_000)
    assert shared["itl_s.p90"][1] == pytest.approx(0.015, abs=1e-4)
    truth = made_up([[20, 20, 50]], write_ns=50_000)
    assert truth["itl_s.p50"][1] == pytest.approx(0.030, abs=1e-4)  # the first write has no gap
    assert truth["tpot_s.p50"][1] == pytest.approx(0.030 + 50e-6)  # one token came after the first write
    assert "tpot_s.p50" not in made_up([[20, 20, 20]])


def test_only_requests_in_the_window_count() -> None:
    assert made_up([[20], [40]], start_ns=50 * MS)["ttft_s.p50"][0] == pytest.approx(0.0401)
    assert made_up([[20]], start_ns=50 * MS) == {}


def test_an_answer_that_the_server_does_not_know_is_no_measurement() -> None:
    rows = pa.table({"chunk_ns": [[1, 2]], "index": [3], "outcome": ["ok"], "scheduled_ns": [0]})
    run = RunOfRows(rows=rows, run_id="r", epoch_ns=0, start_ns=0, end_ns=1)
    nothing = np.zeros(0, np.int64)
    log = GoldenLog(
        row_of={},
        arrived_ns=nothing,
        offsets=np.zeros(1, np.int64),
        due_ns=nothing,
        before_ns=nothing,
        after_ns=nothing,
    )
    with pytest.raises(BenchError, match="not one that the server wrote"):
        compute_truth(run, log)


@pytest.mark.parametrize(
    ("shown", "true", "is_wrong"),
    [
        (0.0215, (0.020, 0.0202), True),  # 1.3 ms beyond the interval
        (0.0211, (0.020, 0.0202), False),
        (0.0185, (0.020, 0.0202), True),
        (0.104, (0.100, 0.100), False),  # 4 %
        (0.106, (0.100, 0.100), True),
        (None, (0.020, 0.020), False),
        (0.020, None, False),
    ],
)
def test_wrong_is_off_by_more_than_a_millisecond_and_5_percent(
    shown: float | None, true: Interval | None, is_wrong: bool
) -> None:
    assert Figure(name="x", shown=shown, true=true).is_wrong is is_wrong


@pytest.mark.parametrize(
    ("found", "has_held"), [((0.019, 0.021), True), ((0.0203, 0.021), False), (None, None)]
)
def test_a_range_holds_the_truth_or_not(found: Interval | None, has_held: bool | None) -> None:
    assert Figure(name="x", shown=0.02, true=(0.02, 0.02), range=found).has_held is has_held


TRUTH = {f"{metric}.{name}": (0.020, 0.020) for metric in METRICS for name in PERCENTILES}


def judged(*reasons: str, **off_s: float) -> Judged:
    """A run that shows 20 ms everywhere, but for the p99 of the metrics named."""
    metrics = {
        metric: dict.fromkeys(PERCENTILES, 0.020) | {"p99": 0.020 + off_s.get(metric, 0.0)}
        for metric in METRICS
    }
    codes = [{"code": code, "message": ""} for code in reasons]
    verdict = {"reasons": codes, "findings": [], "warnings": []}
    return judge_summary(KIND, {"verdict": verdict, "metrics": metrics}, TRUTH)


def rates(*runs: Judged) -> dict[str, str]:
    return {name: value for name, value, _ in score(runs)}


def test_both_error_rates_are_counted_by_truth() -> None:
    found = rates(
        judged(),
        judged(itl_s=0.002),
        judged("client_slow", itl_s=0.002),
        judged("client_slow"),
        judged("arrivals_mismatch"),
        judged(),
    )
    assert found["said valid and wrong"] == "1 of 3 (33.3 %)"
    assert found["said invalid and right"] == "2 of 4 (50.0 %)"
    assert found["of which for the client's timing"] == "1 of 4 (25.0 %)"
    assert found["ought to be invalid"] == "2 of 6 (33.3 %)"


def test_a_wrong_figure_beside_the_headline_is_no_reason_to_be_invalid_and_yet_wrong() -> None:
    run = judged(tpot_s=0.002)
    assert run.wrong == ["tpot_s.p99"]
    assert run.is_valid_and_wrong
    assert not run.ought_to_be_invalid


def summary_with(**itl: Any) -> dict[str, Any]:
    metrics: dict[str, Any] = {metric: dict.fromkeys(PERCENTILES, 0.020) for metric in METRICS}
    metrics["itl_s"].update(itl)
    return {"verdict": {"reasons": [], "findings": [], "warnings": []}, "metrics": metrics}


def test_a_figure_that_is_called_limited_is_not_called_sure() -> None:
    said = {"p99": 0.030, "error": {"p99": [0.019, 0.030]}, "client_limited": ["p99"]}
    run = judge_summary(KIND, summary_with(**said), TRUTH)
    assert run.wrong == []
    assert run.ought_to_be_invalid
    assert run.figures["itl_s.p99"].has_held


def test_the_headline_is_the_percentile_that_a_metric_carries() -> None:
    run = judge_summary(KIND, summary_with(p99=0.030, carries="p90"), TRUTH)
    assert not run.ought_to_be_invalid
    assert run.wrong == ["itl_s.p99"]


def test_withheld_gaps_are_counted_where_the_server_bundles_and_where_it_does_not() -> None:
    nothing: dict[str, Any] = dict.fromkeys(PERCENTILES)
    withheld = judge_summary(BUNDLING, summary_with(**nothing), TRUTH)
    found = rates(withheld, dataclasses.replace(withheld, kind=KIND), judged())
    assert found["ITL withheld where the server bundles"] == "1 of 1 (100.0 %)"
    assert found["ITL withheld elsewhere"] == "1 of 2 (50.0 %)"
    assert not withheld.wrong


def test_a_row_names_the_worst_error_of_the_runs_and_what_was_said() -> None:
    row = describe_kind([judged(), judged("client_slow", itl_s=0.002), judged("client_slow")])
    assert row == (KIND.name, "1 of 3", "1", "0 / 0", "0 / 2", "—", "—", "client_slow (2)")


def test_kinds_have_names_of_their_own_and_are_as_many_as_promised() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 24
