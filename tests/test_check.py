"""`bench check`: the exit code is the answer, and what it writes is read back by others' parsers."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadgen.cli.report import newest
from loadgen.store import Run
from tests.reports.synthetic import Story, make_run
from tests.test_bad_input import bench

PASSES, FAILS = "ttft.p50 < 10s", "e2e.p50 < 1us"


@pytest.fixture(scope="module")
def valid_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = make_run(tmp_path_factory.mktemp("valid"), Story(num_requests=2000))
    assert run.summary is not None
    assert run.summary["verdict"]["status"] == "valid"
    return run


@pytest.mark.parametrize(
    ("assertions", "code"),
    [([PASSES], 0), ([PASSES, FAILS], 1), (["errors.rate < 0.1%", "goodput > 1"], 3)],
    ids=["pass", "fail", "no objective, no goodput"],
)
def test_the_exit_code_is_the_answer(valid_run: Run, assertions: list[str], code: int) -> None:
    flags = [part for text in assertions for part in ("--assert", text)]
    assert bench("check", valid_run.path, *flags) == code


def test_an_interrupted_run_passes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, Story(num_requests=200, status="interrupted", cancel_after=150))
    assert bench("check", run.path, "--assert", PASSES) == 3
    assert "INVALID" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--assert"),
        (["--assert", "tttf.p99 < 1s"], "ttft"),
        (["--assert", "ttft < 1s"], "ttft.p99"),
        (["--assert", "ttft.p99 vs baseline <= +5%"], "--baseline"),
    ],
)
def test_what_cannot_be_decided_is_a_usage_error(
    valid_run: Run, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("check", valid_run.path, *flags) == 2
    assert words in capsys.readouterr().err


def test_a_run_is_no_worse_than_itself(valid_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        bench(
            "check", valid_run.path, "--baseline", valid_run.path, "--assert", "ttft.p50 vs baseline <= +50%"
        )
        == 0
    )
    assert capsys.readouterr().out.startswith("PASS")


def test_what_is_written_is_read_back(
    valid_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit, markdown, shapes = tmp_path / "j.xml", tmp_path / "m.md", tmp_path / "ab"
    files: list[str | Path] = ["--junit", junit, "--markdown", markdown, "--action-benchmark", shapes]
    bench("check", valid_run.path, "--assert", PASSES, "--assert", FAILS, *files, "--json")
    decisions = [entry["decision"] for entry in json.loads(capsys.readouterr().out)["assertions"]]
    assert decisions == ["pass", "fail"]
    suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [PASSES, FAILS]
    assert [[child.tag for child in case] for case in cases] == [[], ["failure"]]
    assert FAILS in (cases[1][0].text or "")
    assert "| **fail** |" in markdown.read_text()
    smaller = json.loads((shapes / "smaller.json").read_text())
    assert {"name", "unit", "value", "range", "extra"} <= set(smaller[0])
    assert json.loads((shapes / "bigger.json").read_text()) == []


def test_the_newest_folder_is_taken_of_any_kind_that_fits(tmp_path: Path) -> None:
    for name, document in (
        ("2-run", "manifest.json"),
        ("3-sweep", "sweep.json"),
        ("1-repeat", "repeat.json"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / document).touch()
    assert newest(tmp_path, "manifest.json", "repeat.json").name == "2-run"
    assert newest(tmp_path, "manifest.json", "sweep.json").name == "3-sweep"
    assert newest(tmp_path, "repeat.json").name == "1-repeat"
