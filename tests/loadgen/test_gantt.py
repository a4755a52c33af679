"""The pictures of the scheduler's decisions: which steps they show, and what each bar says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadgen.measure.gantt import MAX_REQUESTS, NUM_STEPS, Gantt, first_steps, worst_stall
from loadgen.measure.measured import Measured, measure
from loadgen.measure.options import MeasureOptions
from loadgen.measure.series import slowest_requests
from loadgen.measure.waterfall import first_token_causes
from loadgen.store import Run, load
from tests.reports.synthetic import STEP_NS, Story, make_run, span


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    story = Story(num_requests=60, rate_per_s=8, has_account=True)
    return make_run(tmp_path_factory.mktemp("runs"), story)


def with_requests(run: Run, rows: list[dict[str, Any]]) -> Run:
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"schema_version": "1"})
    pq.write_table(table, run.path / "engine_requests.parquet")
    return load(run.path)


def request(run: Run, index: int, arrived_ns: int, spans: list[dict[str, Any]]) -> dict[str, Any]:
    finished_ns = (spans[-1]["last_step"] + 1) * STEP_NS
    name = f"{run.path.name}-{index}"
    return {"server_request_id": name, "arrived_ns": arrived_ns, "finished_ns": finished_ns, "spans": spans}


def measured_of(run: Run) -> Measured:
    return measure(run, MeasureOptions.of(run.manifest))


def story(gantt: Gantt, row: int) -> list[tuple[str, int]]:
    """What happened to a request, consecutive steps of a kind counted."""
    told: list[tuple[str, int]] = []
    for bar in gantt.bars:
        if bar.row == row and told and told[-1][0] == bar.kind:
            told[-1] = (bar.kind, told[-1][1] + 1)
        elif bar.row == row:
            told.append((bar.kind, 1))
    return told


def test_a_request_is_told_from_its_arrival_to_its_end(tmp_path: Path) -> None:
    run = make_run(tmp_path, Story(num_requests=60, rate_per_s=8))
    first = [span("prefill", 2, 2, 100), span("prefill", 3, 3, 28), span("decode", 4, 9, 6)]
    lost = [span("decode", 12, 14, 3), span("evicted", 15, 15, 140), span("prefill", 20, 20, 140)]
    rows = [
        request(run, 0, STEP_NS, [*first, *lost, span("decode", 21, 22, 2)]),
        request(run, 1, STEP_NS + 1, [span("prefill", 5, 5, 64)]),
    ]
    gantt = first_steps(with_requests(run, rows))
    assert gantt is not None
    assert gantt.requests == [0, 1]
    assert story(gantt, 0) == [
        ("waiting", 1),
        ("prefill", 2),
        ("decode", 6),
        ("standing by", 1),
        ("decode", 3),
        ("evicted", 1),
        ("prefill", 1),
        ("decode", 2),
    ]
    assert story(gantt, 1) == [("waiting", 1), ("prefill", 1)]
    assert [bar.tokens for bar in gantt.bars if bar.kind == "prefill"] == [100, 28, 140, 64]


def test_the_worst_stall_is_in_its_picture(run: Run) -> None:
    measured = measured_of(run)
    gantt = worst_stall(run, measured)
    assert gantt is not None
    assert gantt.stall is not None
    row, begin_s, end_s = gantt.stall
    assert gantt.start_s <= begin_s < end_s <= gantt.end_s
    gaps = measured.values["max_gap_s"]
    stalled = int(measured.counted.nonzero()[0][gaps.argmax()])
    assert gantt.requests[row] == stalled


def test_bars_of_a_request_follow_each_other(run: Run) -> None:
    for gantt in (first_steps(run), worst_stall(run, measured_of(run))):
        assert gantt is not None
        assert len(gantt.requests) <= MAX_REQUESTS
        assert gantt.end_s - gantt.start_s <= 2 * NUM_STEPS * STEP_NS / 1e9
        for row in range(len(gantt.requests)):
            bars = [bar for bar in gantt.bars if bar.row == row]
            assert all(a.end_s <= b.start_s for a, b in pairwise(bars))
            assert all(gantt.start_s <= bar.start_s < bar.end_s <= gantt.end_s for bar in bars)


def test_without_a_log_there_is_no_picture(tmp_path: Path) -> None:
    run = make_run(tmp_path, Story(num_requests=20))
    assert first_steps(run) is None
    assert worst_stall(run, measured_of(run)) is None


def test_parts_of_a_first_token_sum_to_it(run: Run, tmp_path: Path) -> None:
    accounted, unknown = run, make_run(tmp_path, Story(num_requests=20, has_engine=False))
    for shown, names in ((accounted, {"client", "wait_slot", "own"}), (unknown, {"not sent", "no answer"})):
        measured = measured_of(shown)
        slow = slowest_requests(measured, 20)
        causes = first_token_causes(shown, measured, slow)
        assert set().union(*causes) == names
        for request, parts in zip(slow, causes, strict=True):
            assert sum(parts.values()) == pytest.approx(request.ttft_s)


def test_work_faster_than_the_model_is_no_negative_part(tmp_path: Path) -> None:
    run = make_run(tmp_path, Story(num_requests=5, has_account=True))
    rows = pq.read_table(run.path / "engine_requests.parquet").to_pylist()
    run = with_requests(run, [{**row, "first_residual_ns": -row["first_own_ns"] // 2} for row in rows])
    measured = measured_of(run)
    slow = slowest_requests(measured, 5)
    for request, parts in zip(slow, first_token_causes(run, measured, slow), strict=True):
        assert "residual" not in parts
        assert sum(parts.values()) == pytest.approx(request.ttft_s)
