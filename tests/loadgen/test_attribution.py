"""What the tail is made of: excesses that add up, from a run folder's own files, and the words for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.cli import main
from loadgen.measure.attribution import Parts
from loadgen.store import load
from reports.causes import cause_table, tail_sentences

FLAGS = [
    "--rate", "20", "--duration", "20s", "--input-tokens", "lognormal(median=100,p99=400)",
    "--output-tokens", "lognormal(median=50,p99=200)",
    "--cost", "affine(base=8ms,per_seq=0.25ms,per_token=50us)",
]  # fmt: skip


def bench(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def simulated(out: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert bench("simulate", *FLAGS, "--out", str(out), "--json", *flags) == 0
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    return summary


def parts(latency: list[float], **causes: list[float]) -> Parts:
    return Parts(
        latency_s=np.array(latency),
        causes={name: np.array(values) for name, values in causes.items()},
        weights=np.ones(len(latency)),
    )


def test_excesses_sum_to_the_excess_of_the_latency() -> None:
    rng = np.random.default_rng(0)
    own, wait = rng.exponential(1, 1000), rng.exponential(3, 1000)
    tail = parts((own + wait).tolist(), own=own.tolist(), wait=wait.tolist()).tail()
    assert tail is not None
    assert tail["num_tail"] == 10
    assert sum(cause["excess_s"] for cause in tail["causes"]) == pytest.approx(tail["excess_s"])
    assert sum(cause["share"] for cause in tail["causes"]) == pytest.approx(1)
    assert [cause["cause"] for cause in tail["causes"]] == ["wait", "own"]
    assert tail["tail_s"] - tail["rest_s"] == pytest.approx(tail["excess_s"])


def test_a_cause_that_is_the_same_everywhere_explains_nothing() -> None:
    tail = parts([1.0] * 99 + [5.0], own=[1.0] * 100, slot=[0.0] * 99 + [4.0]).tail()
    assert tail is not None
    assert {cause["cause"]: cause["share"] for cause in tail["causes"]} == {"slot": 1.0, "own": 0.0}


def test_equal_latencies_have_no_shares() -> None:
    tail = parts([0.1 + 0.2, *[0.3] * 99], batch=[0.3] * 100, host=[0.0] * 99 + [1e-17]).tail()
    assert tail is not None
    assert 0 < tail["excess_s"] < 1e-15  # the rounding of a mean
    assert {cause["share"] for cause in tail["causes"]} == {None}


def test_a_tail_that_is_hardly_slower_has_no_shares() -> None:
    tail = parts([1.01] + [1.0] * 99, batch=[9.01] + [1.0] * 99, own=[-8.0] + [0.0] * 99).tail()
    assert tail is not None
    assert {cause["share"] for cause in tail["causes"]} == {None}
    ((_, said),) = tail_sentences({"attribution": {"tails": {"itl_s": tail}}})
    assert said == "no tail to speak of (the slowest of 100: 1.01 s, mean of the rest 1.00 s)"


def test_what_the_tail_has_less_of_is_said() -> None:
    slow = 10
    tail = parts(
        [3.0] * slow + [1.0] * 990, wait=[2.5] * slow + [0.0] * 990, own=[0.5] * slow + [1.0] * 990
    ).tail()
    assert tail is not None
    ((_, said),) = tail_sentences({"attribution": {"tails": {"e2e_s": tail}}})
    assert said == "125 % wait, less 25 % own work (mean 3.00 s, of the rest 1.00 s)"


def test_one_value_has_no_tail() -> None:
    assert parts([1.0], own=[1.0]).tail() is None


def test_the_causes_of_a_simulated_run_sum_to_its_latencies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = simulated(tmp_path, capsys, "--kv-tokens", "3000")
    found = summary["attribution"]
    run = load(summary["folder"])
    assert found["num_requests"] == summary["counts"]["ok_in_window"]
    assert found["residual_fraction"] == 0
    assert found["mean_s"]["client"] == 0
    assert sum(found["mean_s"].values()) == pytest.approx(summary["metrics"]["e2e_s"]["mean"])
    for name in ("ttft_s", "e2e_s"):
        tail = found["tails"][name]
        assert sum(cause["excess_s"] for cause in tail["causes"]) == pytest.approx(tail["excess_s"])
    gaps = found["tails"]["itl_s"]
    assert sum(cause["excess_s"] for cause in gaps["causes"]) == pytest.approx(gaps["excess_s"])
    assert {"preempted", "recompute"} <= {cause["cause"] for cause in gaps["causes"]}
    rows = run.engine_request_rows()
    assert rows is not None
    times = {name: rows.column(name).to_numpy() for name in rows.column_names if name.endswith("_ns")}
    instants = ("arrived_ns", "enqueued_ns", "first_scheduled_ns", "first_token_ns", "finished_ns")
    buckets = [n for n in times if n not in instants and not n.startswith("first_")]
    total = sum(times[name] for name in buckets)
    np.testing.assert_array_equal(total, times["finished_ns"] - times["arrived_ns"])
    to_first = sum(times[f"first_{name}"] for name in buckets)
    np.testing.assert_array_equal(to_first, times["first_token_ns"] - times["arrived_ns"])


def test_a_cap_on_requests_in_flight_is_charged_to_the_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = simulated(tmp_path, capsys, "--max-in-flight", "4")
    (cause, *_) = summary["attribution"]["tails"]["ttft_s"]["causes"]
    assert cause["cause"] == "client"
    assert cause["share"] > 0.9
    label, sentence = tail_sentences(summary)[0]
    assert label == "TTFT"
    assert sentence.startswith(f"{cause['share'] * 100:.0f} % client and network")


def test_a_run_without_an_account_says_nothing() -> None:
    assert tail_sentences({"attribution": {}}) == []
    assert cause_table({}) == []


def test_the_terminal_names_the_causes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("simulate", *FLAGS, "--out", str(tmp_path), "--kv-tokens", "2000") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "what sets the slowest 1 % apart" in text
    assert "waiting for KV memory" in text
