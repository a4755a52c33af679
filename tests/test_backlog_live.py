"""The backlog judged live: a server with room for all, and an engine far above its capacity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.golden.process import GOLDEN, start_server
from tests.test_bad_input import bench


def trend(capsys: pytest.CaptureFixture[str], out: Path, *flags: str) -> str:
    """The trend of a run; a machine shared with other work may be told that the client was late."""
    load = ("--dist", "fixed", "--quiet", "--json", "--seed", "1")
    assert bench("run", *load, *flags, "--out", out) in (0, 3)
    return str(json.loads(capsys.readouterr().out)["backlog"]["trend"])


def test_long_answers_of_a_server_with_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers of 1 s, 20 requests/s: nothing is known after 2 s, and all is well after 6 s."""
    with start_server(GOLDEN, "--gap-ms", "20") as server:
        load = ("--target", server.url, "--model", "golden", "--output-tokens", "50", "--rate", "20")
        assert trend(capsys, tmp_path, *load, "--duration", "2s") == "undecided"
        assert trend(capsys, tmp_path, *load, "--duration", "6s") == "steady"


def test_an_engine_far_above_its_capacity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One at a time, 100 tokens each: what is still in line is given up 1 s after the last was sent."""
    load = ("--max-batch", "1", "--output-tokens", "100", "--rate", "60", "--drain-timeout", "1s")
    assert trend(capsys, tmp_path, *load, "--duration", "5s") == "unstable"
