"""Each dialect on three requests worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadgen.measure.dialects import DIALECTS, Log, aiperf, guidellm, mlperf, sglang, speak, vllm
from loadgen.measure.summary import summarize
from tests.loadgen.rows import make_record, make_run

# Three requests due at 0, 1, 2 s and sent 0.1 s late each. First tokens 0.2, 0.3, 0.4 s after the send.
#   a: 3 tokens in 3 events, gaps 10 and 30 ms; b: 5 tokens in 3 events (1, 2, 2), gaps 20 and 40 ms; c: 1
# token. The stream of each ends 5 ms after its last token.
LOG = Log(
    scheduled_s=np.array([0.0, 1.0, 2.0]),
    sent_s=np.array([0.1, 1.1, 2.1]),
    first_s=np.array([0.3, 1.4, 2.5]),
    last_s=np.array([0.34, 1.46, 2.5]),
    done_s=np.array([0.345, 1.465, 2.505]),
    prompt_tokens=np.array([10.0, 20.0, 30.0]),
    output_tokens=np.array([3.0, 5.0, 1.0]),
    gap_s=np.array([0.010, 0.030, 0.020, 0.040]),
    gap_tokens=np.array([1, 1, 2, 2], np.uint16),
    duration_s=2.4,
)
EMPTY = Log(
    scheduled_s=np.zeros(0),
    sent_s=np.zeros(0),
    first_s=np.zeros(0),
    last_s=np.zeros(0),
    done_s=np.zeros(0),
    prompt_tokens=np.zeros(0),
    output_tokens=np.zeros(0),
    gap_s=np.zeros(0),
    gap_tokens=None,
    duration_s=0.0,
)


def test_vllm() -> None:
    found = vllm(LOG)
    expected = {
        "mean_ttft_ms": 300.0,
        "median_ttft_ms": 300.0,
        "std_ttft_ms": 100 * np.sqrt(2 / 3),
        "p99_ttft_ms": 300 + 0.98 * 100,
        "mean_tpot_ms": (20 + 15) / 2,
        "mean_itl_ms": 25.0,
        "median_itl_ms": 25.0,
        "p99_itl_ms": 30 + 0.97 * 10,
        "mean_e2el_ms": (240 + 360 + 400) / 3,
        "request_throughput": 3 / 2.4,
        "output_throughput": 9 / 2.4,
        "total_token_throughput": 69 / 2.4,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_sglang() -> None:
    found = sglang(LOG)
    expected = {
        "mean_ttft_ms": 300.0,
        "mean_tpot_ms": (45 / 2 + 65 / 4) / 2,
        "mean_itl_ms": (10 + 30 + 10 + 10 + 20 + 20) / 6,
        "mean_e2e_latency_ms": (245 + 365 + 405) / 3,
        "concurrency": 1.015 / 2.4,
        "input_throughput": 25.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_aiperf() -> None:
    found = aiperf(LOG)
    assert found["time_to_first_token"]["avg"] == pytest.approx(300)
    assert found["inter_token_latency"]["avg"] == pytest.approx((20 + 15) / 2)
    assert found["request_latency"]["p50"] == pytest.approx(360)
    assert found["output_token_throughput_per_user"]["max"] == pytest.approx(1 / 0.015)
    assert found["output_token_throughput"] == pytest.approx(9 / 2.4)


def test_guidellm() -> None:
    found = guidellm(LOG)
    assert found["inter_token_latency_ms"]["mean"] == pytest.approx((20 * 2 + 15 * 4) / 6)
    assert found["inter_token_latency_ms"]["median"] == pytest.approx(15)
    # TPOT counts from the send and over all tokens: 80, 72 and 400 ms a token
    assert found["time_per_output_token_ms"]["mean"] == pytest.approx((80 * 3 + 72 * 5 + 400) / 9)
    assert found["request_latency"]["median"] == pytest.approx(0.365)


def test_mlperf() -> None:
    found = mlperf(LOG)
    assert found["mean_first_token_latency_ns"] == pytest.approx(4e8)
    assert found["99_percentile_first_token_latency_ns"] == pytest.approx(5e8)
    assert found["50_percentile_latency_ns"] == pytest.approx(4.6e8)
    assert found["mean_time_per_output_token_ns"] == pytest.approx(1.75e7)
    assert found["completed_tokens_per_second"] == pytest.approx(9 / 2.4)


def test_mlperf_takes_the_truncated_index_of_a_hundred() -> None:
    first = np.arange(1, 101) / 100
    zeros, ones = np.zeros(100), np.ones(100)
    log = Log(
        scheduled_s=zeros,
        sent_s=zeros,
        first_s=first,
        last_s=first,
        done_s=first,
        prompt_tokens=ones,
        output_tokens=ones,
        gap_s=np.zeros(0),
        gap_tokens=None,
        duration_s=1.0,
    )
    assert mlperf(log)["99_percentile_first_token_latency_ns"] == pytest.approx(1e9)


def test_nothing_is_null_in_every_dialect() -> None:
    for name, figures in speak(EMPTY).items():
        for key, value in figures.items():
            values = value.values() if isinstance(value, dict) else [value]
            assert all(v is None or (key, v) == ("duration", 0.0) for v in values), (name, key)


def test_the_summary_speaks_every_dialect_over_the_whole_run(tmp_path: Path) -> None:
    records = [make_record(i, scheduled_s=i / 10, lag_ms=1) for i in range(60)]
    manifest = {"config": {"warmup": {"value": 3.0, "origin": "flag"}}}
    summary = summarize(make_run(tmp_path, records, manifest=manifest))
    assert set(summary["dialects"]) == set(DIALECTS)
    assert summary["metrics"]["ttft_s"]["n"] == 30
    assert summary["dialects"]["vllm"]["request_throughput"] == pytest.approx(60 / (5.9 + 0.129))
    assert summary["dialects"]["vllm"]["mean_itl_ms"] == pytest.approx(15)
    json.dumps(summary, allow_nan=False)
