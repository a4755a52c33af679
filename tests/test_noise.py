"""`bench doctor --aa`: equal runs, what they differ by, and the gate that reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_bad_input import bench


def test_a_simulated_engine_has_no_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = f"--simulate --rate 20 --duration 5s --quiet --out {tmp_path}"
    assert bench("doctor", "--aa", "--run", flags, "--pairs", "4", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["num_pairs"] == 4
    assert printed["floors"]["e2e.mean"] == pytest.approx(0, abs=1e-9)
    kept = json.loads((tmp_path / "noise.json").read_text())
    assert kept["floors"] == printed["floors"]
    assert kept["machine"]
    assert len(list(Path(printed["folder"]).glob("*/requests.parquet"))) == 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--aa", "--pairs", "3"], "--pairs 3"),
        (["--aa", "--run", "--rats 3"], "--rats"),
        (["--aa", "--run", "'"], "--run"),
        (["--run", "--rate 3"], "--aa"),
    ],
)
def test_wrong_flags_are_told(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("doctor", *arguments) == 2
    assert words in capsys.readouterr().err
