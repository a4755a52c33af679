from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from loadgen.clock import SANDWICH_TRIES, STEP_NS, RealtimeOffset, TimerAlarm, now_ns, open_alarm, real_ns


class FakeClocks:
    """Both clocks in virtual time: every reading takes `cost_ns` of it, and some take longer."""

    def __init__(self, offset_ns: int, costs_ns: Iterator[int]) -> None:
        self.offset_ns = offset_ns
        self._costs_ns = costs_ns
        self._at_ns = 1_000_000

    def monotonic(self) -> int:
        self._at_ns += next(self._costs_ns)
        return self._at_ns

    def real(self) -> int:
        self._at_ns += next(self._costs_ns)
        return self._at_ns - self.offset_ns


def repeated(*costs_ns: int) -> Iterator[int]:
    while True:
        yield from costs_ns


def test_the_offset_comes_from_the_narrowest_sandwich() -> None:
    # monotonic, real, monotonic: nine sandwiches, of which only the fourth is not disturbed
    costs = [100, 100, 90_000] * 3 + [100, 100, 100] + [100, 50_000, 100] * 5
    clocks = FakeClocks(offset_ns=-(10**18), costs_ns=iter(costs))
    offset = RealtimeOffset(clocks.monotonic, clocks.real)
    assert len(costs) == 3 * SANDWICH_TRIES
    assert offset.width_ns == 200
    assert offset.ns == -(10**18)


def test_a_step_of_the_wall_clock_is_seen_and_later_stamps_use_the_new_offset() -> None:
    clocks = FakeClocks(offset_ns=500, costs_ns=repeated(100))
    offset = RealtimeOffset(clocks.monotonic, clocks.real)
    clocks.offset_ns += 3_600_000_000_000
    offset.remeasure()
    assert offset.num_steps == 1
    assert offset.max_drift_ns == offset.stepped_ns == 3_600_000_000_000
    assert offset.ns == 3_600_000_000_500


def test_steps_add_up_whichever_way_they_went() -> None:
    clocks = FakeClocks(offset_ns=500, costs_ns=repeated(100))
    offset = RealtimeOffset(clocks.monotonic, clocks.real)
    for step_ns in (2_000_000, -2_000_000, 1_000_000, STEP_NS // 2):
        clocks.offset_ns += step_ns
        offset.remeasure()
    assert (offset.num_steps, offset.stepped_ns, offset.max_drift_ns) == (3, 5_000_000, 2_000_000)


def test_drift_within_the_noise_is_recorded_and_is_no_step() -> None:
    clocks = FakeClocks(offset_ns=500, costs_ns=repeated(100))
    offset = RealtimeOffset(clocks.monotonic, clocks.real)
    clocks.offset_ns += STEP_NS // 2
    offset.remeasure()
    assert offset.num_steps == 0
    assert offset.max_drift_ns == STEP_NS // 2


def test_the_real_clocks_agree_within_a_wide_sandwich() -> None:
    offset = RealtimeOffset()
    before = now_ns()
    converted = real_ns() + offset.ns
    after = now_ns()
    assert before - 1_000_000 <= converted <= after + 1_000_000


def test_the_alarm_rings_at_its_instant_and_not_before() -> None:
    alarm = open_alarm()
    if alarm is None:
        pytest.skip("this system has no timerfd")
    assert isinstance(alarm, TimerAlarm)
    due_ns = now_ns() + 5_000_000
    alarm.set(due_ns)
    readable, _, _ = select.select([alarm.fd], [], [], 5)
    assert readable
    assert now_ns() >= due_ns
    alarm.clear()
    assert select.select([alarm.fd], [], [], 0)[0] == []
    alarm.set(1)  # long past: rings at once
    assert select.select([alarm.fd], [], [], 1)[0]
    alarm.close()
