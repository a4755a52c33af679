"""A load generator starts fast and small: what a command imports before it has work to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.loadgen.rows import make_record, make_run

HEAVY = {
    "torch",
    "matplotlib",
    "pandas",
    "scipy",
    "pyarrow",
    "httpx",
    "numpy",
    "jinja2",
    "reference_engine",
    "reports",
}


def loaded_by(code: str) -> set[str]:
    printed = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {name.partition(".")[0] for name in printed.splitlines()}


def test_help_imports_no_heavy_module() -> None:
    assert (
        loaded_by("from loadgen.cli import build\nbuild().main(['--help'], standalone_mode=False)") & HEAVY
        == set()
    )


def test_importing_loadgen_imports_no_data_frame() -> None:
    assert loaded_by("import loadgen") & HEAVY == set()


def test_a_load_process_stays_light() -> None:
    heavy_for_a_worker = HEAVY - {"numpy", "pyarrow"}  # it draws prompts and writes rows
    assert loaded_by("import loadgen.drive.process") & heavy_for_a_worker == set()


def test_a_run_is_judged_without_pandas_which_a_data_frame_still_finds(tmp_path: Path) -> None:
    folder = make_run(tmp_path, [make_record(i, scheduled_s=i / 10) for i in range(30)]).path
    judge = (
        "from pathlib import Path\n"
        "from loadgen.measurement import conclude\n"
        "from loadgen.store import RunFolder\n"
        f"run = conclude(RunFolder(Path({str(folder)!r})))"
    )
    assert "pandas" not in loaded_by(judge)
    assert "pandas" in loaded_by(f"{judge}\nassert len(run.requests) == 30")


def test_the_check_sees_a_heavy_import() -> None:
    assert loaded_by("import numpy") & HEAVY == {"numpy"}
