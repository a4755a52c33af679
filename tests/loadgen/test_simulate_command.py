"""`bench simulate`: a run folder like any other, the same from the same seed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.knobs import parse_knobs, server_flags
from loadgen.errors import EXIT_USAGE, UsageError
from loadgen.store import load
from reports.html import render_run
from tests.loadgen.test_attribution import FLAGS, bench, simulated


def test_the_folder_is_that_of_a_measured_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = simulated(tmp_path, capsys)
    run = load(summary["folder"])
    assert summary["verdict"]["status"] == "valid"
    assert summary["stamps"]["source"] == "simulated"
    assert run.manifest["status"] == "complete"
    assert run.manifest["target"]["kind"] == "simulated engine"
    assert run.manifest["target"]["cost"]["work"]["base"] == 8_000_000_000
    rows, steps = run.requests, run.steps
    assert steps is not None
    assert (rows["outcome"] == "ok").all()
    assert (rows["chunk_ns"].map(len) == rows["output_tokens_planned"]).all()
    assert (steps["end_ns"] > steps["start_ns"]).all()
    assert int(steps["decode_seqs"].sum()) + len(rows) == int(rows["output_tokens_planned"].sum())
    assert rows["last_token_ns"].max() == steps["end_ns"].max()
    assert "What sets the slowest" in render_run(run)


def test_the_same_seed_gives_the_same_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (
        load(simulated(tmp_path, capsys, "--seed", seed)["folder"]).requests for seed in ("1", "1", "2")
    )
    columns = ["scheduled_ns", "first_token_ns", "last_token_ns"]
    assert first[columns].equals(again[columns])
    assert not first[columns].equals(other[columns])


def test_run_with_simulate_is_the_same_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("run", "--simulate", *FLAGS, "--out", str(tmp_path), "--json") == 0
    capsys.readouterr()
    (folder,) = tmp_path.iterdir()
    summary = simulated(tmp_path, capsys)
    assert load(folder).requests["last_token_ns"].equals(load(summary["folder"]).requests["last_token_ns"])


@pytest.mark.parametrize(
    "load_flags",
    [
        ("--concurrency", "8", "--requests", "8"),
        ("--rate", "100", "--arrival", "at-once", "--requests", "50"),
    ],
)
def test_rates_of_requests_that_start_together_end_with_the_last_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], load_flags: tuple[str, ...]
) -> None:
    assert bench("run", "--simulate", *load_flags, "--out", str(tmp_path), "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    rows = load(summary["folder"]).requests
    length_s = float(rows["last_token_ns"].max()) / 1e9
    assert summary["rates"]["offered_per_s"] == pytest.approx(len(rows) / length_s, rel=1e-3)
    assert summary["rates"]["ok_per_s"] == pytest.approx(len(rows) / length_s, rel=1e-3)
    assert summary["window"]["is_steady"] is None
    assert summary["engine"]["busy_fraction"] <= 1
    assert summary["little"]["ratio"] == pytest.approx(1, rel=1e-3)


def test_a_single_request_has_no_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--rate", "100", "--requests", "1", "--slo", "ttft=1s")
    assert bench("run", "--simulate", *flags, "--out", str(tmp_path), "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert set(summary["rates"].values()) == {None}
    assert summary["slo"]["goodput_per_s"] is None
    assert "not known" in render_run(load(summary["folder"]))


def test_timeouts_and_refusals_are_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = simulated(
        tmp_path, capsys, "--max-batch", "2", "--first-token-timeout", "2s", "--knob", "max_waiting=20"
    )
    by_outcome = summary["counts"]["by_outcome"]
    assert by_outcome["timeout"] > 0
    assert by_outcome["http_status"] > 0
    rows = load(summary["folder"]).requests
    late = rows[rows["outcome"] == "timeout"]
    assert set(late["error"]) == {"no token within 2 s"}
    assert late["first_token_ns"].isna().all()
    waited = late["done_ns"] - late["sent_ns"]
    assert (waited >= 2_000_000_000).all()
    assert set(rows[rows["outcome"] == "http_status"]["http_status"]) == {429}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--policy", "nope"], "unknown policy 'nope'"),
        (["--cost", "nope"], "no shipped profile (8b-a100, 8b-h200, cpu-tiny)"),
        (["--cost", "affine(base=8)"], "needs a unit"),
        (["--cost", "affine(base=0,per_token=1ms)"], "some steps would take no time; give base or per_seq"),
        (["--cost", "affine(speed=8ms)"], "cannot read 'speed=8ms'"),
        (["--knob", "padded"], "write NAME=VALUE"),
        (["--knob", "padded=1"], "write true or false"),
        (["--knob", "watermark=x"], "'x' is not float"),
        (["--knob", "padded=true"], "policy vllm-v1 has no knob 'padded'"),
        (["--target", "http://localhost:1"], "--simulate does not go with --target: there is no server"),
        (["--device", "cuda"], "--simulate does not go with --device: no model is computed"),
        (["--dtype", "bfloat16"], "--simulate does not go with --dtype"),
        (["--workers", "2"], "--simulate does not go with --workers"),
        (["--transport", "httpx"], "--simulate does not go with --transport"),
        (["--header", "a: b"], "--simulate does not go with --header"),
        (["--insecure"], "--simulate does not go with --insecure"),
        (["--metrics-url", "http://a/m"], "--simulate does not go with --metrics-url"),
        (["--fresh-connections"], "--simulate does not go with --fresh-connections"),
        (["--knob", "max_model_len=64"], "longer than the context"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    out = tmp_path / "runs"
    assert bench("simulate", "--rate", "5", "--duration", "5s", "--out", str(out), *flags) == EXIT_USAGE
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_a_cost_is_of_a_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("run", "--rate", "5", "--cost", "8b-h200", "--out", str(tmp_path / "runs")) == EXIT_USAGE
    assert "--cost belongs to --simulate" in capsys.readouterr().err


def test_knobs_are_the_same_live() -> None:
    knobs: dict[str, Any] = parse_knobs(["whole-prompt=false", "watermark=0.1", "swap=true", "order=edf"])
    assert knobs == {"whole_prompt": False, "watermark": 0.1, "swap": True, "order": "edf"}
    assert server_flags(knobs) == ["--no-whole-prompt", "--watermark", "0.1", "--swap", "--order", "edf"]
    with pytest.raises(UsageError, match="write NAME=VALUE with one of"):
        parse_knobs(["speed=1"])
