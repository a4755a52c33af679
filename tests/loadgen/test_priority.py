"""Going first: what is asked for, what happens where it is refused, and that a runaway freezes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadgen import doctor, priority
from loadgen.measure.starved import advice_for_starved
from loadgen.priority import FELL_BACK, NO_THROTTLE, NORMAL, NOT_PERMITTED, REAL_TIME, StepForward

SPIN = """
import json, os, signal, sys, time
from loadgen.priority import StepForward
os.sched_setaffinity(0, {int(sys.argv[1])})
with StepForward() as step:
    granted = step.words
    if sys.argv[2] == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGXCPU])
    print(granted, flush=True)
    while time.process_time() < 1.5 or not (os.path.exists(sys.argv[3]) or time.process_time() > 60):
        pass
print(json.dumps([granted, step.words, os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK]))
"""
WORK = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
while time.process_time() < 0.1:
    pass
"""


def refuse(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_what_the_system_grants_is_said_and_ends_with_the_block() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with StepForward() as step:
        policy = os.sched_getscheduler(0)
        nice = os.getpriority(os.PRIO_PROCESS, 0)
    if step.words == REAL_TIME:
        assert policy == os.SCHED_RR | os.SCHED_RESET_ON_FORK
        assert not step.refusal
    else:
        assert step.refusal
        assert step.words == (f"nice {nice}" if nice else NORMAL)
    assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_what_is_not_wanted_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("asked"))
    with StepForward(is_wanted=False) as step:
        assert step.words == NORMAL
        assert not step.refusal


def test_a_better_nice_value_stands_in_for_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, value: given.append(value))
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with StepForward() as step:
        assert step.words == "nice -10"
        assert step.refusal == NOT_PERMITTED
    assert given == [-10, 0]


def test_where_nothing_is_permitted_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, value: refuse() if value < 0 else None)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with StepForward() as step:
        assert step.words == NORMAL
    check = doctor.check_real_time()
    assert check.value == "not permitted; normal instead"
    for way in ("CAP_SYS_NICE", "ulimit -r", "Docker", "systemd", "CI runners", "cgroup"):
        assert way in check.advice


@pytest.mark.parametrize("runtime_us", ["-1", "", None])
def test_real_time_is_not_asked_for_where_it_could_freeze_a_processor(
    runtime_us: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "sched_rt_runtime_us"
    if runtime_us is not None:
        told.write_text(runtime_us)
    monkeypatch.setattr(priority, "RT_RUNTIME", told)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr(os, "setpriority", lambda *_: None)
    with StepForward() as step:
        assert step.refusal == NO_THROTTLE
    assert not doctor.check_real_time().advice


@pytest.mark.parametrize(("ran_s", "words"), [(0.1, REAL_TIME), (0.5, FELL_BACK)])
def test_who_takes_much_of_a_processor_goes_first_no_longer(
    ran_s: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0, 5.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: now[1])
    monkeypatch.setattr(priority, "leave_real_time", lambda: None)
    step = StepForward()
    step.words = REAL_TIME
    now[:] = [100.1, 5.1]
    step.look()
    assert step.words == REAL_TIME  # too soon to tell
    now[:] = [101.0, 5.0 + ran_s]
    step.look()
    assert step.words == words


@pytest.mark.load
@pytest.mark.parametrize("kind", ["runaway", "deaf"])
def test_a_runaway_leaves_time_to_others_on_its_processor(kind: str, tmp_path: Path) -> None:
    """It falls back by itself; one that is deaf to the signal is held by the kernel's own throttle."""
    cpu, stop = str(max(os.sched_getaffinity(0))), tmp_path / "stop"
    command = [sys.executable, "-c", SPIN, cpu, kind, str(stop)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runaway:
        assert runaway.stdout is not None
        begun_as = runaway.stdout.readline().strip()
        subprocess.run([sys.executable, "-c", WORK, cpu], check=True)
        assert runaway.poll() is None  # the work was done beside it
        stop.touch()
        granted, words, policy = json.loads(runaway.stdout.read())
    assert granted == begun_as
    assert policy == os.SCHED_OTHER
    if granted == REAL_TIME:
        assert words == (FELL_BACK if kind == "runaway" else REAL_TIME)


def test_waiting_for_a_processor_is_told_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "schedstat"
    monkeypatch.setattr(priority, "SCHEDSTAT", told)
    assert priority.waited_ns() is None
    told.write_text("39386044 18265731 32\n")
    assert priority.waited_ns() == 18265731


@pytest.mark.parametrize(
    ("scheduling", "cpu_s", "wait_s", "expected"),
    [
        ("normal", 0.6, 3.3, "ran for 600 ms and waited 3.3 s for a processor. Let it go first"),
        ("nice -10", 0.6, 3.3, "Let it go first"),
        ("rr 10", 0.6, 3.3, "the machine itself stood still"),
        ("rr 10", 9.0, 0.1, "add --workers"),
        ("normal after rr 10", 2.0, 0.1, "add --workers"),
        ("normal", 6.5, 3.3, "add --workers"),
        ("normal", None, None, "Let it go first"),
        (None, None, None, "Keep other work off"),
    ],
)
def test_advice_is_what_would_have_helped(
    scheduling: str | None, cpu_s: float | None, wait_s: float | None, expected: str
) -> None:
    advice = advice_for_starved(scheduling, cpu_s=cpu_s, wait_s=wait_s, drive_s=10.0)
    assert expected in advice
    assert ("--workers" in advice) == (expected == "add --workers")
