"""What the doctor concludes from given facts, and one short examination of this machine."""

from __future__ import annotations

import json
import select
import subprocess
import sys

import pytest

from loadgen.cli.doctor import conclusion
from loadgen.doctor import (
    Check,
    Step,
    check_clock,
    check_cpus,
    check_descriptors,
    check_pressure,
    start_golden,
)
from loadgen.errors import BenchError

BENCH = (sys.executable, "-c", "from loadgen.cli import main; main()")


def step_of(rate_per_s: float, error_ms: float | None, *, lag_ms: float = 0.1, late_ms: float = 0.01) -> Step:
    return Step(
        rate_per_s=rate_per_s,
        output_tokens=100,
        num_requests=50,
        ttft_error_p50_ms=0.01,
        ttft_error_p99_ms=error_ms,
        itl_error_p50_ms=0.001,
        itl_error_p99_ms=error_ms and error_ms / 2,
        send_lag_p99_ms=lag_ms,
        alone_fraction=1.0,
        cpu_us_per_token=20.0,
        workers=1,
        server_late_ms=late_ms,
    )


@pytest.mark.parametrize(
    ("errors_ms", "expected"),
    [
        ([0.1, 0.2], "below 1 ms up to the highest rate tried, 2,000 tokens/s"),
        ([0.1, 3.0], "passes 1 ms between 1,000 and 2,000 tokens/s"),
        ([3.0, 4.0], "passes 1 ms at the lowest rate tried already, 1,000 tokens/s"),
        ([3.0, 0.1], "No clear limit: 1,000 tokens/s failed where 2,000 did not"),
        ([0.1, None], "passes 1 ms between 1,000 and 2,000 tokens/s"),
    ],
)
def test_conclusion_names_the_rate_at_which_the_error_passes_the_limit(
    errors_ms: list[float | None], expected: str
) -> None:
    steps = [step_of(10.0 * (i + 1), error_ms) for i, error_ms in enumerate(errors_ms)]
    assert expected in conclusion(steps, is_planned=False)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (step_of(10, 0.2), "can be measured here to 1 ms: at 1,000 tokens/s this client errs by 0.2 ms"),
        (step_of(10, 2.0), "cannot be measured"),
        (step_of(10, 0.2, lag_ms=5.0), "cannot be measured"),
        (step_of(10, None), "cannot be measured"),
    ],
)
def test_conclusion_on_a_planned_run_weighs_error_and_send_lag(step: Step, expected: str) -> None:
    assert expected in conclusion([step], is_planned=True)


def test_conclusion_weighs_the_send_lag_of_every_rate() -> None:
    late = conclusion([step_of(10, 0.2), step_of(20, 0.2, lag_ms=5.0)], is_planned=False)
    assert "The send lag passes 1 ms between 1,000 and 2,000 tokens/s" in late
    assert "at the lowest rate tried" in conclusion([step_of(10, 0.2, lag_ms=2.0)], is_planned=False)


def test_conclusion_doubts_a_server_that_was_late_itself() -> None:
    assert "The server itself was late" in conclusion([step_of(10, 0.2, late_ms=3.0)], is_planned=True)
    assert "The server itself was late" not in conclusion([step_of(10, 0.2)], is_planned=True)


@pytest.mark.parametrize(
    ("check", "is_good"),
    [
        (check_pressure({"avg10_percent": 50.0}), False),
        (check_pressure({"avg10_percent": 1.0}), True),
        (check_pressure(None), True),
        (check_cpus(1, None), False),
        (check_cpus(4, "powersave"), False),
        (check_cpus(4, "performance"), True),
        (check_descriptors(256), False),
        (check_descriptors(65_536), True),
        (check_clock("hpet", 200), False),
        (check_clock("tsc", 200), True),
    ],
)
def test_checks_advise_only_where_something_is_wrong(check: Check, is_good: bool) -> None:
    assert (check.advice == "") is is_good


@pytest.mark.load
def test_doctor_judges_a_planned_run_against_a_known_server() -> None:
    done = subprocess.run(
        [*BENCH, "doctor", "--rate", "20", "--output-tokens", "8", "--json"],
        stdout=subprocess.PIPE,
        check=False,
    )
    report = json.loads(done.stdout)
    (step,) = report["steps"]
    assert done.returncode in (0, 3)  # 3 where this machine is too busy for it
    assert {check["name"] for check in report["checks"]} >= {"processors", "clock", "receive stamps"}
    assert step["num_requests"] > 20
    assert 0 <= step["ttft_error_p50_ms"] < 20
    assert step["tokens_per_s"] == 160


@pytest.mark.parametrize("rate", ["0", "-3", "nan"])
def test_a_rate_that_cannot_be_is_refused(rate: str) -> None:
    done = subprocess.run([*BENCH, "doctor", "--rate", rate], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "positive number" in done.stderr


def test_a_system_without_the_known_server_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")
    with pytest.raises(BenchError, match="needs Linux"):
        start_golden()
