"""Where the public traces are, for the tests that read them whole."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of public traces; it is not part of the repository."""
    folder = os.environ.get("BENCH_TRACES")
    if not folder:
        pytest.skip("BENCH_TRACES does not name a folder with the public traces")
    return Path(folder)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write a trace file and give its path; the name says nothing about the format."""

    def write_text(text: str) -> Path:
        path = tmp_path / f"recorded-{len(list(tmp_path.iterdir()))}.txt"
        path.write_bytes(text.encode())
        return path

    return write_text
