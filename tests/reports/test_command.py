from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.store import Run
from reports.export import FILE_NAMES
from reports.figures import FIGURES
from tests.reports.synthetic import Story, make_run

OTHER_RUNS = ("server", "first_steps", "worst_stall")  # of a server's metrics, of an engine's account


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs"), Story(num_requests=40))


def bench_report(*arguments: object) -> list[Path]:
    """Run the command; return the files that it says it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", "from loadgen.cli import main; main()", "report", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    return [Path(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("file_format", "name"), FILE_NAMES.items())
def test_a_document_lands_in_the_run_folder(run: Run, file_format: str, name: str) -> None:
    assert bench_report(run.path, "--format", file_format) == [run.path / name]
    content = (run.path / name).read_text(encoding="utf-8")
    starts = {"html": "<!doctype html>", "md": "## ", "csv": "index,", "perfetto": '{"traceEvents"'}
    assert content.startswith(starts[file_format])


def test_figures_land_in_a_folder_one_by_one(run: Run, tmp_path: Path) -> None:
    written = bench_report(run.path, "--format", "png", "-o", tmp_path / "figures")
    assert written == [tmp_path / "figures" / f"{name}.png" for name in FIGURES if name not in OTHER_RUNS]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_a_folder_of_runs_gives_a_list(run: Run) -> None:
    (index,) = bench_report(run.path.parent)
    assert index == run.path.parent / "index.html"
    assert run.path.name in index.read_text(encoding="utf-8")


def test_the_trace_is_json(run: Run, tmp_path: Path) -> None:
    (path,) = bench_report(run.path, "--format", "perfetto", "-o", tmp_path / "deep" / "trace.json")
    assert json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
