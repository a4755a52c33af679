"""The summary of a run on a terminal: the verdict first, then what users got, then where to look next.

Renders what summary.json says, within the console's width; decides layout and colour only. Rich drops the
colour where the console is no terminal or NO_COLOR is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports import words
from reports.causes import inferred_sentences, tail_sentences
from reports.live import LiveView
from reports.quantities import choose_time_unit, format_count, format_time, sparkline
from reports.subject import Subject

if TYPE_CHECKING:
    from loadgen.store import Run

__all__ = ["LiveView", "print_summary"]

STATISTICS = ("p50", "p90", "p99", "max")
WIDE_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
SPARK_COLUMNS = 40
MAX_FAILURE_LINES = 6
COLOURS = {"reason": "red", "finding": "yellow", "warning": "yellow"}


def print_summary(run: Run, console: Console, *, wide: bool = False) -> None:
    """Print the run's verdict, rates, latency table, failures and where the data went."""
    subject = Subject.of(run)
    summary = subject.summary
    _print_verdict(run, summary, console)
    console.print()
    console.print(_rates(summary))
    console.print()
    console.print(_latency_table(summary["metrics"], WIDE_STATISTICS if wide else STATISTICS, wide))
    _print_causes(summary, console)
    _print_shapes(subject, console)
    _print_failures(run, summary, console)
    _print_context(run, summary, console)


def _print_verdict(run: Run, summary: words.Json, console: Console) -> None:
    status = words.status(summary)
    head = Text()
    head.append(f" {status} ", style="bold white on dark_green" if status == "VALID" else "bold white on red")
    head.append(f" {run.path.name}", style="bold")
    if words.is_simulated(run.manifest):
        head.append(f"  {words.claim(run.manifest, summary)}", style="bold yellow")
    console.print(head)
    _print_indented(console, Text(words.answer(summary)))
    for notice in words.notices(summary):
        line = Text()
        line.append(f"{notice.severity} {notice.code}", style=f"bold {COLOURS[notice.severity]}")
        line.append(f": {notice.message}")
        _print_indented(console, line)
        if notice.advice:
            _print_indented(console, Text(notice.advice), 4)


def _rates(summary: words.Json) -> Padding:
    table = Table.grid(padding=(0, 3, 0, 0))
    pairs = words.rate_pairs(summary)
    for _ in pairs:
        table.add_column()
    table.add_row(*(Text(name, style="dim") for name, _ in pairs))
    table.add_row(*(Text(value) for _, value in pairs))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _latency_table(metrics: Mapping[str, Any], statistics: tuple[str, ...], wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", min_width=10)
    table.add_column("unit")
    for statistic in statistics:
        table.add_column(statistic, justify="right", min_width=7)
    if wide:
        table.add_column("p99 interval", justify="right")
    table.add_column("n", justify="right", style="dim")
    for name, label in words.LATENCY_ROWS.items():
        metric = metrics.get(name) or {}
        values = [metric.get(statistic) for statistic in statistics]
        unit = choose_time_unit(values)
        cells = [words.cell(metric, statistic, unit) for statistic in statistics]
        if wide:
            cells.append(words.interval(metric, "p99", unit))
        style = "dim" if name in ("send_lag_s", "recv_lag_s") else ""
        table.add_row(f"  {label}", unit.name, *cells, format_count(metric.get("n", 0)), style=style)
    return table


def _print_causes(summary: words.Json, console: Console) -> None:
    sentences, heading = tail_sentences(summary), "what sets the slowest 1 % apart"
    if not sentences:
        sentences, heading = inferred_sentences(summary), f"{heading}: inferred from outside"
    if not sentences:
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=10, no_wrap=True)
    grid.add_column()
    for label, sentence in sentences:
        grid.add_row(Text(f"  {label}", style="bold"), Text(sentence))
    console.print()
    _print_indented(console, Text(heading, style="dim"))
    console.print(grid)


def _print_shapes(subject: Subject, console: Console) -> None:
    from loadgen.measure import series

    grid = Table.grid(padding=(0, 1, 0, 0))
    for _ in range(4):
        grid.add_column()
    for name in ("ttft_s", "itl_s"):
        histogram = series.log_histogram(subject.measured.samples[name], SPARK_COLUMNS)
        if histogram is None:
            continue
        low, high = format_time(histogram.edges_s[0]), format_time(histogram.edges_s[-1])
        bars = Text(sparkline(histogram.counts), style="cyan")
        grid.add_row(f"  {words.LATENCY_ROWS[name]}", Text(low, justify="right"), bars, high)
    if grid.row_count:
        console.print()
        console.print(grid)


def _print_failures(run: Run, summary: words.Json, console: Console) -> None:
    if not summary["counts"].get("failed"):
        return

    console.print()
    _print_indented(console, Text("failures", style="dim"))
    failures = words.failure_rows(run)
    for failure in failures[:MAX_FAILURE_LINES]:
        line = Text(f"{format_count(failure.count):>7}  ")
        line.append(failure.label, style="bold")
        if failure.error:
            line.append(f": {failure.error}")
        _print_indented(console, line)
    rest = failures[MAX_FAILURE_LINES:]
    if rest:
        num_rest = sum(failure.count for failure in rest)
        _print_indented(
            console, Text(f"{format_count(num_rest):>7}  of {len(rest)} further kinds, in the report")
        )


def _print_context(run: Run, summary: words.Json, console: Console) -> None:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=10, no_wrap=True)
    grid.add_column()
    for name, text in words.context_lines(run.manifest, summary):
        grid.add_row(Text(f"  {name}", style="dim"), Text(text))
    console.print()
    if grid.row_count:
        console.print(grid)
    # One line each, never wrapped: they are there to be copied.
    console.print(Text(f"  data     {run.path}"), soft_wrap=True)
    console.print(Text(f"  next     bench report {run.path}"), soft_wrap=True)


def _print_indented(console: Console, text: Text, columns: int = 2) -> None:
    console.print(Padding(text, (0, 0, 0, columns), expand=False))
