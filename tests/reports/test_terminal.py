from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.store import load
from reports.terminal import print_summary
from tests.reports.synthetic import RUN_NAME, Story, make_run

Golden = Callable[[str, str], None]

TRACE = {
    "format": "azure-llm-2023",
    "unit": "s",
    "rows": {"read": 19_366, "kept": 19_360, "dropped": {"no output tokens": 6}},
    "span_s": 60.0,
    "rate_per_s": 5.31,
    "gap_cv": 1.28,
}
STORIES = {
    "valid": Story(),
    "trace": Story(num_requests=300, trace=TRACE),
    "failures": Story(
        num_requests=200, failure_share=0.3, error="[red]<b>overloaded</b>[/red] \x1b[31mretry"
    ),
    "only-failures": Story(num_requests=40, failure_share=1.0, has_engine=False),
    "three": Story(num_requests=3),
    "interrupted": Story(num_requests=200, status="interrupted", cancel_after=120),
}


def summary_text(folder: Path, *, width: int = 80, wide: bool = False, is_terminal: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=is_terminal, _environ={"TERM": "xterm-256color"}
    )
    print_summary(load(folder), console, wide=wide)
    assert isinstance(console.file, io.StringIO)
    # The place of the folder is the test's own; everything else is fixed.
    text = console.file.getvalue().replace(str(folder.parent), "runs")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("runs")
    return {name: make_run(out / name, story).path for name, story in STORIES.items()}


@pytest.mark.parametrize("name", STORIES)
def test_the_summary_reads_as_it_should(folders: dict[str, Path], name: str, check_golden: Golden) -> None:
    text = summary_text(folders[name])
    check_golden(f"summary-{name}.txt", text)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text


def test_the_wide_summary_holds_more(folders: dict[str, Path], check_golden: Golden) -> None:
    text = summary_text(folders["valid"], width=120, wide=True)
    check_golden("summary-valid-wide.txt", text)
    assert "p99.9" in text


def test_colour_only_on_a_terminal_and_not_with_no_color(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    coloured = summary_text(folders["interrupted"], is_terminal=True)
    assert "\x1b[1;37;41m INVALID" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    print_summary(load(folders["interrupted"]), console)
    assert isinstance(console.file, io.StringIO)
    assert "INVALID" in console.file.getvalue()
    assert not any(f"\x1b[{code}" in console.file.getvalue() for code in ("31", "1;37;41", "41"))


def test_markup_from_a_server_is_printed_as_it_is(folders: dict[str, Path]) -> None:
    text = summary_text(folders["failures"])
    assert "[red]<b>overloaded</b>[/red] \ufffd[31mretry" in text


def test_a_run_that_broke_off_is_still_summed_up(folders: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / RUN_NAME
    shutil.copytree(folders["valid"], broken)
    (broken / "summary.json").unlink()
    assert summary_text(broken) == summary_text(folders["valid"])
