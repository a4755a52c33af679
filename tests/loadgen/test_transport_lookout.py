"""What a loop knows of the time before it reads: by looks, by sleeps, and by the waits that it is told of."""

from __future__ import annotations

import pytest

from loadgen.transport import lookout as module
from loadgen.transport.lookout import FIRST_SLACK_NS, LEAST_SLACK_NS, NOTES_BETWEEN, Lookout

ASKED_NS, WOKE_NS = 1_000_000, 50_000_000


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the process has waited for a processor, as the system would say; the clock stands still."""
    total = [0]
    monkeypatch.setattr(module, "now_ns", lambda: WOKE_NS)
    monkeypatch.setattr("os.pread", lambda *_: b"123 %d 4\n" % total[0])
    return total


def test_what_a_poll_did_not_report_came_after_it() -> None:
    it = Lookout()
    it.looked(100)
    it.looked(200)
    assert (it.since_ns, it.looked_ns) == (100, 200)


def test_a_poll_that_could_not_report_all_says_nothing_of_the_others() -> None:
    it = Lookout()
    it.looked(100)
    it.looked(200, is_whole=False)
    it.looked(300)
    assert it.since_ns == 100


@pytest.mark.usefixtures("waited")
def test_what_ends_a_sleep_came_within_the_wake_up() -> None:
    it = Lookout()
    it.woke(ASKED_NS)
    assert it.since_ns == it.looked_ns == WOKE_NS - FIRST_SLACK_NS


def test_a_wait_for_a_processor_widens_the_bound_as_far_as_the_sleep(waited: list[int]) -> None:
    it = Lookout()
    waited[0] = 30_000_000
    it.woke(ASKED_NS)
    assert it.since_ns == WOKE_NS - 30_000_000 - FIRST_SLACK_NS
    it.woke(ASKED_NS)  # waited no longer than before
    assert it.since_ns == WOKE_NS - FIRST_SLACK_NS
    waited[0] = 90_000_000  # more than the sleep itself: it waited before, too
    it.woke(ASKED_NS)
    assert it.since_ns == ASKED_NS


def test_where_no_waits_are_told_it_came_after_the_look_before_the_sleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SCHEDSTAT", "/nowhere")
    monkeypatch.setattr(module, "now_ns", lambda: WOKE_NS)
    it = Lookout()
    it.woke(ASKED_NS)
    assert it.since_ns == it.looked_ns == ASKED_NS
    for _ in range(NOTES_BETWEEN):  # until wake-ups have shown how long they take, waits and all
        it.woke(ASKED_NS)
        it.learn(WOKE_NS - 3_000_000)
    it.woke(ASKED_NS)
    assert WOKE_NS - 6_000_000 <= it.since_ns <= WOKE_NS - 3_000_000


def test_the_slack_follows_what_wake_ups_take_beside_the_wait(waited: list[int]) -> None:
    it = Lookout()
    for number in range(20 * NOTES_BETWEEN):
        waited[0] += 5_000_000
        it.woke(ASKED_NS)
        it.learn(WOKE_NS - 5_000_000 - (700_000 if number % 100 == 0 else 20_000))
    assert 700_000 <= it.slack_ns < 1_400_000
    quick = Lookout()
    for _ in range(NOTES_BETWEEN):
        quick.woke(ASKED_NS)
        quick.learn(WOKE_NS - 1_000)
        quick.learn(WOKE_NS - 9_000_000)  # the second read of a turn says nothing about the wake-up
    assert quick.slack_ns == LEAST_SLACK_NS
