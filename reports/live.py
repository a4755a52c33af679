"""What a run looks like while it goes: a small panel on a terminal, a plain line now and then elsewhere.

Draws on stderr from the drive's own messages, twice a second at most, and keeps no clock: time is what the
messages say. Figures come from requests that have ended, so that no live stream waits for a drawing.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reports.quantities import format_count, format_duration, format_number, format_time, sparkline

if TYPE_CHECKING:
    from loadgen.drive import Progress

DRAW_INTERVAL_S = 0.5
LINE_INTERVAL_S = 5.0
RATE_WINDOW_S = 5.0
CHART_COLUMNS = 30


class LiveView:
    """Shows progress between `__enter__` and `__exit__`; `update` is the drive's `on_progress`."""

    def __init__(
        self,
        *,
        plan_requests: int,
        duration_s: float,
        max_send_lag_s: float | None = None,
        is_quiet: bool = False,
        console: Console | None = None,
    ) -> None:
        self._console = console or Console(stderr=True, quiet=is_quiet)
        self._plan_requests = plan_requests
        self._duration_s = duration_s
        self._max_send_lag_s = max_send_lag_s
        self._is_quiet = is_quiet
        self._live: Live | None = None
        if self._console.is_terminal and not is_quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._next_draw_s = 0.0 if self._live else LINE_INTERVAL_S
        self._tokens: deque[tuple[float, int]] = deque([(0.0, 0)])
        self._p99_us: dict[str, deque[int]] = {name: deque(maxlen=CHART_COLUMNS) for name in ("TTFT", "ITL")}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: Progress) -> None:
        """Take a message of the drive; draw it if the last drawing is old enough."""
        if self._is_quiet or progress.elapsed_s < self._next_draw_s:
            return
        if self._live is not None:
            self._next_draw_s = progress.elapsed_s + DRAW_INTERVAL_S
            self._live.update(self._panel(progress), refresh=True)
        else:
            self._next_draw_s = progress.elapsed_s + LINE_INTERVAL_S
            self._console.print(Text(self._line(progress)), soft_wrap=True)

    def _token_rate(self, progress: Progress) -> float:
        """Output tokens per second of the requests that ended in the last few seconds."""
        self._tokens.append((progress.elapsed_s, progress.output_tokens))
        while len(self._tokens) > 2 and self._tokens[1][0] <= progress.elapsed_s - RATE_WINDOW_S:
            self._tokens.popleft()
        start_s, start_tokens = self._tokens[0]
        return (progress.output_tokens - start_tokens) / max(progress.elapsed_s - start_s, 1e-9)

    def _line(self, progress: Progress) -> str:
        latencies = [
            f"{name} p50 {format_time(p50)} p99 {format_time(p99)}"
            for name, (p50, p99) in percentiles(progress).items()
        ]
        parts = [
            self._elapsed(progress, ".0f"),
            *(f"{name} {value}" for name, value in self._counts(progress)),
            f"{format_number(self._token_rate(progress))} tok/s",
            *latencies,
        ]
        late = self._late(progress)
        parts += ["draining"] * progress.is_draining + [f"INVALID so far, {late}"] * bool(late)
        return ", ".join(parts)

    def _elapsed(self, progress: Progress, digits: str) -> str:
        """`5 s of 30 s`; past the end of the plan, where requests are waited for, no share of it."""
        elapsed, planned = f"{progress.elapsed_s:{digits}} s", format_duration(self._duration_s)
        is_over = progress.elapsed_s > self._duration_s
        return f"{elapsed}, all was due in {planned}" if is_over else f"{elapsed} of {planned}"

    def _late(self, progress: Progress) -> str:
        """Why the measurement would be invalid if it ended now; empty where it would not."""
        from loadgen.measure.error import Figure, client_late

        if not progress.recent_send_lag_s:
            return ""
        lag_s = percentile(progress.recent_send_lag_s, 0.99)
        ttft_s = percentile(progress.recent_ttft_s, 0.99) if progress.recent_ttft_s else lag_s
        ttft = Figure(
            label="ttft.p99", value=ttft_s, range=(max(ttft_s - lag_s, 0), ttft_s), is_spoilt_by_sends=True
        )
        notice = client_late([] if ttft.is_sure else [ttft], lag_s, limit_s=self._max_send_lag_s)
        return f"{notice.code}: {notice.message.rstrip('.')}" if notice else ""

    def _counts(self, progress: Progress) -> list[tuple[str, str]]:
        failed = {kind: n for kind, n in progress.outcomes.items() if kind != "ok" and n}
        kinds = ", ".join(f"{kind} {format_count(n)}" for kind, n in failed.items())
        failures = format_count(sum(failed.values())) + (f" ({kinds})" if kinds else "")
        return [
            ("sent", f"{format_count(progress.num_sent)} of {format_count(self._plan_requests)}"),
            ("in flight", format_count(progress.num_in_flight)),
            ("ended", format_count(progress.num_ended)),
            ("failed", failures),
        ]

    def _panel(self, progress: Progress) -> Group:
        done = min(progress.elapsed_s, self._duration_s)
        left_s = max(self._duration_s - progress.elapsed_s, 0.0)
        head = Table.grid(padding=(0, 2, 0, 0))
        state = "draining" if progress.is_draining else f"{format_duration(round(left_s))} to go"
        head.add_row(
            Text(f"  {self._elapsed(progress, '5.1f')}"),
            ProgressBar(total=max(self._duration_s, 1e-9), completed=done, width=36, complete_style="cyan"),
            Text(state, style="dim"),
        )
        counts = Text("  ")
        for name, value in self._counts(progress):
            counts.append(f"{name} ", style="dim")
            is_bad = name == "failed" and not value.startswith("0")
            counts.append(f"{value}   ", style="red" if is_bad else "")
        counts.append(f"{format_number(self._token_rate(progress))} tok/s")
        chart = Table.grid(padding=(0, 2, 0, 0))
        for name, (p50, p99) in percentiles(progress).items():
            history = self._p99_us[name]
            history.append(round(p99 * 1e6))
            cells = (f"  {name:<4}", f"p50 {format_time(p50)}", f"p99 {format_time(p99)}")
            chart.add_row(*map(Text, cells), Text(sparkline(list(history)), style="cyan"))
        late = self._late(progress)
        verdict = (
            Text(f"  INVALID so far, {late}", style="red") if late else Text("  VALID so far", style="green")
        )
        return Group(head, counts, chart, verdict)


def percentiles(progress: Progress) -> dict[str, tuple[float, float]]:
    """p50 and p99 of the latest samples, by metric; a metric without samples is left out."""
    samples = {"TTFT": progress.recent_ttft_s, "ITL": progress.recent_itl_s}
    return {
        name: (percentile(values, 0.5), percentile(values, 0.99))
        for name, values in samples.items()
        if values
    }


def percentile(values: tuple[float, ...], share: float) -> float:
    """A quantile of samples, by the rule of all quantiles."""
    from loadgen.stats.quantile import quantiles

    return quantiles(np.array(values, np.float64), [share])[0]
