from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.drive.config import DriveConfig
from loadgen.drive.dispatch import NEVER_NS, ClosedSchedule, OpenSchedule, split_limit, split_plan
from loadgen.drive.limits import check_descriptors, check_ports, choose_workers, peak_arrivals
from loadgen.errors import UsageError
from workloads.plan import Plan


def plan_of(arrival_ns: list[int], output_tokens: int = 4) -> Plan:
    n = len(arrival_ns)
    return Plan.of(
        np.array(sorted(arrival_ns), np.int64),
        np.arange(1, n + 1, dtype=np.int32),
        np.full(n, output_tokens, np.int32),
    )


def config_of(**changes: object) -> DriveConfig:
    given: dict[str, object] = {
        "url": "http://x",
        "model": "m",
        "seed": 1,
        "nonce": 2,
        "run_id": "r",
        **changes,
    }
    return DriveConfig(**given)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 10**12), max_size=60), st.integers(1, 9))
def test_the_union_of_the_shares_is_the_plan_whatever_their_number(arrivals: list[int], workers: int) -> None:
    plan = plan_of(arrivals)
    shares = split_plan(plan, workers)
    index = np.concatenate([share.index for share in shares])
    assert sorted(index.tolist()) == list(range(len(plan)))
    for share in shares:
        for position, i in enumerate(share.index.tolist()):
            assert share.position_of(i) == position
            assert share.arrival_ns[position] == plan.arrival_ns[i]
            assert share.prompt_tokens[position] == plan.prompt_tokens[i]


@given(st.integers(1, 100), st.integers(1, 9))
def test_a_limit_is_dealt_out_whole(limit: int, workers: int) -> None:
    workers = min(limit, workers)
    parts = split_limit(limit, workers)
    assert sum(part or 0 for part in parts) == limit
    assert min(part or 0 for part in parts) >= 1


def test_an_open_loop_gives_everything_at_its_instant_though_nothing_ever_ends() -> None:
    schedule = OpenSchedule(list(range(0, 1_000_000, 1_000)))
    taken = []
    for now in range(0, 1_000_000, 10_000):
        while (due := schedule.take(now)) is not None:
            assert due.scheduled_ns <= now
            taken.append(due)
    while (due := schedule.take(1_000_000)) is not None:
        taken.append(due)
    assert [due.scheduled_ns for due in taken] == list(range(0, 1_000_000, 1_000))
    assert schedule.next_ns() == NEVER_NS


def test_a_late_request_keeps_its_instant_and_moves_no_other() -> None:
    schedule = OpenSchedule([10, 20, 30])
    taken = [schedule.take(25), schedule.take(25), schedule.take(25)]
    assert [due and due.scheduled_ns for due in taken] == [10, 20, None]
    assert schedule.next_ns() == 30


def test_a_cap_delays_and_the_scheduled_instant_stays() -> None:
    schedule = OpenSchedule([10, 20], limit=1)
    assert schedule.take(50) is not None
    assert schedule.take(50) is None
    assert schedule.next_ns() == NEVER_NS
    schedule.on_end(400)
    second = schedule.take(400)
    assert second is not None
    assert second.scheduled_ns == 20


def test_a_closed_loop_is_due_when_one_before_it_ends() -> None:
    schedule = ClosedSchedule(4, concurrency=2, start_ns=100)
    assert [schedule.take(100), schedule.take(100)] != [None, None]
    assert schedule.take(100) is None
    schedule.on_end(170)
    third = schedule.take(180)
    assert third is not None
    assert (third.position, third.scheduled_ns) == (2, 170)
    assert [due.position for due in schedule.rest()] == [3]
    assert schedule.next_ns() == NEVER_NS


def test_what_was_not_taken_is_left_with_its_instants() -> None:
    schedule = OpenSchedule([1, 2, 3])
    schedule.take(1)
    assert [(due.position, due.scheduled_ns) for due in schedule.rest()] == [(1, 2), (2, 3)]
    assert schedule.rest() == []


def test_peak_arrivals_counts_the_busiest_window() -> None:
    plan = plan_of([0, 10**9, 10**9 + 1, 10**9 + 2, 9 * 10**9])
    assert peak_arrivals(plan, 1) == 3
    assert peak_arrivals(plan, 100) == 5
    assert peak_arrivals(plan_of([]), 1) == 0


def test_too_few_descriptors_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.drive.limits.raise_descriptor_limit", lambda: 256)
    plan = plan_of(list(range(500)))
    with pytest.raises(UsageError, match=r"500 requests in flight, but a process may open 256 files"):
        check_descriptors(plan, config_of())
    check_descriptors(plan, config_of(max_in_flight=100))
    check_descriptors(plan, config_of(concurrency=100))


def test_too_few_ports_for_fresh_connections_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.drive.limits.count_ports", lambda: 400)
    plan = plan_of(list(range(500)))
    with pytest.raises(UsageError, match=r"500 connections are due within 60 s, but there are 400"):
        check_ports(plan, config_of(fresh_connections=True))
    check_ports(plan, config_of())


def test_the_number_of_load_processes_follows_the_plan() -> None:
    slow = plan_of([i * 10**8 for i in range(100)])
    heavy = plan_of([i * 10**5 for i in range(100)], output_tokens=2_000)
    assert choose_workers(slow, config_of(workers=None, pin=(0, 1, 2, 3))) == 1
    assert choose_workers(heavy, config_of(workers=None, pin=(0, 1, 2, 3))) == 4
    assert choose_workers(slow, config_of(workers=3)) == 3
    assert choose_workers(slow, config_of(workers=3, concurrency=2)) == 2
