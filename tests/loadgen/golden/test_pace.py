"""When the golden server writes what: on the beat, with jitter, several events at once."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.golden.pace import GoldenConfig, Pace, Write


def writes_of(pace: Pace, num_events: int, arrived_ns: int = 0) -> list[tuple[int, int]]:
    """Instant and size of every write of one answer."""
    due_ns, found = pace.first_due_ns(arrived_ns), []
    while num_events:
        write: Write = pace.next_write(due_ns, num_events)
        found.append((write.due_ns, write.num_events))
        due_ns, num_events = write.following_ns, num_events - write.num_events
    return found


def test_each_event_is_a_write_of_its_own_on_the_beat() -> None:
    assert writes_of(Pace(GoldenConfig(ttft_ns=20, gap_ns=10)), 3, 5) == [(25, 1), (35, 1), (45, 1)]


def test_in_steps_the_first_waits_for_the_beat_of_all() -> None:
    assert writes_of(Pace(GoldenConfig(ttft_ns=20, gap_ns=10, in_steps=True)), 2, 5) == [(30, 1), (40, 1)]


def test_several_events_leave_when_the_last_of_them_is_due() -> None:
    pace = Pace(GoldenConfig(ttft_ns=20, gap_ns=10, events_per_write=3))
    assert writes_of(pace, 7) == [(40, 3), (70, 3), (80, 1)]


def test_a_buffer_holds_an_event_back_and_takes_along_what_comes_meanwhile() -> None:
    pace = Pace(GoldenConfig(ttft_ns=20, gap_ns=10, buffer_ns=25))
    assert writes_of(pace, 5) == [(45, 3), (75, 2)]


def test_jitter_has_a_median_of_one_and_is_the_same_for_the_same_seed() -> None:
    config = GoldenConfig(ttft_ns=1_000_000, gap_ns=1_000_000, jitter=0.5, seed=3)
    gaps = np.diff([at for at, _ in writes_of(Pace(config), 4_000)])
    assert np.median(gaps) == pytest.approx(1_000_000, rel=0.05)
    assert np.log(gaps / 1e6).std() == pytest.approx(0.5, rel=0.05)
    assert writes_of(Pace(config), 9) == writes_of(Pace(config), 9)
