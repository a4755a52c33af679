from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.drive.config import DriveConfig
from loadgen.drive.dispatch import NEVER_NS, ClosedSchedule, Due, OpenSchedule, Share, split_limit, split_plan
from loadgen.drive.limits import check_descriptors, check_memory, check_ports, choose_workers, peak_arrivals
from loadgen.errors import UsageError
from workloads.plan import Plan


def plan_of(arrival_ns: list[int], output_tokens: int = 4) -> Plan:
    n = len(arrival_ns)
    return Plan.of(
        np.array(sorted(arrival_ns), np.int64),
        np.arange(1, n + 1, dtype=np.int32),
        np.full(n, output_tokens, np.int32),
    )


def share_of(arrival_ns: list[int]) -> Share:
    return split_plan(plan_of(arrival_ns), 1)[0]


def sessions_of(rows: list[tuple[int, int, int, int]]) -> Plan:
    """A plan of (arrival, session, turn, think) rows, in order of arrival."""
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    plan = plan_of(columns[0].tolist())
    return replace(plan, session=columns[1].copy(), turn=columns[2].copy(), think_ns=columns[3].copy())


TWO_SESSIONS = sessions_of([(10, 0, 0, -1), (15, 0, 1, 5), (20, 1, 0, -1), (25, 0, 2, 10), (90, -1, -1, -1)])


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
    schedule = OpenSchedule(share_of(list(range(0, 1_000_000, 1_000))), 0)
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
    schedule = OpenSchedule(share_of([10, 20, 30]), 0)
    taken = [schedule.take(25), schedule.take(25), schedule.take(25)]
    assert [due and due.scheduled_ns for due in taken] == [10, 20, None]
    assert schedule.next_ns() == 30


def test_a_cap_delays_and_the_scheduled_instant_stays() -> None:
    schedule = OpenSchedule(share_of([10, 20]), 0, limit=1)
    assert schedule.take(50) is not None
    assert schedule.take(50) is None
    assert schedule.next_ns() == NEVER_NS
    schedule.on_end(0, 400)
    second = schedule.take(400)
    assert second is not None
    assert second.scheduled_ns == 20


def test_a_closed_loop_is_due_when_one_before_it_ends() -> None:
    schedule = ClosedSchedule(share_of([0, 0, 0, 0]), 100, concurrency=2)
    assert [schedule.take(100), schedule.take(100)] != [None, None]
    assert schedule.take(100) is None
    schedule.on_end(1, 170)
    third = schedule.take(180)
    assert third is not None
    assert (third.position, third.scheduled_ns) == (2, 170)
    assert [due.position for due in schedule.rest()] == [3]
    assert schedule.next_ns() == NEVER_NS


def test_what_was_not_taken_is_left_with_its_instants() -> None:
    schedule = OpenSchedule(share_of([1, 2, 3]), 0)
    schedule.take(1)
    assert [(due.position, due.scheduled_ns) for due in schedule.rest()] == [(1, 2), (2, 3)]
    assert schedule.rest() == []


def test_a_session_goes_to_one_load_process() -> None:
    rows = [(i, i % 7, i // 7, -1 if i < 7 else 3) for i in range(70)]
    plan = sessions_of(rows + [(70 + i, -1, -1, -1) for i in range(20)])
    for workers in (1, 2, 3, 16):
        shares = split_plan(plan, workers)
        assert sorted(np.concatenate([share.index for share in shares]).tolist()) == list(range(90))
        homes = [set(share.session[share.session >= 0].tolist()) for share in shares]
        assert sum(map(len, homes)) == 7
        assert all(
            share.position_of(i) == at for share in shares for at, i in enumerate(share.index.tolist())
        )


def test_a_turn_is_due_its_think_time_after_the_answer_before_it() -> None:
    schedule = OpenSchedule(split_plan(TWO_SESSIONS, 1)[0], 1_000)
    assert [schedule.take(1_500), schedule.take(1_500), schedule.take(1_500)] == [
        Due(0, 1_010),
        Due(2, 1_020),
        Due(4, 1_090),
    ]
    assert (schedule.take(10**9), schedule.next_ns()) == (None, NEVER_NS)
    assert schedule.on_end(2, 1_600) is None  # the last of its session
    assert schedule.on_end(0, 1_700) == 1
    assert (schedule.take(1_704), schedule.next_ns()) == (None, 1_705)
    assert schedule.take(1_800) == Due(1, 1_705)
    assert schedule.on_end(1, 1_900) == 3
    assert schedule.take(2_000) == Due(3, 1_910)
    assert schedule.rest() == []


def test_a_turn_comes_no_earlier_than_the_plan_allows() -> None:
    schedule = OpenSchedule(split_plan(sessions_of([(10, 0, 0, -1), (500, 0, 1, 5)]), 1)[0], 0)
    schedule.take(10)
    schedule.on_end(0, 20)
    assert schedule.next_ns() == 500


def test_turns_that_were_never_due_are_left_at_their_earliest_instant() -> None:
    schedule = OpenSchedule(split_plan(TWO_SESSIONS, 1)[0], 1_000)
    schedule.take(1_010)
    schedule.on_end(0, 1_050)
    left = schedule.rest()
    assert left == [Due(2, 1_020), Due(4, 1_090), Due(1, 1_055), Due(3, 1_025)]
    assert (schedule.rest(), schedule.next_ns()) == ([], NEVER_NS)


def test_a_cap_holds_for_turns_too() -> None:
    schedule = OpenSchedule(split_plan(TWO_SESSIONS, 1)[0], 0, limit=1)
    assert schedule.take(50) == Due(0, 10)
    schedule.on_end(0, 60)
    assert schedule.take(200) == Due(2, 20)
    assert schedule.take(200) is None
    schedule.on_end(2, 210)
    assert schedule.take(210) == Due(1, 65)


def test_in_a_closed_loop_a_session_keeps_its_slot() -> None:
    schedule = ClosedSchedule(split_plan(TWO_SESSIONS, 1)[0], 0, concurrency=1)
    assert (schedule.take(0), schedule.take(0)) == (Due(0, 0), None)
    schedule.on_end(0, 100)
    assert (schedule.take(104), schedule.take(105)) == (None, Due(1, 105))
    schedule.on_end(1, 200)
    assert schedule.take(210) == Due(3, 210)
    schedule.on_end(3, 300)
    assert schedule.take(300) == Due(2, 300)
    assert schedule.rest() == [Due(4, 300)]


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


def test_a_prompt_that_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(plan_of([0, 0]), prompt_tokens=np.array([5, 2**31 - 1], np.int32))
    monkeypatch.setattr("loadgen.drive.limits.free_memory_bytes", lambda: 64 << 30)
    with pytest.raises(UsageError, match=r"2,147,483,647 tokens.*65,536 MiB are free.*--input-tokens"):
        check_memory(plan)
    monkeypatch.setattr("loadgen.drive.limits.free_memory_bytes", lambda: 128 << 30)
    check_memory(plan)


def test_the_number_of_load_processes_follows_the_plan() -> None:
    slow = plan_of([i * 10**8 for i in range(100)])
    heavy = plan_of([i * 10**5 for i in range(100)], output_tokens=2_000)
    assert choose_workers(slow, config_of(workers=None, pin=(0, 1, 2, 3))) == 1
    assert choose_workers(heavy, config_of(workers=None, pin=(0, 1, 2, 3))) == 4
    assert choose_workers(slow, config_of(workers=3)) == 3
    assert choose_workers(slow, config_of(workers=3, concurrency=2)) == 2
