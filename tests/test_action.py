"""The GitHub Action: its shell steps run here as they are written, on a run in virtual time."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def read_steps() -> dict[str, str]:
    """The scripts of action.yml by step name: block scalars of its own two indentations, no YAML parser."""
    text = (ROOT / "action.yml").read_text()
    found = re.findall(r"- name: (\w+)\n.*?      run: \|\n((?:        [^\n]*\n|\n)+)", text, re.DOTALL)
    return {name: re.sub(r"^ {8}", "", script, flags=re.MULTILINE) for name, script in found}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty checkout with `bench` on the path."""
    script = tmp_path / "bin" / "bench"
    script.parent.mkdir()
    code = "import sys; from loadgen.cli import main; main()"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -c "{code}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    return tmp_path


def run_step(folder: Path, name: str, **environment: str) -> int:
    values = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        **environment,
    }
    script = read_steps()[name]
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env={**os.environ, **values}, check=False).returncode


def outputs(folder: Path) -> dict[str, Any]:
    return dict(line.split("=", 1) for line in (folder / "output").read_text().splitlines())


def test_measures_checks_and_leaves_what_the_summary_needs(folder: Path) -> None:
    flags = "--simulate --rate 20 --duration 10s --repeat 2 --cost 'affine(base=8ms,per_seq=0.25ms)'"
    assert run_step(folder, "Measure", RUN_FLAGS=flags) == 0
    measured = outputs(folder)["folder"]
    check = {"FOLDER": measured, "BASELINE": "", "FAIL_ON_UNDECIDED": "true"}
    assert run_step(folder, "Check", ASSERTIONS="e2e.mean < 60s\n  \nttft.p50 < 10s\n", **check) == 0
    assert "| pass |" in (folder / "summary.md").read_text()
    assert json.loads((folder / "bench-values" / "smaller.json").read_text())
    assert (folder / "bench-junit.xml").exists()
    assert run_step(folder, "Check", ASSERTIONS="e2e.mean < 1us", **check) == 1
    assert outputs(folder)["code"] == "1"


def test_wrong_flags_end_the_job(folder: Path) -> None:
    assert run_step(folder, "Measure", RUN_FLAGS="--rate nonsense") == 2


def test_inputs_that_the_steps_read_exist() -> None:
    text = (ROOT / "action.yml").read_text()
    declared = set(re.findall(r"^  ([a-z-]+):$", text.split("outputs:")[0], re.MULTILINE))
    used = set(re.findall(r"inputs\.([a-z-]+)", text))
    assert used == declared
    workflow = (ROOT / "examples" / "github-workflow.yml").read_text()
    given = set(re.findall(r"^          ([a-z-]+):", workflow, re.MULTILINE))
    assert given - declared == {"name", "path"}
