"""A load generator starts fast and small: what a command imports before it has work to do."""

from __future__ import annotations

import subprocess
import sys

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


def test_the_check_sees_a_heavy_import() -> None:
    assert loaded_by("import numpy") & HEAVY == {"numpy"}
