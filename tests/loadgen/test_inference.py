"""What is inferred from outside, held against the account of a simulated engine that was hidden from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.measure.inference import coincides, fit_solo_curve
from loadgen.measure.summary import summarize
from loadgen.store import load
from reports.causes import inferred_sentences
from tests.loadgen.test_attribution import simulated

PREFILL_COST = "affine(base=8ms,per_seq=0.05ms,per_token=100us)"


def hidden(folder: str) -> dict[str, Any]:
    """The summary of a run whose engine kept no account."""
    for name in ("engine_steps.parquet", "engine_requests.parquet"):
        (Path(folder) / name).unlink()
    return summarize(load(folder))


@pytest.mark.parametrize("rate", ["1.2", "20"], ids=["alone at times", "never alone"])
def test_waiting_before_the_first_token_is_found(
    rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--rate", rate, "--duration", "120s", "--cost", PREFILL_COST, "--chunk-tokens", "2048")
    told = simulated(tmp_path, capsys, *flags)
    rows = load(told["folder"]).engine_request_rows()
    assert rows is not None
    names = [name for name in rows.column_names if name.startswith("first_") and name.endswith("_ns")]
    to_first = {
        n: rows.column(n).to_numpy() for n in names if n not in ("first_scheduled_ns", "first_token_ns")
    }
    own_s = float(to_first["first_own_ns"].mean()) / 1e9
    waited_s = sum(float(values.mean()) for values in to_first.values()) / 1e9 - own_s
    summary = hidden(told["folder"])
    assert summary["attribution"] == {}
    found = summary["inferred"]
    assert found["solo"]["method"].startswith("requests alone" if rate == "1.2" else "the fastest")
    assert found["mean_s"]["solo_prefill"] == pytest.approx(own_s, rel=0.15)
    assert found["mean_s"]["wait_before_first"] == pytest.approx(waited_s, rel=0.3, abs=0.003)
    assert sum(found["mean_s"].values()) == pytest.approx(summary["metrics"]["ttft_s"]["mean"])


def test_gaps_that_prompts_make_coincide_with_first_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--rate", "4", "--duration", "60s", "--cost", PREFILL_COST, "--policy", "vllm-v0")
    gaps = hidden(simulated(tmp_path, capsys, *flags)["folder"])["inferred"]["gaps"]
    assert gaps["num_long"] > 50
    assert gaps["first_token_fraction"] > 0.9 > 5 * gaps["first_token_by_chance"] - 0.5
    assert gaps["coincide_fraction"] > 0.7


def test_gaps_that_evictions_make_stand_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost = "affine(base=8ms,per_seq=0.05ms,per_token=1us)"
    flags = ("--rate", "26", "--duration", "30s", "--cost", cost, "--kv-tokens", "2400")
    gaps = hidden(simulated(tmp_path, capsys, *flags)["folder"])["inferred"]["gaps"]
    assert gaps["num_long"] > 20
    assert gaps["coincide_fraction"] < 0.5


def test_a_curve_is_fitted_from_below() -> None:
    rng = np.random.default_rng(1)
    prompts = rng.integers(10, 2000, 4000).astype(float)
    ttft = 0.01 + 1e-4 * prompts + rng.exponential(0.2, 4000)
    curve = fit_solo_curve(prompts, ttft, np.zeros(4000, np.bool_))
    at = np.array([100.0, 1000.0, 1900.0])
    np.testing.assert_allclose(curve.at(at), 0.01 + 1e-4 * at, atol=0.03)


def test_gaps_of_one_stream_do_not_coincide() -> None:
    starts, ends = np.array([0.0, 0.1, 5.0]), np.array([1.0, 1.1, 6.0])
    assert coincides(np.array([1, 2, 3]), starts, ends).tolist() == [True, True, False]
    assert not coincides(np.array([1, 1, 3]), starts, ends).any()


def test_too_few_requests_infer_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = hidden(simulated(tmp_path, capsys, "--duration", "1s")["folder"])
    assert summary["inferred"] == {}
    assert inferred_sentences(summary) == []


def test_what_is_inferred_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--cost", PREFILL_COST, "--policy", "vllm-v0", "--rate", "4", "--duration", "60s")
    said = dict(inferred_sentences(hidden(simulated(tmp_path, capsys, *flags)["folder"])))
    assert "waiting before the first token" in said["TTFT"]
    assert "a first token came out" in said["gaps"]
