"""Golden files: expected text beside the tests, rewritten by `pytest --update-goldens`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write golden files instead of comparing")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with `golden/<name>` beside the test, or write it where the flag is given."""
    folder = Path(request.path).parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-goldens"):
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: run pytest --update-goldens and look at what it wrote"
        assert text == path.read_text(encoding="utf-8"), (
            f"{path.name} differs; if right: pytest --update-goldens"
        )

    return check
