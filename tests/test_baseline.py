"""A baseline in a file: made of repeated runs, compared pair by pair, refused where it cannot decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_bad_input import bench

LOAD = ("--simulate", "--rate", "30", "--duration", "8s", "--quiet")
STEP = "affine(base=8ms,per_seq=0.25ms)"
SLOW = "affine(base=8.8ms,per_seq=0.275ms)"
GATE = "e2e.mean vs baseline <= +5%"


def measure(out: Path, *flags: str) -> Path:
    assert bench("run", *LOAD, *flags, "--out", out) == 0
    return max(out.iterdir())


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measure(tmp_path_factory.mktemp("base"), "--cost", STEP, "--repeat", "6")


@pytest.fixture(scope="module")
def baseline(repeated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "baseline.json"
    assert bench("runs", "export", repeated, "--baseline", "-o", path) == 0
    return path


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def decide(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = bench("check", *arguments, "--json")
    (found,) = json.loads(capsys.readouterr().out)["assertions"]
    return code, found


def test_a_slower_step_fails_and_the_same_one_passes(
    repeated: Path, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = measure(tmp_path / "slow", "--cost", SLOW, "--repeat", "6")
    code, found = decide(capsys, slow, "--baseline", baseline, "--assert", GATE)
    assert (code, found["decision"]) == (1, "fail")
    assert 1.05 < found["interval"][0] <= found["value"] <= found["interval"][1] < 1.3
    code, found = decide(capsys, repeated, "--baseline", baseline, "--assert", GATE)
    assert (code, found["decision"], found["value"]) == (0, "pass", pytest.approx(1.0))


def test_one_run_is_compared_with_the_spread_of_the_baseline(
    baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = measure(tmp_path / "one", "--cost", STEP, "--seed", "50")
    code, found = decide(capsys, run, "--baseline", baseline, "--assert", "e2e.p50 vs baseline <= +60%")
    assert (code, found["decision"]) == (0, "pass")
    code, found = decide(capsys, run, "--baseline", baseline, "--assert", "errors.rate vs baseline <= +5%")
    assert (code, found["decision"]) == (0, "pass")


def test_repeated_runs_are_judged_over_runs(repeated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = decide(capsys, repeated, "--assert", "e2e.mean < 10s")
    assert (code, found["decision"]) == (0, "pass")
    assert found["interval"][0] < found["value"] < found["interval"][1]
    code, found = decide(capsys, repeated, "--assert", f"e2e.mean < {found['value']:.6f}s")
    assert (code, found["decision"]) == (4, "undecided")


def test_a_baseline_of_another_workload_is_refused(
    baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = measure(tmp_path / "other", "--output-tokens", "5")
    capsys.readouterr()
    assert bench("check", run, "--baseline", baseline, "--assert", GATE) == 2
    assert "another workload (output_tokens" in capsys.readouterr().err


def test_a_margin_below_the_noise_is_refused_with_advice(
    repeated: Path, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = tmp_path / "noise.json"
    floors = {"schema_version": 1, "kind": "bench noise", "floors": {"e2e.mean": 0.08}}
    noise.write_text(json.dumps(floors))
    run = measure(tmp_path / "one", "--cost", STEP)
    flags = ("--baseline", baseline, "--noise", noise)
    capsys.readouterr()
    assert bench("check", run, *flags, "--assert", GATE) == 2
    said = capsys.readouterr().err
    assert "differ by up to 8.0 % in e2e.mean" in said
    assert "--repeat 3" in said
    assert bench("check", repeated, *flags, "--assert", GATE) == 0  # 8 % / sqrt(6) is below 5 %
    assert bench("check", run, *flags, "--assert", "e2e.p50 vs baseline <= +30%") in (0, 4)


def test_what_is_no_baseline_is_told(
    repeated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = tmp_path / "strange.json"
    strange.write_text("{}")
    assert bench("check", repeated, "--baseline", strange, "--assert", GATE) == 2
    assert "runs export RUN --baseline" in capsys.readouterr().err
    assert bench("runs", "export", repeated) == 2
    assert bench("check", repeated, "--baseline", repeated, "--noise", strange, "--assert", GATE) == 2
    assert "doctor --aa" in capsys.readouterr().err


def test_the_gate_may_stand_in_bench_toml(
    repeated: Path, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.json").write_bytes(baseline.read_bytes())
    config = tmp_path / "bench.toml"
    config.write_text(
        'rate = 20\n[check]\nassert = ["e2e.mean vs baseline <= +5%"]\nbaseline = "base.json"\n'
    )
    code, found = decide(capsys, repeated)
    assert (code, found["assertion"]) == (0, GATE)
    code, found = decide(capsys, repeated, "--assert", "e2e.mean < 1ms")
    assert (code, found["assertion"]) == (1, "e2e.mean < 1ms")
    assert bench("run", "--simulate", "--duration", "1s", "--quiet", "--out", tmp_path / "runs") == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[check]\nassertions = []", "assertions"),
        ("[check]\nassert = 'ttft.p99 < 1s'", "assert"),
        ("[check]\nassert = [1]", "list of texts"),
        ("check = 1", "check = 1"),
        ("[check", "not TOML"),
    ],
)
def test_what_is_wrong_in_bench_toml_is_named(
    text: str, words: str, repeated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench.toml").write_text(text)
    assert bench("check", repeated) == 2
    said = capsys.readouterr().err
    assert "bench.toml" in said
    assert words in said


def test_the_arms_of_a_comparison_are_not_one_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ("--policy", "static,vllm-v1", "--repeat", "2")
    assert bench("compare", *LOAD, *arms, "--out", tmp_path / "compare") == 0
    (folder,) = (tmp_path / "compare").iterdir()
    assert bench("check", folder, "--assert", "e2e.p50 < 10s") == 2
    assert "holds several arms (policy static against vllm-v1)" in capsys.readouterr().err
    one = sorted(folder.glob("*-static-seed-0"))[0]
    assert bench("check", one, "--assert", "e2e.p50 < 10s") == 0
