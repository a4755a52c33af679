from __future__ import annotations

from typing import Any

import pytest

from reports import facts


def test_leaves_are_dotted_and_lists_of_objects_named_by_their_first_value() -> None:
    tree = {
        "a": {"b": 1, "c": None},
        "checks": [{"what": "api", "found": "chat", "meaning": ""}],
        "d": [1, 2.5],
    }
    assert facts.flatten(tree) == [("a.b", "1"), ("a.c", "–"), ("checks.api", "chat"), ("d", "1, 2.5")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        ([], "–"),
        (True, "yes"),
        (2.0, "2"),
        (0.125, "0.125"),
        ("x", "x"),
        ([{"a": 1}, 2], '{"a": 1}, 2'),
    ],
)
def test_a_value_is_written_plainly(value: Any, text: str) -> None:
    assert facts.plain(value) == text


def test_chosen_settings_come_first() -> None:
    config = {
        "seed": {"value": 0, "origin": "default"},
        "rate": {"value": 20.0, "origin": "flag"},
        "dist": {"value": "lognormal", "origin": "env"},
    }
    listed = facts.settings({"config": config})
    assert [(setting.name, setting.value, setting.is_default) for setting in listed] == [
        ("rate", "20", False),
        ("dist", "lognormal", False),
        ("seed", "0", True),
    ]


def test_the_command_is_ready_for_a_shell() -> None:
    assert (
        facts.command({"command": ["bench", "run", "--name", "two words"]}) == "bench run --name 'two words'"
    )
    assert facts.command({"command": "bench run --rate 20"}) == "bench run --rate 20"
    assert facts.command({}) == ""


def test_tables_leave_out_what_is_not_known() -> None:
    manifest = {"status": "complete", "seeds": {"seed": 7}, "target": {}, "environment": {"kernel": "Linux"}}
    assert facts.tables(manifest) == [
        ("Run", [("status", "complete"), ("seeds.seed", "7")]),
        ("Environment", [("kernel", "Linux")]),
    ]
