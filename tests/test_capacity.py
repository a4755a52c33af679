"""`bench capacity` in virtual time: its answers, its folder, and what is wrong told before it starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_bad_input import bench
from workloads import Workload

STEP = ("--simulate", "--cost", "affine(base=8ms,per_seq=0.25ms,per_token=0)", "--max-batch", "4096")
# prompts of one token and answers of a hundred: nearly all steps decode, as in the closed form
LOAD = ("--dist", "fixed", "--input-tokens", "1", "--output-tokens", "100", "--quiet", "--rate", "10")


# one at a time, 8.25 ms each: M/D/1, whose mean wait is half a service at half of 121.2 requests/s
ONE = ("--max-batch", "1", "--output-tokens", "1", "--rate", "50", "--slo", "ttft.mean=12.375ms")


def search(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    code = bench("capacity", *STEP, *LOAD, *arguments, "--json")
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, printed


def test_the_capacity_of_continuous_batching_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E[T] = (c + a) N / (1 - rate a N) + half a step: 1.65 s at 19.95 requests/s."""
    code, found = search(
        capsys, "--slo", "e2e.mean=1.65s", "--duration", "320s", "--repeat", "3", "--out", tmp_path
    )
    assert code == 0
    assert found["answer"] == "interval"
    low, high = found["capacity"]["low_per_s"], found["capacity"]["high_per_s"]
    assert found["capacity"]["confidence"] == 0.95
    assert low < 19.95 < high
    assert high / low < 1.15
    folder = Path(found["folder"])
    kept = json.loads((folder / "capacity.json").read_text())
    assert kept["points"] == found["points"]
    assert {point["passes"] for point in found["points"]} == {True, False}
    for point in found["points"]:
        assert list(folder.glob(f"{point['folder']}/requests.parquet"))


def test_a_seed_sends_the_same_requests_at_every_rate() -> None:
    """Common random numbers: another rate only stretches the gaps."""
    slow, fast = (Workload(rate_per_s=rate, duration_s=30).plan(seed=3) for rate in (10.0, 20.0))
    num = len(slow)
    assert np.allclose(slow.arrival_ns / 2, fast.arrival_ns[:num], atol=2)
    assert (slow.output_tokens == fast.output_tokens[:num]).all()
    assert (slow.prompt_tokens == fast.prompt_tokens[:num]).all()


def test_the_budget_of_a_simulated_search_is_wall_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--slo", "e2e.mean=1.5s", "--duration", "1h", "--out", tmp_path)
    assert bench("capacity", *STEP, "--rate", "0.01", *flags, "--simulate", "--budget", "1ms") == 4
    said = capsys.readouterr().err
    assert "stopped: " in said
    assert "of --budget 0.001s are spent" in said
    assert "--resume" in said


def test_no_passing_rate_is_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = search(capsys, "--slo", "ttft.p99=1us", "--duration", "20s", "--out", tmp_path)
    assert (code, found["answer"], found["capacity"]) == (0, "none", None)
    assert "no passing rate" in found["sentence"]
    assert found["points"]


def test_a_search_that_ran_out_of_time_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = (*ONE, "--duration", "60s", "--repeat", "2", "--out", str(tmp_path))
    code, first = search(capsys, *asked, "--budget", "1ms")
    assert (code, first["answer"]) == (4, "undecided")
    assert len(first["points"]) == 1
    code, second = search(
        capsys, *ONE[:-2], *asked[8:], "--resume", first["folder"]
    )  # the objective is that search's
    assert (code, second["answer"]) == (0, "interval")
    assert second["folder"] == first["folder"]
    assert second["points"][:1] == first["points"]
    code = bench("capacity", *STEP, *LOAD, *asked[:-2], "--slo", "e2e.mean=2s", "--resume", first["folder"])
    assert code == 2
    assert "--slo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--slo ttft.p99=500ms"),
        (["--slo", "ttft=500ms"], "ttft.p99"),
        (["--slo", "ttft.max=500ms"], "percentile or a mean"),
        (["--slo", "ttft.p99=500"], "unit"),
        (["--slo", "ttft.p99=0"], "above 0"),
        (["--slo", "ttft.p99=1s", "--max-rate", "0.001"], "--max-rate"),
        (["--slo", "ttft.p99=1s", "--repeat", "1"], "--repeat"),
        (["--slo", "ttft.p99=1s", "--concurrency", "3", "--requests", "9"], "--concurrency"),
        (["--slo", "ttft.p99=1s", "--max-in-flight", "3"], "--max-in-flight"),
        (["--slo", "ttft.p99=1s", "--dist", "lognormall"], "lognormall"),
        (["--slo", "ttft.p99=1s", "--resume", "nowhere"], "nowhere"),
        (["--slo", "ttft.p99=1s", "--budget", "10"], "--budget"),
    ],
)
def test_what_is_wrong_is_told_before_the_first_run(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("capacity", *arguments, "--simulate", "--out", tmp_path / "runs") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_terminal_says_it_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--duration", "60s", "--out", tmp_path, "--repeat", "2")
    assert bench("capacity", *STEP, *LOAD, *ONE, *flags) == 0
    out = capsys.readouterr().out
    assert out.startswith("CAPACITY  ttft.mean <= 12.375ms holds up to a rate between ")
    assert "2 replicates" in out
    assert "probe" in out


def test_a_search_delivers_the_precision_that_it_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = search(capsys, *ONE, "--precision", "10", "--out", tmp_path)
    assert (code, found["answer"]) == (0, "interval")
    low, high = found["capacity"]["low_per_s"], found["capacity"]["high_per_s"]
    assert low < 60.6 < high
    assert (high / low) ** 0.5 <= 1.1


def test_runs_too_short_for_their_objective_give_no_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One at a time, 2 s each: in 30 s no wait of a minute can be seen."""
    slow = ("--cost", "affine(base=2s,per_seq=0,per_token=0)", "--rate", "1", "--slo", "ttft.p90=60s")
    code, found = search(capsys, *ONE[:-4], *slow, "--duration", "30s", "--out", tmp_path)
    assert (code, found["answer"]) == (4, "undecided")
    assert "times as long would tell" in found["sentence"]
    assert found["capacity"]["low_per_s"] is None


def test_it_says_before_it_starts_how_long_it_will_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--repeat", "2", "--duration", "20s", "--out", tmp_path)
    bench("capacity", *STEP, *(flag for flag in LOAD if flag != "--quiet"), *ONE, *flags)
    said = capsys.readouterr().err.splitlines()
    start = next(i for i, line in enumerate(said) if line.startswith("some 5 runs of 20 s in virtual time"))
    assert all("probe" in line for line in said[:start])


def test_points_of_an_older_search_are_read_and_tell_where_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (*ONE, "--repeat", "2", "--out", tmp_path)
    _, first = search(capsys, *asked, "--budget", "1ms")
    path = Path(first["folder"]) / "capacity.json"
    document = json.loads(path.read_text())
    new = ("length_s", "num_values", "shortfall", "served_per_s", "answer_s")
    (point,) = document["points"]
    older = {name: value for name, value in point.items() if name not in new}
    document["points"] = [{**older, "excess": None, "is_probe": False, "rate_per_s": 55.0}]
    path.write_text(json.dumps(document))
    code, second = search(capsys, *asked, "--resume", first["folder"])
    assert (code, second["answer"]) == (0, "interval")
    assert second["points"][1]["rate_per_s"] == 55.0
