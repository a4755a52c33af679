"""The list of cases names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
HELD_BY = re.compile(r"`([\w/]+\.py)::(\w+)`")


def named_tests() -> list[tuple[str, str]]:
    return HELD_BY.findall((TESTS / "CASES.md").read_text())


def test_every_row_names_a_test() -> None:
    rows = [line for line in (TESTS / "CASES.md").read_text().splitlines() if line.startswith("| ")]
    cases = [row for row in rows if not row.startswith("| reported in")]
    assert len(cases) > 30
    assert all(HELD_BY.search(row) for row in cases)


@pytest.mark.parametrize(("path", "name"), sorted(set(named_tests())))
def test_a_named_test_exists(path: str, name: str) -> None:
    tree = ast.parse((TESTS / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
