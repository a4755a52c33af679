"""Every check twice: a measurement on which it fires, and one on which it does not."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.measure import remarks
from loadgen.measure import verdict as checks
from loadgen.measure.arrivals import Arrivals, ArrivalTest
from loadgen.measure.columns import Floats, Window
from loadgen.measure.verdict import Notice
from loadgen.measure.window import choose_window
from loadgen.records import Outcome
from tests.loadgen.queues import fifo_waits
from tests.loadgen.rows import codes, make_columns


def code_of(notice: Notice | None) -> str | None:
    if notice is not None:
        assert notice.message.endswith(".")
        assert notice.advice.endswith(".")
    return None if notice is None else notice.code


def test_arrivals_mismatch() -> None:
    def arrivals(effect: float, p: float | None) -> Arrivals:
        test = ArrivalTest(name="rate", value=15.0, expected=20.0, effect=effect, effect_limit=0.02, p=p)
        return Arrivals(asked="poisson at 20 /s", rate_per_s=15.0, gap_cv=1.0, tests=(test,))

    notice = checks.arrivals_mismatch(arrivals(-0.25, 1e-9))
    assert code_of(notice) == "arrivals_mismatch"
    assert "poisson at 20 /s" in str(notice)
    assert code_of(checks.arrivals_mismatch(arrivals(-0.25, None))) == "arrivals_mismatch"
    assert checks.arrivals_mismatch(arrivals(-0.25, 0.01)) is None
    assert checks.arrivals_mismatch(arrivals(-0.01, 1e-9)) is None


def test_too_few_samples_says_how_many_would_do() -> None:
    notice = checks.too_few_samples("ttft.p99", 0.99, 6.0, 600)
    assert code_of(notice) == "too_few_samples"
    assert notice is not None
    assert "1000 requests" in notice.advice
    assert code_of(checks.too_few_samples("ttft.p99", 0.99, None, 0)) == "too_few_samples"
    assert checks.too_few_samples("ttft.p50", 0.5, 300.0, 600) is None


@pytest.mark.parametrize(("is_steady", "expected"), [(False, "not_steady"), (True, None), (None, None)])
def test_not_steady(is_steady: bool | None, expected: str | None) -> None:
    assert code_of(checks.not_steady(Window(start_ns=0, end_ns=1e9, is_steady=is_steady))) == expected


def is_steady(waits_s: Floats, due_s: Floats) -> bool | None:
    first, last = 1e9 * (due_s + waits_s + 0.02), 1e9 * (due_s + waits_s + 0.2)
    columns = make_columns(
        len(due_s),
        scheduled_ns=1e9 * due_s,
        sent_ns=1e9 * due_s,
        first_token_ns=first,
        last_token_ns=last,
        done_ns=last,
    )
    return choose_window(columns, None, float(due_s[-1]) * 1e9).is_steady


@pytest.mark.parametrize(("num_requests", "most", "most_missed"), [(100, 5, 40), (600, 1, 10)])
def test_a_stationary_queue_is_steady_and_one_above_its_capacity_is_not(
    num_requests: int, most: int, most_missed: int
) -> None:
    rng = np.random.default_rng(11)
    accused = missed = 0
    for _ in range(200):
        gaps, services = rng.exponential(0.05, num_requests), rng.exponential(0.025, num_requests)
        accused += is_steady(fifo_waits(gaps, services), np.cumsum(gaps)) is False
        missed += is_steady(fifo_waits(gaps, 3 * services), np.cumsum(gaps)) is not False
    assert accused <= most
    assert missed <= most_missed


def test_token_mismatch_of_outputs_is_exact() -> None:
    short = np.full(200, 20.0)
    short[:2] = 19
    assert checks.token_mismatch(make_columns(200, output_tokens=short)) is None
    short[2] = 19
    assert code_of(checks.token_mismatch(make_columns(200, output_tokens=short))) == "token_mismatch"


def test_token_mismatch_of_prompts_has_a_slack() -> None:
    assert checks.token_mismatch(make_columns(50, prompt_tokens=102.0)) is None
    assert code_of(checks.token_mismatch(make_columns(50, prompt_tokens=103.0))) == "token_mismatch"
    assert checks.token_mismatch(make_columns(50, prompt_tokens=1010.0, prompt_tokens_planned=1000.0)) is None


def test_unknown_tokens_are_no_mismatch_but_a_warning() -> None:
    columns = make_columns(50, prompt_tokens=np.nan, output_tokens=np.nan)
    assert checks.token_mismatch(columns) is None
    assert code_of(remarks.tokens_unknown(columns.output_tokens)) == "tokens_unknown"
    assert remarks.tokens_unknown(make_columns(5).output_tokens) is None


def test_tokens_of_failed_requests_do_not_count() -> None:
    failed = make_columns(50, output_tokens=3.0, outcome_code=codes([Outcome.TRUNCATED])[0])
    assert checks.token_mismatch(failed) is None


def test_prefix_contaminated_beyond_the_template_and_the_plan() -> None:
    nothing = np.zeros(50)
    assert checks.prefix_contaminated(make_columns(50, cached_tokens=32.0), nothing) is None
    assert checks.prefix_contaminated(make_columns(50), nothing) is None
    warm = make_columns(50, cached_tokens=96.0)
    assert code_of(checks.prefix_contaminated(warm, nothing)) == "prefix_contaminated"
    assert checks.prefix_contaminated(warm, np.full(50, 64.0)) is None


def test_clock_stepped() -> None:
    notice = checks.clock_stepped(13, 2e6, 25e6)
    assert code_of(notice) == "clock_stepped"
    assert notice is not None
    assert "13 times" in notice.message
    assert "25 ms in all and 2 ms at once" in notice.message
    assert checks.clock_stepped(0, 100.0, 100.0) is None
    assert checks.clock_stepped(40, 0.3e6, 12e6) is None  # no stamp is off by more than 0.3 ms


def test_target_died() -> None:
    outcomes = [Outcome.OK] * 40 + [Outcome.RESET] * 3 + [Outcome.CONNECT_FAILED] * 7
    refused = make_columns(50, outcome_code=codes(outcomes))
    assert checks.target_died(refused, is_alive_at_end=True) is None  # whoever is there has not died
    notice = checks.target_died(refused, is_alive_at_end=False)
    assert code_of(notice) == "target_died"
    assert notice is not None
    assert "40.0 s into the run" in notice.message
    healthy = make_columns(50)
    assert checks.target_died(healthy, is_alive_at_end=True) is None
    assert code_of(checks.target_died(healthy, is_alive_at_end=False)) == "target_died"
    idle = checks.target_died(healthy, is_alive_at_end=False)
    assert idle is not None
    assert "no request came after that" in idle.message


def test_interrupted() -> None:
    assert code_of(checks.interrupted("interrupted")) == "interrupted"
    for status in ("complete", "failed", "running"):
        assert checks.interrupted(status) is None


def test_failed() -> None:
    for status in ("failed", "running"):
        assert code_of(checks.failed(status, ())) == "failed"
    for status in ("complete", "interrupted"):
        assert checks.failed(status, ()) is None
        broke = checks.failed(status, ("worker 1: MemoryError.",))
        assert code_of(broke) == "failed"
        assert "MemoryError" in str(broke)


def test_no_answers() -> None:
    window = Window(start_ns=0.0, end_ns=50e9)
    assert checks.no_answers(1, make_columns(50), window) is None
    refused = make_columns(50, outcome_code=codes([Outcome.HTTP_STATUS])[0])
    assert code_of(checks.no_answers(0, refused, window)) == "no_answers"
    assert "none of 50 requests" in str(checks.no_answers(0, refused, window))
    assert "none of the 50 good answers" in str(checks.no_answers(0, make_columns(50), window))
    over = Window(start_ns=15e9, end_ns=2e9)
    assert "before its warm-up of 15 s did" in str(checks.no_answers(0, make_columns(50), over))
    assert "nothing was scheduled" in str(checks.no_answers(0, make_columns(0), window))


@pytest.mark.parametrize("limit", ["EMFILE", "ENFILE", "EADDRNOTAVAIL", "ENOBUFS", "ENOMEM"])
def test_what_this_machine_lacked_is_named_and_not_held_against_the_target(limit: str) -> None:
    words = f"{limit}: in the system's words"
    notice = checks.client_exhausted({words: 30, "ECONNREFUSED: Connection refused": 9}, 400)
    assert code_of(notice) == "client_exhausted"
    assert notice is not None
    assert f"30 of 400 requests could not leave, by no fault of the target: {words}" in notice.message
    assert checks.client_exhausted({"ECONNREFUSED: Connection refused": 9}, 400) is None
    assert checks.client_exhausted({}, 400) is None


def test_failures_by_kind() -> None:
    notice = remarks.failures({"ok": 588, "stalled": 2, "http_status": 10})
    assert code_of(notice) == "failures"
    assert notice is not None
    assert notice.message == "12 of 600 requests failed (2 %): 10 http_status, 2 stalled."
    assert remarks.failures({"ok": 600}) is None


def test_warnings() -> None:
    assert code_of(remarks.closed_loop(8, None)) == "closed_loop"
    assert code_of(remarks.closed_loop(None, 64)) == "closed_loop"
    assert remarks.closed_loop(None, None) is None
    assert code_of(remarks.no_first_token(np.array([1.0, np.nan]))) == "no_first_token"
    assert remarks.no_first_token(np.array([1.0])) is None
    assert code_of(remarks.cpu_pressure(35.0)) == "cpu_pressure"
    assert remarks.cpu_pressure(5.0) is None
    assert remarks.cpu_pressure(None) is None
