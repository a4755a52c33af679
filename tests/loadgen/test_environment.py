"""Environment facts: strict JSON, nothing secret, and None where a system does not tell."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path

import pytest

from loadgen import environment


def test_facts_are_strict_json_and_name_what_matters() -> None:
    facts = json.loads(json.dumps(environment.describe_environment(), allow_nan=False))
    assert facts["python"]["version"] == platform.python_version()
    assert facts["machine"]["num_usable_cpus"] >= 1
    assert "numpy" in facts["packages"]


def test_nothing_secret_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_API_KEY", "sk-very-secret")
    text = json.dumps(environment.describe_environment())
    assert "sk-very-secret" not in text
    assert f'"{platform.node()}"' not in text
    assert f"/home/{getpass.getuser()}" not in text


def test_pressure_is_read_from_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "some avg10=12.50 avg60=3.00 avg300=1.00 total=1234567\nfull avg10=0.00 avg60=0.00 total=0"
    monkeypatch.setattr(environment, "_read", lambda _path: text)
    assert environment.read_cpu_pressure() == {"avg10_percent": 12.5, "total_us": 1234567.0}


def test_a_system_that_tells_nothing_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "_read", lambda _path: None)
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "environment.py"))
    facts = environment.describe_environment()
    assert facts["cpu_pressure"] is None
    assert facts["clock_source"] is None
    assert facts["git"] is None
