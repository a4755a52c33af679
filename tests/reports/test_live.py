from __future__ import annotations

import io
import time
from dataclasses import replace

import numpy as np
from rich.console import Console

from loadgen.drive import Progress
from reports.live import LiveView, percentiles

MIDWAY = Progress(
    elapsed_s=12.0,
    num_planned=600,
    num_sent=240,
    num_in_flight=7,
    num_ended=233,
    outcomes={"ok": 230, "http_status": 2, "reset": 1},
    output_tokens=8400,
    recent_send_lag_s=(0.0001, 0.0002),
    recent_ttft_s=(0.03, 0.04, 0.05),
    recent_itl_s=(0.010, 0.011, 0.060),
    is_draining=False,
)


def console(*, is_terminal: bool) -> Console:
    return Console(
        file=io.StringIO(),
        width=80,
        force_terminal=is_terminal,
        color_system=None,
        _environ={"TERM": "xterm"},
    )


def shown(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_without_a_terminal_a_line_comes_every_five_seconds() -> None:
    screen = console(is_terminal=False)
    with LiveView(plan_requests=600, duration_s=30, console=screen) as view:
        for tenth in range(120):
            view.update(replace(MIDWAY, elapsed_s=tenth / 10))
    lines = shown(screen).splitlines()
    assert [line.split(",")[0] for line in lines] == ["5 s of 30 s", "10 s of 30 s"]
    assert "\x1b" not in shown(screen)


def test_past_the_end_of_the_plan_it_is_no_part_of_it() -> None:
    screen = console(is_terminal=False)
    with LiveView(plan_requests=600, duration_s=4, console=screen) as view:
        view.update(replace(MIDWAY, elapsed_s=5))
    assert shown(screen).startswith("5 s, all was due in 4 s, sent")


def test_a_line_says_counts_failures_rate_and_percentiles() -> None:
    screen = console(is_terminal=False)
    with LiveView(plan_requests=600, duration_s=30, console=screen) as view:
        view.update(MIDWAY)
    assert shown(screen) == (
        "12 s of 30 s, sent 240 of 600, in flight 7, ended 233, failed 3 (http_status 2, reset 1), "
        "700 tok/s, TTFT p50 40.0 ms p99 50.0 ms, ITL p50 11.0 ms p99 60.0 ms\n"
    )


def test_on_a_terminal_a_panel_is_drawn_and_taken_away() -> None:
    screen = console(is_terminal=True)
    with LiveView(plan_requests=600, duration_s=30, console=screen) as view:
        view.update(MIDWAY)
        panel = shown(screen)
    assert "sent 240 of 600" in panel
    assert "p99 60.0 ms" in panel
    assert "18 s to go" in panel
    assert "VALID so far" in panel
    assert "INVALID" not in panel
    assert shown(screen).endswith("\x1b[2K")


def test_a_client_that_is_late_is_told_while_it_runs() -> None:
    late = replace(MIDWAY, recent_send_lag_s=(0.0001, 0.03))
    for is_terminal in (True, False):
        screen = console(is_terminal=is_terminal)
        with LiveView(plan_requests=600, duration_s=30, console=screen) as view:
            view.update(late)
            assert "INVALID so far, client_late: requests left late (send lag p99 30 ms)" in shown(screen)


def test_a_limit_that_was_given_is_the_one_that_counts() -> None:
    screen = console(is_terminal=False)
    late = replace(MIDWAY, recent_send_lag_s=(0.03,))
    with LiveView(plan_requests=600, duration_s=30, max_send_lag_s=0.05, console=screen) as view:
        view.update(late)
    assert "INVALID" not in shown(screen)


def test_quiet_is_silent() -> None:
    for is_terminal in (True, False):
        screen = console(is_terminal=is_terminal)
        with LiveView(plan_requests=600, duration_s=30, is_quiet=True, console=screen) as view:
            view.update(MIDWAY)
        assert shown(screen) == ""


def test_a_metric_without_samples_is_left_out() -> None:
    assert percentiles(replace(MIDWAY, recent_ttft_s=())) == {"ITL": (0.011, 0.06)}


def test_the_live_view_takes_less_than_two_percent_of_a_core() -> None:
    rng = np.random.default_rng(0)
    busy = replace(
        MIDWAY,
        recent_ttft_s=tuple(rng.lognormal(-3, 0.5, 1000).tolist()),
        recent_itl_s=tuple(rng.lognormal(-4, 0.5, 10_000).tolist()),
    )
    with LiveView(plan_requests=600, duration_s=30, console=console(is_terminal=True)) as view:
        view.update(busy)
        start = time.process_time()
        for tenth in range(1, 300):
            view.update(replace(busy, elapsed_s=12 + tenth / 10))
        used_s = time.process_time() - start
    assert used_s / 30 < 0.02
