"""`bench run --repeat`: a run a seed, and intervals over the runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadgen.stats.replicates import over_runs
from tests.test_bad_input import bench

RUN = ("run", "--simulate", "--rate", "20", "--duration", "10s", "--quiet", "--repeat", "3", "--seed", "5")


def test_every_seed_has_its_run_and_the_figures_an_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*RUN, "--out", tmp_path, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [run["seed"] for run in printed["runs"]] == [5, 6, 7]
    assert len({run["plan_digest"] for run in printed["runs"]}) == 3
    ttft = printed["figures"]["ttft.p50"]
    seen = [run["figures"]["ttft.p50"] for run in printed["runs"]]
    assert ttft["interval"][0] <= min(seen) <= ttft["value"] <= max(seen) <= ttft["interval"][1]
    assert json.loads((Path(printed["folder"]) / "repeat.json").read_text())["figures"] == printed["figures"]


def test_the_terminal_shows_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*RUN, "--out", tmp_path) == 0
    out = capsys.readouterr().out
    assert "ttft.p99" in out
    assert "3 of 3 runs valid" in out


def test_objectives_are_counted_over_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slo = ("--slo", "ttft.p50=1s", "--slo", "e2e.p50=1ms", "--slo", "ttft=1ns")
    assert bench(*RUN, *slo, "--out", tmp_path) == 0
    out = capsys.readouterr().out
    assert "ttft.p50 held in 3 of 3 valid runs" in out
    assert "e2e.p50 held in 0 of 3 valid runs" in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("attained")] == ["0"]
    (folder,) = tmp_path.iterdir()
    kept = json.loads((folder / "repeat.json").read_text())["slo"]
    assert kept[0] == {"objective": "ttft.p50", "num_met": 3, "num_runs": 3}


def test_no_replicates_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("run", "--simulate", "--rate", "2", "--repeat", "0", "--out", tmp_path / "runs") == 2
    assert "--repeat" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_intervals_over_runs_cover() -> None:
    rng = np.random.default_rng(1)
    found = [over_runs(rng.lognormal(0, 0.3, 6).tolist()) for _ in range(400)]
    intervals = [one.interval for one in found if one is not None and one.interval is not None]
    assert len(intervals) == 400
    assert 0.92 <= np.mean([low <= 1 <= high for low, high in intervals]) <= 0.98


def test_one_run_has_no_interval_and_none_has_nothing() -> None:
    single = over_runs([2.0])
    assert single is not None
    assert single.value == pytest.approx(2.0)
    assert (single.interval, single.spread) == (None, None)
    assert over_runs([]) is None


def test_a_figure_that_is_0_in_a_run_has_a_mean_and_no_interval() -> None:
    none_failed = over_runs([0.0, 0.0])
    assert none_failed is not None
    assert (none_failed.value, none_failed.interval) == (0.0, None)
    some = over_runs([0.0, 0.02])
    assert some is not None
    assert some.value == pytest.approx(0.01)
