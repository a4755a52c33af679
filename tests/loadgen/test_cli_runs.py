"""`bench runs`: lists, shows, imports, exports; what goes wrong is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.cli import main
from tests.loadgen.test_interchange import DETAILS, VLLM, save


def runs(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["runs", *map(str, arguments)])
    said = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.out, said.err


def imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    code, out, err = runs(capsys, "import", save(tmp_path, VLLM | DETAILS), "--out", tmp_path / "runs")
    assert code == 0
    assert "not in the file: stamps of the kernel" in err
    return Path(out.strip())


def test_import_list_show_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = imported(tmp_path, capsys)
    assert folder.parent == tmp_path / "runs"
    code, out, _ = runs(capsys, "list", "--out", tmp_path / "runs")
    assert code == 0
    said = "complete  valid (failures; warns: closed_loop, imported)  3/4 ok  import, org/model"
    assert out == f"{folder}  {said}\n"
    code, out, _ = runs(capsys, "show", folder, "--json")
    assert code == 0
    assert json.loads(out)["counts"]["ok"] == 3
    code, out, _ = runs(capsys, "show", folder)
    assert code == 0
    assert "TTFT" in out
    code, out, _ = runs(capsys, "export", folder, "--as", "vllm")
    assert json.loads(out)["completed"] == 3
    code, out, _ = runs(capsys, "export", folder, "--as", "vllm", "-o", tmp_path / "theirs.json")
    assert json.loads((tmp_path / "theirs.json").read_text())["completed"] == 3


def test_a_series_is_listed_with_the_number_of_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sweep-1"
    for name in ("rate-5", "rate-10"):
        (folder / name).mkdir(parents=True)
        (folder / name / "manifest.json").write_text("{}")
    (folder / "sweep.json").write_text("{}")
    (tmp_path / "other").mkdir()
    assert runs(capsys, "list", "--out", tmp_path)[1] == f"{folder}  sweep of 2 runs\n"


def test_a_simulated_series_is_listed_with_rates_policies_and_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--simulate", "--rates", "5,10", "--requests", "20", "--policy", "vllm-v1,static", "--quiet")
    with pytest.raises(SystemExit):
        main(["sweep", *flags, "--out", str(tmp_path)])
    _, out, _ = runs(capsys, "list", "--out", tmp_path)
    said = "sweep of 4 runs  4 of 4 valid  5, 10 /s  simulated cpu-tiny, static; simulated cpu-tiny, vllm-v1"
    assert out.splitlines()[-1].endswith(said)


def test_a_folder_that_cannot_be_read_is_listed_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "manifest.json").write_text("{")
    _, out, _ = runs(capsys, "list", "--out", tmp_path)
    assert out.startswith(f"{tmp_path / 'torn'}  unreadable: ")


def test_what_cannot_be_done_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = imported(tmp_path, capsys)
    code, _, err = runs(
        capsys, "export", folder, "--as", "vllm", "-o", folder / "manifest.json" / "where.json"
    )
    assert (code, "cannot write" in err) == (2, True)
    code, _, err = runs(capsys, "import", tmp_path / "gone.json")
    assert (code, "cannot read" in err) == (2, True)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    code, _, err = runs(capsys, "import", tmp_path / "deep.json")
    assert (code, "neither JSON nor JSON lines" in err) == (2, True)
    (folder / "summary.json").unlink()
    code, _, err = runs(capsys, "show", folder)
    assert (code, "has no summary" in err) == (2, True)
