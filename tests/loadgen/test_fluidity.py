"""Fluidity and playback lag: the definition followed token by token, and streams worked out by hand."""

from __future__ import annotations

from math import floor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measure.fluidity import Deadlines, deadlines_of, fluidity_index, playback_lag
from loadgen.measure.options import MeasureOptions
from loadgen.measure.slo import parse_slo
from loadgen.measure.summary import summarize
from tests.loadgen.rows import make_record, make_run

DEADLINES = Deadlines(first_s=0.3, gap_s=0.05)


def index_by_token(ttft: float, gaps: list[float], deadlines: Deadlines) -> float:
    slack, missed, total = 0.0, 0, 0
    for i, time in enumerate([ttft, *gaps]):
        allowed = deadlines.first_s if i == 0 else deadlines.gap_s
        if time <= allowed + slack:
            slack += allowed - time
            total += 1
            continue
        late = (
            1 + floor((time - slack - allowed) / deadlines.gap_s)
            if i == 0
            else floor((time - slack) / deadlines.gap_s)
        )
        missed, total, slack = missed + late, total + late, 0.0
    return 1 - missed / total


def lag_by_token(ttft: float, gaps: list[float], deadlines: Deadlines) -> float:
    times = np.cumsum([ttft, *gaps])
    return float(max(t - deadlines.first_s - i * deadlines.gap_s for i, t in enumerate(times)))


STREAMS = st.lists(
    st.tuples(st.floats(0.01, 1), st.lists(st.floats(0.001, 0.5), max_size=8)), min_size=1, max_size=10
)


@given(STREAMS)
def test_both_figures_against_their_definition(streams: list[tuple[float, list[float]]]) -> None:
    ttft = np.array([first for first, _ in streams])
    gaps = np.array([gap for _, own in streams for gap in own], np.float64)
    offsets = np.concatenate([[0], np.cumsum([len(own) for _, own in streams])]).astype(np.int64)
    index = fluidity_index(ttft, gaps, offsets, DEADLINES)
    lag = playback_lag(ttft, gaps, offsets, DEADLINES)
    assert index == pytest.approx(np.array([index_by_token(first, own, DEADLINES) for first, own in streams]))
    assert lag == pytest.approx(
        np.array([lag_by_token(first, own, DEADLINES) for first, own in streams]), abs=1e-9
    )


def test_a_stall_after_early_tokens_is_forgiven_and_one_before_is_not() -> None:
    fast, stall = [0.01] * 10, [0.42]
    ttft = np.array([0.3, 0.3])
    gaps = np.array([*fast, *stall, *stall, *fast])
    offsets = np.array([0, 11, 22], np.int64)
    late, early = fluidity_index(ttft, gaps, offsets, DEADLINES)
    assert late == 1
    assert early == pytest.approx(1 - 8 / 19)
    assert playback_lag(ttft, gaps, offsets, DEADLINES) == pytest.approx(np.array([0.0, 0.37]))


def test_deadlines_are_the_objectives_on_a_request() -> None:
    def found(*texts: str) -> Deadlines | None:
        return deadlines_of([parse_slo(text) for text in texts])

    assert found("ttft=300ms", "itl=50ms") == DEADLINES
    assert found("ttft=300ms", "tpot=50ms") == DEADLINES
    assert found("ttft=300ms") is None
    assert found("ttft.p99=300ms", "itl=50ms") is None


def test_the_summary_has_them_where_deadlines_are_given(tmp_path: Path) -> None:
    records = [make_record(i, scheduled_s=i / 10, token_ms=(100, 150), tokens=(1, 2)) for i in range(60)]
    run = make_run(tmp_path, records)
    options = MeasureOptions(warmup_s=0.0, objectives=(parse_slo("ttft=80ms"), parse_slo("itl=30ms")))
    fluidity = summarize(run, options)["slo"]["fluidity"]
    # the first token misses its deadline; the two that follow come 25 ms apart
    assert fluidity["index"]["mean"] == pytest.approx(1 - 1 / 3)
    assert fluidity["fluid_fraction"] == 0
    assert fluidity["playback_lag_s"]["max"] == pytest.approx(0.02)
    assert summarize(run, MeasureOptions(warmup_s=0.0))["slo"]["fluidity"] is None
