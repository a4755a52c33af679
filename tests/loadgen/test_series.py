from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.measure import series
from loadgen.measure.columns import Columns
from loadgen.measure.measured import measure
from loadgen.measure.metrics import Sample
from loadgen.measure.options import MeasureOptions
from loadgen.records import Outcome, RequestRecord
from loadgen.store import RequestRows
from tests.reports.synthetic import Story, make_run


def sample(*values: float, weights: list[int] | None = None) -> Sample:
    return Sample(
        values=np.array(values, np.float64), weights=None if weights is None else np.array(weights, np.int64)
    )


def rows_of(*records: RequestRecord) -> RequestRows:
    import pyarrow as pa

    from loadgen.records import arrow_schema, to_row

    return RequestRows(pa.Table.from_pylist([to_row(record) for record in records], arrow_schema()))


def record(
    index: int, chunk_ns: list[int], *, outcome: Outcome = Outcome.OK, **more: object
) -> RequestRecord:
    made = RequestRecord(
        index=index,
        scheduled_ns=index * 1_000_000_000,
        sent_ns=index * 1_000_000_000,
        first_token_ns=chunk_ns[0] if chunk_ns else None,
        last_token_ns=chunk_ns[-1] if chunk_ns else None,
        done_ns=chunk_ns[-1] if chunk_ns else None,
        prompt_tokens_planned=10,
        output_tokens_planned=len(chunk_ns) or 1,
        prompt_tokens=10,
        output_tokens=len(chunk_ns) or None,
        chunk_ns=chunk_ns,
        chunk_lower_ns=chunk_ns,
        chunk_tokens=[1] * len(chunk_ns),
        outcome=outcome,
    )
    for name, value in more.items():
        setattr(made, name, value)
    return made


def columns_of(rows: RequestRows) -> Columns:
    from loadgen.measure.columns import read_columns

    return read_columns(rows)


def test_cdf_rises_to_one_through_every_value_of_a_small_sample() -> None:
    points = series.cdf(sample(3.0, 1.0, 2.0, 4.0))
    assert points.x[0] == 1.0
    assert (points.x[-1], points.y[-1]) == (4.0, 1.0)
    assert np.all(np.diff(points.x) >= 0)
    assert np.all(np.diff(points.y) > 0)
    for x, y in ((1.0, 0.25), (2.0, 0.5), (3.0, 0.75)):
        assert points.y[points.x == x].max() <= y + 1e-9


def test_cdf_counts_weights() -> None:
    points = series.cdf(sample(1.0, 2.0, weights=[99, 1]))
    assert points.x[points.y <= 0.99].max() == 1.0
    assert points.x[-1] == 2.0


def test_spectrum_ends_with_the_largest_value() -> None:
    points = series.spectrum(sample(*np.arange(1, 1001, dtype=float)))
    assert points.y[0] == 1
    assert points.y[-1] == 1000
    assert points.y[np.searchsorted(points.x, 0.99) - 1] == pytest.approx(990, abs=5)
    assert points.x[-1] == pytest.approx(1 - 1 / 2000)


def test_curves_of_nothing_are_empty() -> None:
    assert len(series.cdf(sample())) == 0
    assert len(series.spectrum(sample())) == 0
    assert series.log_histogram(sample(), 10) is None
    assert series.log_histogram(sample(0.0), 10) is None


def test_log_histogram_keeps_every_positive_value() -> None:
    histogram = series.log_histogram(sample(0.0, 0.001, 0.01, 0.1, weights=[5, 1, 2, 3]), 4)
    assert histogram is not None
    assert sum(histogram.counts) == 6
    assert histogram.counts[0] == 1
    assert histogram.counts[-1] == 3
    ratios = histogram.edges_s[1:] / histogram.edges_s[:-1]
    assert np.allclose(ratios, ratios[0])
    alone = series.log_histogram(sample(0.5), 4)
    assert alone is not None
    assert sum(alone.counts) == 1


def test_token_rate_holds_every_token() -> None:
    rows = rows_of(
        record(0, [100_000_000, 200_000_000, 900_000_000]),
        record(1, [1_500_000_000], chunk_tokens=[None], output_tokens=4),
        record(2, [], outcome=Outcome.RESET),
    )
    rate = series.token_rate(rows, columns_of(rows))
    assert float((rate.y[:-1] * np.diff(rate.x)).sum()) == pytest.approx(7)
    assert rate.y[-1] == 0
    assert rate.x[0] == 0


def test_token_rate_of_failures_is_empty() -> None:
    rows = rows_of(record(0, [], outcome=Outcome.RESET))
    assert len(series.token_rate(rows, columns_of(rows))) == 0


def test_gap_density_holds_every_gap_and_crosses_no_request() -> None:
    rows = rows_of(
        record(0, [100_000_000, 200_000_000, 900_000_000]), record(1, [1_500_000_000, 1_510_000_000])
    )
    density = series.gap_density(rows, columns_of(rows))
    assert density is not None
    assert density.counts.sum() == 3
    assert density.gap_edges_s[0] < 0.01 < 0.7 < density.gap_edges_s[-1]
    single = rows_of(record(0, [100_000_000]))
    assert series.gap_density(single, columns_of(single)) is None


def test_scatter_points_are_the_ok_requests() -> None:
    rows = rows_of(
        record(0, [30_000_000]),
        record(1, [1_050_000_000], prompt_tokens=None),
        record(2, [2_010_000_000], outcome=Outcome.TRUNCATED),
    )
    columns = columns_of(rows)
    over_time = series.ttft_over_schedule(columns)
    assert over_time.x.tolist() == [0.0, 1.0]
    assert over_time.y == pytest.approx([0.03, 0.05])
    assert series.ttft_by_prompt(columns).x.tolist() == [10.0, 10.0]
    assert series.failure_times(columns).tolist() == [2.0]


def test_spans_of_a_long_run_surround_the_slowest_first_token() -> None:
    second = 1_000_000_000
    waits_ns = [500_000_000 if index == 80 else 10_000_000 for index in range(100)]
    chunks = [
        [index * second + wait, index * second + wait + 100_000_000] for index, wait in enumerate(waits_ns)
    ]
    columns = columns_of(rows_of(*(record(index, stamps) for index, stamps in enumerate(chunks))))
    spans = series.request_spans(columns, 10)
    assert len(spans.start_s) == 10
    assert spans.start_s[0] <= 80 <= spans.start_s[-1]
    assert np.all(spans.end_s > spans.first_token_s)
    # 110 ms each: of 100 s, those within 8.25 s of the slowest can be told apart
    wide = series.request_spans(columns, 1000)
    assert (wide.start_s[0], wide.start_s[-1]) == (72.0, 88.0)


def test_spans_of_a_short_run_are_all_of_it() -> None:
    columns = columns_of(rows_of(*(record(index, [(index + 3) * 1_000_000_000]) for index in range(5))))
    assert len(series.request_spans(columns, 10).start_s) == 5
    unsent = columns_of(rows_of(record(0, [], outcome=Outcome.UNSENT, sent_ns=None)))
    assert len(series.request_spans(unsent, 10).start_s) == 0


def test_failures_are_grouped_by_kind_and_words() -> None:
    busy: dict[str, Any] = {"outcome": Outcome.HTTP_STATUS, "http_status": 503, "error": "busy"}
    rows = rows_of(
        record(0, [1]),
        record(1, [], **busy),
        record(2, [], **busy),
        record(3, [], outcome=Outcome.RESET, error=None),
        *(record(n, [], outcome=Outcome.RESET, error=f"cut off ({n} token events)") for n in (4, 5, 6)),
        record(7, [], outcome=Outcome.MALFORMED, error="bad byte at 7"),
    )
    groups = series.failure_groups(rows)
    assert [(group.outcome, group.http_status, group.error, group.count) for group in groups] == [
        ("reset", None, "cut off (N token events)", 3),
        ("http_status", 503, "busy", 2),
        ("malformed", None, "bad byte at 7", 1),
        ("reset", None, None, 1),
    ]
    assert series.failure_groups(rows_of(record(0, [1]))) == []


def test_the_slowest_requests_are_those_of_the_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path, Story(num_requests=60, failure_share=0.2))
    measured = measure(run, MeasureOptions(warmup_s=0.0))
    slowest = series.slowest_requests(measured, 5)
    ok = run.requests[run.requests["outcome"] == "ok"]
    ttft_s = ((ok["first_token_ns"] - ok["scheduled_ns"]) / 1e9).sort_values(ascending=False)
    assert [slow.index for slow in slowest] == ttft_s.index[:5].tolist()
    assert [slow.ttft_s for slow in slowest] == pytest.approx(ttft_s[:5].tolist())
    row = run.requests.loc[slowest[0].index]
    assert slowest[0].output_tokens == row["output_tokens"]
    assert slowest[0].max_gap_s == pytest.approx(np.diff(row["chunk_ns"]).max() / 1e9)
    assert slowest[0].e2e_s == pytest.approx((row["last_token_ns"] - row["scheduled_ns"]) / 1e9)


def test_thinned_steps_keep_their_ends_and_extremes() -> None:
    rng = np.random.default_rng(0)
    points = series.Points(x=np.sort(rng.random(50_000)), y=np.cumsum(rng.choice([-1.0, 0.0, 1.0], 50_000)))
    thin = series.thin_steps(points, num_bins=100)
    assert len(thin) <= 400
    assert set(zip(thin.x, thin.y, strict=True)) <= set(zip(points.x, points.y, strict=True))
    assert (thin.x[0], thin.x[-1]) == (points.x[0], points.x[-1])
    assert (thin.y.min(), thin.y.max()) == (points.y.min(), points.y.max())
    assert (np.diff(thin.x) > 0).all()


def test_few_steps_are_kept_as_they_are() -> None:
    points = series.Points(x=np.arange(20.0), y=np.arange(20.0))
    assert series.thin_steps(points, num_bins=5) is points


def test_evictions_of_each_moment_are_counted(tmp_path: Path) -> None:
    levels = series.engine_levels(make_run(tmp_path, Story(num_requests=20)))
    assert levels is not None
    assert levels.preempted.sum() == 0
