"""`bench workload`: what it prints, that its JSON is strict and complete, and what it writes is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli import main
from workloads.files import load_workload, preset_names

EXAMPLE = Path(__file__).parents[2] / "examples" / "trace_synthetic.csv"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["workload", *map(str, arguments)])
    captured = capsys.readouterr()
    assert ended.value.code == code, captured.err
    return captured.out, captured.err


def strict(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return document


def test_inspect_prints_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "inspect", EXAMPLE, "--trace-window", "0:60s")
    for text in ("azure format", "321 read", "dropped: outside_window", "CV of the gaps", "p99", "by fifth"):
        assert text in out


def test_inspect_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    document = strict(run(capsys, "inspect", EXAMPLE, "--json")[0])
    assert document["rows"] == {"read": 321, "kept": 321, "dropped": {}}
    assert document["prefix"]["ideal_hit_rate"] is None
    assert {"format", "unit", "span_s", "rate_per_s", "gap_cv"} <= document.keys()
    assert list(document["output_tokens"]) == ["mean", "p50", "p90", "p99", "max"]


def test_flags_are_read_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_TRACE_WINDOW", "0:30s")
    document = strict(run(capsys, "inspect", EXAMPLE, "--json")[0])
    assert document["rows"]["dropped"]["outside_window"] > 100


def test_inspect_tells_ticks_and_sharing(capsys: pytest.CaptureFixture[str], traces_file: Path) -> None:
    out, _ = run(capsys, "inspect", traces_file)
    assert "grid of 3 s; --dequantize" in out
    assert "an ideal cache would hold 50.0% of prompt tokens" in out


@pytest.fixture
def traces_file(tmp_path: Path) -> Path:
    """Two hundred prompts of two blocks, the first of them common, ten at a time every 3 s."""
    rows = [
        {"timestamp": i // 10 * 3000, "input_length": 1024, "output_length": 9, "hash_ids": [0, i + 1]}
        for i in range(2000)
    ]
    path = tmp_path / "recorded"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_preview_draws_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "preview", "agent", "--rate", "10", "--duration", "60s", "--seed", "2")
    for text in ("requests", "seed 2", "sessions", "(closed)", "an ideal cache"):
        assert text in out
    out, _ = run(
        capsys, "preview", "--rate", "10", "--set", "context_tokens=64", "--set", "over-context=drop"
    )
    assert " dropped" in out


def test_preview_json_names_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    document = strict(run(capsys, "preview", "chat", "--requests", "50", "--json")[0])
    assert document["requests"] == 50
    plan = load_workload("chat")
    assert document["workload"]["arrival"] == plan.arrival
    assert len(document["plan_digest"]) == 16
    assert strict(run(capsys, "preview", "batch", "--json")[0])["realised"]["rate_per_s"] is None


def test_fit_writes_a_workload_that_can_be_previewed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, err = run(capsys, "fit", EXAMPLE)
    assert out.startswith("# fitted to 321 rows of azure format")
    assert "KS distance of the gaps" in err
    run(capsys, "fit", EXAMPLE, "--out", tmp_path / "fit.toml")
    assert (tmp_path / "fit.toml").read_text() == out
    assert "requests" in run(capsys, "preview", tmp_path / "fit.toml")[0]
    document = strict(run(capsys, "fit", EXAMPLE, "--json")[0])
    assert document["goodness"]["input_tokens"]["ks"] <= 0.02


def test_fit_spreads_ticks_on_request(capsys: pytest.CaptureFixture[str], traces_file: Path) -> None:
    raw = strict(run(capsys, "fit", traces_file, "--json")[0])
    assert any("--dequantize" in note for note in raw["notes"])
    spread = strict(run(capsys, "fit", traces_file, "--dequantize", "--json")[0])
    assert spread["goodness"]["arrival"]["gap_cv"][0] == pytest.approx(1, abs=0.1)


def test_export_is_read_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for form in ("mooncake", "azure"):
        path = tmp_path / form
        _, err = run(capsys, "export", "rag", "--requests", "120", "--format", form, "--out", path)
        assert f"120 requests written to {path} as {form}" in err
        document = strict(run(capsys, "inspect", path, "--json")[0])
        assert (document["format"], document["rows"]["kept"]) == (form, 120)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["inspect", "missing.csv"], "missing.csv does not exist"),
        (["inspect", str(EXAMPLE), "--trace-window", "soon"], "such as 0:60s"),
        (["inspect", str(EXAMPLE), "--bad-rows", "skip"], "known: drop, error"),
        (["preview"], "--rate 20"),
        (["preview", "chta"], "known: agent"),
        (["preview", "chat", "--set", "speed=3"], "unknown key 'speed'"),
        (["preview", "chat", "--set", "speed"], "KEY=VALUE"),
        (["preview", "chat", "--set", "context_tokens=many"], "whole number"),
        (["export", "chat", "--out", str(EXAMPLE / "file")], "cannot write"),
        (["export", "chat", "--format", "csv", "--out", "file"], "known: azure, mooncake, vllm"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, *arguments, code=2)
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_the_help_names_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run(capsys, "preview", "--help")[0].split())
    for name in preset_names():
        assert name in text


def test_a_rate_of_sessions_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    said, _ = run(capsys, "preview", "agent", "--rate", "3")
    assert "0.25 sessions/s of 12 turns" in said
    assert "8,192 tokens" in said
    said, _ = run(capsys, "preview", "chat", "--rate", "3")
    assert "sessions/s" not in said
