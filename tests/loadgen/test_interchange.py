"""Result files of other tools: what their arrays say becomes rows, what they lack is said, and back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import loadgen
from loadgen.errors import UsageError
from loadgen.interchange import Result, export_vllm, import_result, read_results
from loadgen.records import Outcome

VLLM: dict[str, Any] = {
    "date": "20260131-120000",
    "endpoint_type": "openai",
    "backend": "openai",
    "label": None,
    "model_id": "org/model",
    "tokenizer_id": "org/model",
    "num_prompts": 4,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 2,
    "duration": 2.0,
    "completed": 3,
    "failed": 1,
    "request_throughput": 1.5,
    "output_throughput": 4.5,
    "mean_ttft_ms": 20.0,
    "median_ttft_ms": 20.0,
    "p99_ttft_ms": 30.0,
    "mean_itl_ms": 10.0,
}
DETAILS: dict[str, Any] = {
    "input_lens": [8, 9, 10, 11],
    "output_lens": [3, 4, 1, 0],
    "ttfts": [0.01, 0.02, 0.03, 0.0],
    "itls": [[0.1, 0.2], [0.1, 0.3], [], []],
    "start_times": [100.0, 100.5, 100.25, 101.0],
    "generated_texts": ["a", "b", "c", ""],
    "errors": ["", "", "", "Cannot connect to host"],
}


def save(folder: Path, *documents: Any, text: str | None = None) -> Path:
    file = folder / "result.json"
    file.write_text(text if text is not None else "\n".join(json.dumps(document) for document in documents))
    return file


def read_one(folder: Path, document: dict[str, Any]) -> Result:
    (result,) = read_results(save(folder, document))
    return result


def test_details_of_vllm_become_rows_in_the_order_of_the_send(tmp_path: Path) -> None:
    result = read_one(tmp_path, VLLM | DETAILS)
    assert result.tool == "vLLM bench"
    rows = result.records
    assert [row.scheduled_ns for row in rows] == [0, 250_000_000, 500_000_000, 1_000_000_000]
    assert [row.prompt_tokens for row in rows] == [8, 10, 9, 11]
    first = rows[0]
    assert (first.outcome, first.output_tokens, first.chunk_tokens) == (Outcome.OK, 3, [1, 1, 1])
    assert first.chunk_ns == [10_000_000, 110_000_000, 310_000_000]
    assert (first.first_token_ns, first.last_token_ns) == (10_000_000, 310_000_000)


def test_gaps_are_between_events_whatever_the_number_of_tokens(tmp_path: Path) -> None:
    merged = read_one(tmp_path, VLLM | DETAILS).records[2]
    assert (merged.output_tokens, merged.chunk_tokens) == (4, [None, None, None])


def test_a_failed_request_is_a_failed_row(tmp_path: Path) -> None:
    failed = read_one(tmp_path, VLLM | DETAILS).records[3]
    assert (failed.outcome, failed.error) == (Outcome.CONNECT_FAILED, "Cannot connect to host")
    assert (failed.first_token_ns, failed.chunk_ns, failed.output_tokens) == (None, [], None)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ("", Outcome.TRUNCATED),
        ("Server disconnected", Outcome.RESET),
        ("Timeout on reading data", Outcome.TIMEOUT),
        ("Response payload is not completed", Outcome.TRUNCATED),
        ("Too Many Requests", Outcome.HTTP_STATUS),
    ],
)
def test_errors_are_put_into_outcomes_by_their_words(tmp_path: Path, error: str, outcome: Outcome) -> None:
    failed = read_one(tmp_path, VLLM | DETAILS | {"errors": ["", "", "", error]}).records[3]
    assert failed.outcome is outcome


def test_waiting_in_the_client_comes_before_the_send(tmp_path: Path) -> None:
    result = read_one(tmp_path, VLLM | DETAILS | {"queue_times": [0.0, 0.4, 0.0, 0.0]})
    assert [row.scheduled_ns for row in result.records] == [0, 100_000_000, 250_000_000, 1_000_000_000]
    assert [row.sent_ns for row in result.records] == [0, 500_000_000, 250_000_000, 1_000_000_000]
    assert not any("was due" in line for line in result.missing)


def test_latencies_end_a_request_where_they_are_given(tmp_path: Path) -> None:
    result = read_one(tmp_path, VLLM | DETAILS | {"latencies": [0.4, 0.5, 0.1, 0.0]})
    assert result.records[0].done_ns == 400_000_000
    assert result.records[0].last_token_ns == 310_000_000


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("start_times", "rates, load in flight and warm-up are not known"),
        ("itls", "gaps between events"),
        ("ttfts", "time to first token of each request"),
        ("errors", "a request without a first token counts as failed"),
        ("latencies", "taken as time to first token plus the gaps"),
        ("queue_times", "latency is from the send"),
    ],
)
def test_what_an_older_file_lacks_is_said(tmp_path: Path, without: str, said: str) -> None:
    whole = VLLM | DETAILS | {"latencies": [0.4, 0.5, 0.1, 0.0], "queue_times": [0.0] * 4}
    assert not any(said in line for line in read_one(tmp_path, whole).missing)
    del whole[without]
    result = read_one(tmp_path, whole)
    assert any(said in line for line in result.missing)
    assert [row.outcome for row in result.records].count(Outcome.OK) == 3


def test_failed_requests_of_the_rust_client_stand_apart(tmp_path: Path) -> None:
    kept = {name: values[:3] for name, values in DETAILS.items()}
    failed = [{"index": 3, "error": "reset by peer", "prompt_len": 11, "start_time": 101.0, "latency": 0.5}]
    result = read_one(tmp_path, VLLM | kept | {"failed_requests": failed, "steady_state": None})
    assert result.tool == "vLLM bench (Rust)"
    assert [str(row.outcome) for row in result.records] == ["ok", "ok", "ok", "reset"]
    assert result.records[3].prompt_tokens == 11


SGLANG = {
    "tag": None,
    "backend": "sglang",
    "request_rate": math.inf,
    "completed": 3,
    "duration": 2.0,
    "request_throughput": 1.5,
    "total_output_tokens_retokenized": 9,
    "accept_length": math.nan,
    "mean_e2e_latency_ms": 100.0,
}


def test_sglang_s_lines_hold_bare_infinity(tmp_path: Path) -> None:
    file = save(tmp_path, SGLANG | DETAILS, SGLANG)
    assert "Infinity" in file.read_text()
    detailed, totals = read_results(file)
    assert detailed.tool == totals.tool == "SGLang bench_serving"
    assert (len(detailed.records), len(totals.records)) == (4, 0)


def test_a_list_of_results_is_read(tmp_path: Path) -> None:
    assert len(read_results(save(tmp_path, text=json.dumps([VLLM, VLLM | DETAILS])))) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no result"),
        ("[]", "holds no result"),
        ("[1]", "holds no result"),
        ("hello", "neither JSON nor JSON lines"),
        ('{"a": 1}', "result 1 is no result of vLLM bench"),
        (json.dumps(VLLM | DETAILS | {"ttfts": [0.1]}), "arrays of different lengths"),
    ],
)
def test_what_is_no_result_is_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_results(save(tmp_path, text=text))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*gone\.json"):
        read_results(tmp_path / "gone.json")


def test_a_run_folder_is_made_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    result = read_one(tmp_path, VLLM | DETAILS)
    run = loadgen.load(import_result(result, tmp_path / "result.json", tmp_path / "runs", "theirs").path)
    assert run.manifest["imported"]["tool"] == "vLLM bench"
    assert run.requests["outcome"].tolist() == ["ok", "ok", "ok", "connect_failed"]
    summary = run.summary
    assert summary is not None
    assert summary["counts"]["ok"] == 3
    assert summary["load"]["max_in_flight"] == 2
    assert summary["metrics"]["ttft_s"]["mean"] == pytest.approx(0.02)
    (warning,) = [w for w in summary["verdict"]["warnings"] if w["code"] == "imported"]
    assert "latency is from the send" in warning["message"]


def test_totals_alone_make_a_summary_without_rows(tmp_path: Path) -> None:
    result = read_one(tmp_path, VLLM)
    run = loadgen.load(import_result(result, tmp_path / "result.json", tmp_path / "runs", "theirs").path)
    summary = run.summary
    assert summary is not None
    assert summary["verdict"]["status"] == "invalid"
    assert [reason["code"] for reason in summary["verdict"]["reasons"]] == ["imported_totals"]
    ttft = summary["metrics"]["ttft_from_send_s"]
    assert (ttft["mean"], ttft["p50"], ttft["p99"], ttft["p90"]) == (0.02, 0.02, 0.03, None)
    assert summary["counts"] == {"scheduled": 4, "ok": 3, "failed": 1}
    json.dumps(summary, allow_nan=False)


def test_a_run_goes_out_and_comes_back(tmp_path: Path) -> None:
    """What vLLM's keys can carry survives: instants, lengths, gaps, failures."""
    whole = VLLM | DETAILS | {"queue_times": [0.0, 0.4, 0.0, 0.0]}
    run = import_result(read_one(tmp_path, whole), tmp_path / "result.json", tmp_path / "runs", "a")
    exported = export_vllm(loadgen.load(run.path))
    json.dumps(exported, allow_nan=False)
    assert exported["mean_ttft_ms"] == pytest.approx(20.0)
    assert (exported["completed"], exported["failed"], exported["max_concurrency"]) == (3, 1, 2)
    assert exported["max_concurrent_requests"] == 2
    assert (exported["date"], exported["model_id"]) == ("20260131-120000", "org/model")
    assert exported["bench"] == {"run": run.path.name, "verdict": "valid"}
    again = read_one(tmp_path, exported)
    first = read_one(tmp_path, whole)
    for ours, theirs in zip(first.records, again.records, strict=True):
        for name in ("scheduled_ns", "sent_ns", "chunk_ns", "output_tokens", "prompt_tokens", "chunk_tokens"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert (ours.outcome is Outcome.OK) is (theirs.outcome is Outcome.OK)


def test_a_simulated_run_stays_one(tmp_path: Path) -> None:
    run = import_result(read_one(tmp_path, VLLM | DETAILS), tmp_path / "result.json", tmp_path / "runs", "a")
    cost = {"name": "8b-h200", "origin": "computed", "cost": {}}
    manifest = {**run.manifest, "target": {"kind": "simulated engine", "model": "llama", "cost": cost}}
    exported = export_vllm(loadgen.store.Run(run.path, manifest))
    assert exported["model_id"] == "simulated 8b-h200"
    again = import_result(read_one(tmp_path, exported), tmp_path / "result.json", tmp_path / "runs", "b")
    assert again.manifest["target"]["kind"] == "simulated engine"
    assert exported["bench"]["simulated"] == again.manifest["target"]["cost"]
