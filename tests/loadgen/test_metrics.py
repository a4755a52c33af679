"""Each metric by its definition, on rows whose figures were worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measure.columns import Window, read_columns
from loadgen.measure.events import read_events
from loadgen.measure.metrics import (
    UNITS,
    MetricSummary,
    Sample,
    compute_samples,
    in_flight_steps,
    request_ranges,
    request_values,
    summarize_sample,
)
from loadgen.records import Outcome, RequestRecord
from tests.loadgen.rows import MS, make_failure, make_record, make_rows

WHOLE = Window(start_ns=0.0, end_ns=10e9)


def compute(records: Sequence[RequestRecord], window: Window = WHOLE) -> dict[str, MetricSummary]:
    rows = make_rows(records)
    columns = read_columns(rows)
    counted = np.asarray(columns.is_ok & window.holds(columns.scheduled_ns))
    events = read_events(rows, columns, counted, window)
    values = request_values(columns, counted, events.by_request)
    ranges = request_ranges(columns, counted, events.by_request, is_lag_ours=True)
    samples = compute_samples(values, ranges, events.gaps, columns, window)
    return {name: summarize_sample(name, sample) for name, sample in samples.items()}


def test_latency_runs_from_the_scheduled_instant() -> None:
    found = compute([make_record(0, scheduled_s=1, token_ms=(100, 110, 130), lag_ms=40)])
    expected = {
        "ttft_s": 0.100,
        "ttft_from_send_s": 0.060,
        "e2e_s": 0.130,
        "e2e_from_send_s": 0.090,
        "send_lag_s": 0.040,
        "tpot_s": 0.015,
        "max_gap_s": 0.020,
        "recv_lag_s": 0.00002,
        "normalized_latency_s": 0.130 / 3,
        "output_tokens_per_request": 3,
        "prompt_tokens_per_request": 10,
    }
    for name, value in expected.items():
        assert found[name].statistics["p50"] == pytest.approx(value), name
        assert found[name].n == 1
        assert found[name].statistics["std"] is None
    assert found["connect_s"].n == 0
    assert set(found) == set(UNITS)


def test_a_gap_before_k_tokens_is_k_token_gaps_and_one_event_gap() -> None:
    found = compute([make_record(0, scheduled_s=0, token_ms=(50, 80, 90), tokens=(1, 3, 1))])
    assert found["itl_s"].n == 4
    assert found["itl_s"].statistics["mean"] == pytest.approx(0.010)
    assert found["itl_s"].statistics["max"] == pytest.approx(0.010)
    assert found["event_gap_s"].n == 2
    assert found["event_gap_s"].statistics["max"] == pytest.approx(0.030)
    assert found["tpot_s"].statistics["p50"] == pytest.approx(0.040 / 4)


def test_an_event_of_unknown_tokens_counts_among_event_gaps_only() -> None:
    found = compute([make_record(0, scheduled_s=0, token_ms=(50, 80, 90), tokens=(1, None, 1))])
    assert (found["itl_s"].n, found["event_gap_s"].n) == (1, 2)
    assert found["tpot_s"].n == 0


def test_gaps_never_span_two_requests() -> None:
    found = compute([make_record(i, scheduled_s=i, token_ms=(10, 20)) for i in range(3)])
    assert found["event_gap_s"].n == 3
    assert found["event_gap_s"].statistics["max"] == pytest.approx(0.010)


def test_one_token_has_no_tpot_and_no_gap() -> None:
    found = compute([make_record(0, scheduled_s=0, token_ms=(50,))])
    assert (found["tpot_s"].n, found["itl_s"].n, found["max_gap_s"].n) == (0, 0, 0)
    assert found["tpot_s"].to_json()["p99"] is None
    assert found["ttft_s"].n == 1


def test_an_answer_that_was_not_streamed_has_an_end_but_no_first_token() -> None:
    record = make_record(0, scheduled_s=0, token_ms=(), done_ns=250 * MS, output_tokens=5)
    found = compute([record])
    assert found["ttft_s"].n == 0
    assert found["e2e_s"].statistics["p50"] == pytest.approx(0.250)


def test_failures_are_infinite_in_their_own_percentiles_and_absent_elsewhere() -> None:
    records = [make_record(i, scheduled_s=i * 0.01, token_ms=(100, 110)) for i in range(98)]
    records += [make_failure(98 + i, scheduled_s=1, outcome=Outcome.RESET) for i in range(2)]
    found = compute(records)
    assert found["ttft_s"].n == 98
    with_failures = found["ttft_with_failures_s"].to_json()
    assert (with_failures["n"], with_failures["n_failed"]) == (100, 2)
    assert with_failures["p95"] == pytest.approx(0.1)
    assert with_failures["p99"] is None
    assert with_failures["max"] is None
    assert with_failures["mean"] is None


def test_reasoning_ends_before_the_first_answer() -> None:
    record = make_record(0, scheduled_s=0, token_ms=(100, 110, 130), first_answer_ns=130 * MS)
    assert compute([record])["first_answer_s"].statistics["p50"] == pytest.approx(0.130)


def test_only_requests_scheduled_inside_the_window_count() -> None:
    records = [make_record(i, scheduled_s=i, token_ms=(100, 110)) for i in range(6)]
    found = compute(records, Window(start_ns=2e9, end_ns=4e9))
    assert found["ttft_s"].n == 2
    assert found["event_gap_s"].n == 2


def test_nothing_counted_is_null_everywhere() -> None:
    found = compute([make_failure(0, scheduled_s=0, outcome=Outcome.CONNECT_FAILED)])
    for name, metric in found.items():
        if name == "in_flight":
            continue
        assert metric.statistics["p50"] is None, name
        assert metric.n == (1 if name.endswith("with_failures_s") else 0), name


def test_in_flight_is_weighted_by_time() -> None:
    # 0 to 1 s one request, 1 to 2 s two, 2 to 4 s none, of 4 s
    records = [
        make_record(0, scheduled_s=0, token_ms=(2000,)),
        make_record(1, scheduled_s=1, token_ms=(1000,)),
    ]
    metric = compute(records, Window(start_ns=0.0, end_ns=4e9))["in_flight"]
    assert metric.statistics["mean"] == pytest.approx(0.75)
    assert metric.statistics["p50"] == 0
    assert metric.statistics["p90"] == 2
    assert metric.statistics["max"] == 2


def test_in_flight_ends_at_zero_and_never_below() -> None:
    records = [make_record(i, scheduled_s=i * 0.1, token_ms=(50, 250)) for i in range(20)]
    steps = in_flight_steps(read_columns(make_rows(records)))
    assert steps.level[-1] == 0
    assert steps.level.min() >= 0
    assert steps.level.max() == 3


def test_tokens_are_counted_where_their_events_happened() -> None:
    records = [
        make_record(0, scheduled_s=0, token_ms=(500, 1500, 2500)),
        make_failure(1, scheduled_s=1, outcome=Outcome.RESET),
    ]
    rows = make_rows(records)
    columns = read_columns(rows)
    window = Window(start_ns=1e9, end_ns=2e9)
    events = read_events(rows, columns, columns.is_ok, window)
    assert events.tokens_in_window == 1


def test_uncertain_stamps_are_counted() -> None:
    lower = [100 * MS, 102 * MS, 110 * MS]
    rows = make_rows([make_record(0, scheduled_s=0, token_ms=(100, 110, 110), chunk_lower_ns=lower)])
    columns = read_columns(rows)
    events = read_events(rows, columns, columns.is_ok, WHOLE)
    assert (events.num_events, events.num_alone) == (3, 2)
    assert events.uncertain_ns.tolist() == [8 * MS]


def test_the_error_of_a_figure_is_what_its_stamps_and_the_send_lag_leave_open() -> None:
    lower = [98 * MS, 110 * MS, 121 * MS]
    found = compute(
        [make_record(0, scheduled_s=0, token_ms=(100, 110, 130), lag_ms=40, chunk_lower_ns=lower)]
    )
    errors = {name: found[name].error["p50"] for name in ("ttft_s", "ttft_from_send_s", "e2e_s", "tpot_s")}
    assert errors == {
        "ttft_s": pytest.approx((0.058, 0.100)),
        "ttft_from_send_s": pytest.approx((0.058, 0.060)),
        "e2e_s": pytest.approx((0.081, 0.130)),
        "tpot_s": pytest.approx((0.0105, 0.016)),
    }
    assert found["itl_s"].error["max"] == pytest.approx((0.011, 0.020))
    assert found["itl_s"].error["min"] == pytest.approx((0.010, 0.012))
    assert found["max_gap_s"].error["max"] == pytest.approx((0.011, 0.020))
    assert found["output_tokens_per_request"].error == {}
    assert "p50" in found["ttft_s"].client_limited
    assert "p50" not in found["ttft_from_send_s"].client_limited  # 2 ms of 60


def test_exact_stamps_sent_on_time_leave_no_error() -> None:
    found = compute([make_record(0, scheduled_s=0, token_ms=(100, 110, 130))])
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "max_gap_s"):
        value = found[name].statistics["p99"]
        assert found[name].error["p99"] == (value, value)
        assert not found[name].client_limited


def test_events_that_a_late_client_gathered_share_the_silence_within_their_bounds() -> None:
    # four tokens, one each 10 ms; the second and third were read together, after a look at 108 ms
    lower = [100 * MS, 108 * MS, 120 * MS, 130 * MS]
    found = compute([make_record(0, scheduled_s=0, token_ms=(100, 120, 120, 130), chunk_lower_ns=lower)])
    assert found["event_gap_s"].statistics["max"] == pytest.approx(0.010)
    assert found["event_gap_s"].error["max"] == pytest.approx((0.010, 0.020))
    # a look at 115 ms says that the first of the two did not come at 110
    late = compute(
        [
            make_record(
                0, scheduled_s=0, token_ms=(100, 120, 120), chunk_lower_ns=[100 * MS, 112 * MS, 120 * MS]
            )
        ]
    )
    assert late["event_gap_s"].statistics["max"] == pytest.approx(0.012)
    assert late["event_gap_s"].statistics["min"] == pytest.approx(0.008)


def test_events_that_the_server_wrote_together_have_equal_shares_and_are_told_apart() -> None:
    stamps = (100, 150, 150, 150, 150, 150, 200)
    lower = [(100 * MS), *[150 * MS - 90_000] * 5, 200 * MS]
    rows = make_rows([make_record(0, scheduled_s=0, token_ms=stamps, chunk_lower_ns=lower)])
    columns = read_columns(rows)
    gaps = read_events(rows, columns, columns.is_ok, WHOLE).gaps
    assert gaps.ns.tolist() == [10 * MS] * 5 + [50 * MS]
    assert gaps.bundled.at.tolist() == [0, 1, 2, 3, 4]
    assert gaps.bundled.high.tolist() == [50 * MS] * 5
    assert (gaps.ranges.high - gaps.ranges.low).max() < 100_000


@given(st.lists(st.tuples(st.floats(0.001, 10), st.integers(1, 5)), min_size=1, max_size=40))
def test_weights_are_repetitions(pairs: list[tuple[float, int]]) -> None:
    values, weights = np.array([v for v, _ in pairs]), np.array([w for _, w in pairs])
    weighted = summarize_sample("itl_s", Sample(values=values, weights=weights))
    repeated = summarize_sample("itl_s", Sample(values=np.repeat(values, weights)))
    assert weighted.n == repeated.n
    for name, value in repeated.statistics.items():
        assert weighted.statistics[name] == (None if value is None else pytest.approx(value)), name


@given(st.lists(st.lists(st.floats(0.1, 500), min_size=0, max_size=6), min_size=1, max_size=12))
def test_gaps_of_a_request_sum_to_what_lies_between_first_and_last_token(streams: list[list[float]]) -> None:
    records = [
        make_record(i, scheduled_s=i, token_ms=tuple(np.cumsum(gaps))) for i, gaps in enumerate(streams)
    ]
    rows = make_rows(records)
    columns = read_columns(rows)
    events = read_events(rows, columns, columns.is_ok, WHOLE)
    for i, record in enumerate(records):
        own = events.gaps.ns[events.gaps.offsets[i] : events.gaps.offsets[i + 1]]
        assert len(own) == max(0, len(record.chunk_ns) - 1)
        if len(own):
            assert own.sum() == record.chunk_ns[-1] - record.chunk_ns[0]
            assert events.by_request["max_gap_s"][i] == own.max() / 1e9
        else:
            assert np.isnan(events.by_request["max_gap_s"][i])


def test_a_gap_that_does_not_fit_four_bytes_is_kept_whole() -> None:
    found = compute([make_record(0, scheduled_s=0, token_ms=(50, 60, 9_060))])
    assert found["event_gap_s"].statistics["max"] == found["max_gap_s"].statistics["max"] == 9.0
    assert found["event_gap_s"].statistics["min"] == 0.01


def test_steps_go_from_stamp_to_stamp() -> None:
    rows = make_rows([make_record(0, scheduled_s=0, token_ms=(50, 50, 80, 80, 90))])
    columns = read_columns(rows)
    events = read_events(rows, columns, columns.is_ok, WHOLE)
    assert (events.steps.ns // MS).tolist() == [0, 30, 0, 10]
    assert (events.gaps.ns // MS).tolist() == [15, 15, 10]


def test_events_of_one_read_share_the_silence_before_it_and_none_is_a_gap_of_zero() -> None:
    found = compute([make_record(0, scheduled_s=0, token_ms=(50, 80, 80, 80, 90))])
    assert found["event_gap_s"].n == 4
    assert found["event_gap_s"].statistics["min"] == pytest.approx(0.010)
    assert found["event_gap_s"].statistics["max"] == pytest.approx(0.010)
    assert found["max_gap_s"].statistics["max"] == pytest.approx(0.030)


def test_events_of_the_first_read_have_no_gap() -> None:
    found = compute([make_record(0, scheduled_s=0, token_ms=(50, 50, 60))])
    assert found["event_gap_s"].n == 1
    assert found["event_gap_s"].statistics["min"] == pytest.approx(0.010)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
def test_gaps_of_chosen_requests_are_theirs(requests: list[tuple[int, bool]]) -> None:
    records = [
        make_record(i, scheduled_s=i, token_ms=[100 + (i + 2) * k for k in range(n)], tokens=[2] * n)
        for i, (n, _) in enumerate(requests)
    ]
    rows = make_rows(records)
    columns = read_columns(rows)
    chosen = np.array([is_chosen for _, is_chosen in requests])
    direct = read_events(rows, columns, chosen, WHOLE).gaps
    taken = read_events(rows, columns, columns.is_ok, WHOLE).gaps.of(chosen)
    assert taken.ns.tolist() == direct.ns.tolist()
    assert taken.offsets.tolist() == direct.offsets.tolist()
    if len(direct.ns):
        assert taken.tokens is not None
        assert taken.tokens.tolist() == [2] * len(direct.ns)
