"""The error of each figure, what it decides, and when the client has spoilt a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadgen.measure.error import Figure, client_late, client_slow, figure_of
from loadgen.measure.measured import Measured, measure
from loadgen.measure.options import MeasureOptions
from loadgen.measure.slo import parse_slo
from loadgen.measure.summary import summarize
from loadgen.records import RequestRecord
from tests.loadgen.rows import MS, make_record, make_run

UNSURE = Figure(label="ttft.p99", value=0.041, range=(0.003, 0.041), is_spoilt_by_sends=True)


def options_of(*slo: str, **changes: Any) -> MeasureOptions:
    objectives = tuple(map(parse_slo, slo))
    named = tuple(objective for objective in objectives if objective.percentile is not None)
    return MeasureOptions(warmup_s=0.0, objectives=objectives, named=named, **changes)


def answers(num: int = 60, *, lag_ms: float = 0.0, late_reads: Sequence[int] = ()) -> list[RequestRecord]:
    """One request a second, four tokens 20 ms apart from 50 ms on; in `late_reads` a client that slept from
    71 ms on read the last two at once.
    """
    records = []
    for index in range(num):
        stamps = [50 + lag_ms, 70 + lag_ms, 90 + lag_ms, 110 + lag_ms]
        lower = [round((index * 1000 + stamp) * MS) for stamp in stamps]
        if index in late_reads:
            stamps[2] = stamps[3]
            lower[2] = round((index * 1000 + 71 + lag_ms) * MS)
        records.append(
            make_record(index, scheduled_s=index, token_ms=stamps, lag_ms=lag_ms, chunk_lower_ns=lower)
        )
    return records


def measured(tmp_path: Path, records: list[RequestRecord], *slo: str) -> Measured:
    return measure(make_run(tmp_path, records), options_of(*slo))


def codes(tmp_path: Path, records: list[RequestRecord], *slo: str, **changes: Any) -> set[str]:
    verdict = summarize(make_run(tmp_path, records), options_of(*slo, **changes))["verdict"]
    return {reason["code"] for reason in verdict["reasons"] if reason["code"].startswith("client")}


@pytest.mark.parametrize(
    ("value", "low", "high", "is_sure"),
    [
        (0.010, 0.0091, 0.0109, True),  # 1 ms
        (0.010, 0.0089, 0.010, False),
        (0.100, 0.096, 0.104, True),  # 5 %
        (0.100, 0.094, 0.100, False),
        (None, 0.0, 1.0, True),
    ],
)
def test_a_figure_is_sure_within_a_millisecond_or_five_percent(
    value: float | None, low: float, high: float, is_sure: bool
) -> None:
    assert Figure(label="x", value=value, range=(low, high)).is_sure is is_sure


def test_a_limit_outside_the_range_is_decided_and_one_inside_only_where_the_figure_is_sure() -> None:
    assert UNSURE.meets(0.050) is True
    assert UNSURE.meets(0.002) is False
    assert UNSURE.meets(0.020) is None
    sure = Figure(label="x", value=0.1, range=(0.098, 0.101))
    assert (sure.meets(0.0995), sure.meets(0.1005)) == (False, True)
    assert Figure(label="x", value=None).meets(1.0) is None


def test_late_sends_spoil_what_counts_from_the_schedule_and_not_the_gaps(tmp_path: Path) -> None:
    records = answers(lag_ms=4)
    found = measured(tmp_path, records)
    assert figure_of(found, "ttft_s", "p50").range == pytest.approx((0.050, 0.054))
    assert figure_of(found, "ttft_s", "p50").is_spoilt_by_sends
    assert figure_of(found, "itl_s", "p99").is_sure
    assert codes(tmp_path, records) == {"client_late"}
    assert codes(tmp_path, answers(lag_ms=0.9)) == set()


def test_the_limit_of_the_send_lag_can_be_set(tmp_path: Path) -> None:
    assert codes(tmp_path, answers(lag_ms=4), max_send_lag_s=0.005) == set()
    assert codes(tmp_path, answers(lag_ms=0.9), max_send_lag_s=0.0005) == {"client_late"}


def test_waiting_for_a_place_under_a_cap_is_no_lateness_of_the_client(tmp_path: Path) -> None:
    assert codes(tmp_path, answers(lag_ms=40), max_in_flight=1) == set()


def test_late_reads_spoil_the_gaps_where_they_reach_a_figure_that_is_shown(tmp_path: Path) -> None:
    many = answers(600, late_reads=range(0, 600, 6))
    found = measured(tmp_path, many)
    assert figure_of(found, "itl_s", "p50").is_sure
    assert figure_of(found, "itl_s", "p99").range == pytest.approx((0.020, 0.040))
    assert codes(tmp_path, many) == {"client_slow"}
    assert codes(tmp_path, answers(600, late_reads=range(3))) == set()  # of 1,800 gaps: the p99 holds
    assert codes(tmp_path, answers(late_reads=range(0, 60, 6))) == set()  # 180 carry no p99, and show none


def test_an_objective_off_the_headline_asks_for_its_figure_unless_it_is_decided_anyhow(
    tmp_path: Path,
) -> None:
    records = answers(late_reads=[3])  # the longest gap is 20 to 40 ms
    assert codes(tmp_path, records, "itl.max=30ms") == {"client_slow"}
    assert codes(tmp_path, records, "itl.max=50ms") == set()
    targets = summarize(make_run(tmp_path, records), options_of("itl.max=30ms", "itl.max=50ms"))["slo"][
        "targets"
    ]
    assert [target["is_met"] for target in targets] == [None, True]
    assert targets[0]["error"] == pytest.approx((0.020, 0.040))


def test_the_share_that_meets_a_limit_on_each_request_has_a_range(tmp_path: Path) -> None:
    records = answers(lag_ms=0.9)
    assert codes(tmp_path, records, "ttft=50.5ms") == {"client_late"}
    slo = summarize(make_run(tmp_path, records), options_of("ttft=50.5ms"))["slo"]
    assert (slo["attained_fraction"], slo["attained_error"]) == (0.0, (0.0, 1.0))
    sure = summarize(make_run(tmp_path, records), options_of("ttft=60ms"))["slo"]
    assert sure["attained_error"] == (1.0, 1.0)


def test_what_the_server_wrote_together_has_no_gaps_and_nobody_is_blamed(tmp_path: Path) -> None:
    records = []
    for index in range(40):
        stamps = [50, *[100] * 5, *[150] * 5]
        lower = [(index * 1000 + stamp) * MS - (stamp > 50) * 80_000 for stamp in stamps]
        records.append(make_record(index, scheduled_s=index, token_ms=stamps, chunk_lower_ns=lower))
    summary = summarize(make_run(tmp_path, records), options_of("itl.p50=20ms", "tpot=20ms"))
    metrics, verdict = summary["metrics"], summary["verdict"]
    for name in ("itl_s", "event_gap_s"):
        assert (metrics[name]["p50"], metrics[name]["withheld"]) == (None, "sent_together")
    assert metrics["max_gap_s"]["p50"] == pytest.approx(0.050)
    assert not {"client_slow", "client_late"} & {reason["code"] for reason in verdict["reasons"]}
    assert "sent_together" in {finding["code"] for finding in verdict["findings"]}
    assert summary["slo"]["targets"][0]["is_met"] is None
    assert summary["slo"]["attained_fraction"] == 0.0


def test_an_answer_in_one_read_has_no_tpot(tmp_path: Path) -> None:
    records = [make_record(i, scheduled_s=i, token_ms=[50] * 60) for i in range(30)]
    summary = summarize(make_run(tmp_path, records), options_of("tpot.p50=5ms"))
    assert (summary["metrics"]["tpot_s"]["n"], summary["metrics"]["tpot_s"]["withheld"]) == (
        0,
        "sent_together",
    )
    assert summary["slo"]["targets"][0]["is_met"] is None
    assert summary["metrics"]["ttft_s"]["p50"] == pytest.approx(0.050)


def test_a_few_tokens_written_together_leave_the_figures(tmp_path: Path) -> None:
    records = []
    for index in range(40):
        stamps = [50, 60, 80, 80, *range(90, 290, 10)]
        lower = [(index * 1000 + stamp) * MS - (stamp == 80) * 80_000 for stamp in stamps]
        records.append(make_record(index, scheduled_s=index, token_ms=stamps, chunk_lower_ns=lower))
    summary = summarize(make_run(tmp_path, records), options_of())
    assert summary["metrics"]["itl_s"]["p50"] == pytest.approx(0.010)
    assert summary["verdict"]["findings"] == []


def test_notices_name_the_figure_its_range_and_the_limit() -> None:
    late = client_late([UNSURE], 0.038, advice="Do something.")
    assert late is not None
    assert late.message == (
        "requests left late (send lag p99 38 ms): ttft.p99 is between 3 ms and 41 ms, "
        "limit 1 ms or 5 % of it."
    )
    assert client_slow([UNSURE], 0.001) is None
    slow = client_slow(
        [Figure(label="itl.p99", value=0.02, range=(0.02, 0.04), is_spoilt_by_reads=True)], 0.012
    )
    assert slow is not None
    assert "itl.p99 is between 20 ms and 40 ms" in slow.message
    assert client_late([], None) is client_slow([], 0.5) is None
