"""Is the verdict right? `bench run` in many kinds of run, held against the golden server's log of its writes.

python -m benchmarks.verdicts                  each kind three times, some quarter of an hour
python -m benchmarks.verdicts --only KIND --times 10
python -m benchmarks.verdicts --markdown       the table of docs/accuracy.md; misses one by one on stderr

A figure is *wrong* where it is off by more than max(1 ms, 5 %); a run ought to be invalid where a figure of
its headline would be. Counted: runs that are called valid and show as sure what is wrong, runs that are
called invalid though all their headline is right, and how often the range of a figure held the truth.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kinds import KINDS, Kind
from benchmarks.runs import BENCH, start_bench
from benchmarks.truth import METRICS, PERCENTILES, TRUTH_COLUMNS, Interval, RunOfRows, compute_truth
from loadgen.errors import BenchError
from loadgen.golden.process import GOLDEN, ServerProcess, start_server
from loadgen.measurement import CpuPressure
from loadgen.store import load

TOLERANCE_S = 0.001
TOLERANCE_SHARE = 0.05
HOLD_SLACK_S = 20e-6  # a segment can be stamped that long after the send that took it
HEADLINE = ("ttft_s", "itl_s")  # of each the median, and the highest percentile that it carries
FIGURES = tuple(f"{metric}.{name}" for metric in METRICS for name in PERCENTILES)
OF_THE_CLIENT = ("client_late", "client_slow")
ASKED = ("--dist", "fixed", "--input-tokens", "32", "--workers", "1")
POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One percentile as a run shows it, beside the truth; s. shown: None where the run withholds it."""

    name: str
    shown: float | None
    true: Interval | None
    range: Interval | None = None
    is_sure: bool = True

    def __str__(self) -> str:
        ends = [
            "none" if pair is None else f"{pair[0] * 1e3:.3f} to {pair[1] * 1e3:.3f}"
            for pair in (self.true, self.range)
        ]
        shown = "nothing" if self.shown is None else f"{self.shown * 1e3:.3f} ms"
        sure = "sure" if self.is_sure else "client-limited"
        return f"{self.name} {shown} ({sure}), true {ends[0]}, range {ends[1]}"

    @property
    def error_s(self) -> float | None:
        """How far it lies outside the interval of the truth; None where one of them does not exist."""
        if self.shown is None or self.true is None:
            return None
        low, high = self.true
        return max(low - self.shown, self.shown - high, 0.0)

    @property
    def is_wrong(self) -> bool:
        """Whether it is, taken at face value, off by more than is allowed."""
        error_s = self.error_s
        if error_s is None or self.true is None:
            return False
        return error_s > max(TOLERANCE_S, TOLERANCE_SHARE * self.true[0])

    @property
    def has_held(self) -> bool | None:
        """Whether its range held the truth; None without a range or a truth."""
        if self.range is None or self.true is None:
            return None
        low, high = self.range
        return self.true[0] <= high + HOLD_SLACK_S and self.true[1] >= low - HOLD_SLACK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run: what it said, and its figures beside the truth; headline: the two that it shows of each."""

    kind: Kind
    reasons: tuple[str, ...]
    messages: tuple[str, ...]
    notes: tuple[str, ...]
    figures: dict[str, Figure]
    headline: dict[str, tuple[str, str]]

    @property
    def is_valid(self) -> bool:
        return not self.reasons

    @property
    def wrong(self) -> list[str]:
        """The figures that it calls sure, and that are wrong."""
        return [name for name, figure in self.figures.items() if figure.is_sure and figure.is_wrong]

    @property
    def ought_to_be_invalid(self) -> bool:
        """Whether a figure of the headline is wrong at face value."""
        return any(self.figures[name].is_wrong for pair in self.headline.values() for name in pair)

    @property
    def is_valid_and_wrong(self) -> bool:
        return self.is_valid and bool(self.wrong)

    @property
    def is_invalid_and_right(self) -> bool:
        return not self.is_valid and not self.ought_to_be_invalid

    @property
    def is_client_blamed(self) -> bool:
        return any(code in OF_THE_CLIENT for code in self.reasons)

    @property
    def is_itl_withheld(self) -> bool:
        median = self.figures["itl_s.p50"]  # of an answer in one write there is no true gap either
        return median.shown is None and (median.true is not None or self.kind.bundles)


def judge_summary(kind: Kind, summary: dict[str, Any], truth: dict[str, Interval]) -> Judged:
    """Hold the figures of summary.json against the truth."""
    verdict, figures = summary["verdict"], {}
    for metric in METRICS:
        said = summary["metrics"][metric]
        for name in PERCENTILES:
            found = (said.get("error") or {}).get(name)
            figures[f"{metric}.{name}"] = Figure(
                name=f"{metric}.{name}",
                shown=said[name],
                true=truth.get(f"{metric}.{name}"),
                range=None if found is None else (found[0], found[1]),
                is_sure=name not in (said.get("client_limited") or ()),
            )
    return Judged(
        kind=kind,
        reasons=tuple(notice["code"] for notice in verdict["reasons"]),
        messages=tuple(notice["message"] for notice in verdict["reasons"]),
        notes=tuple(notice["code"] for notice in (*verdict["findings"], *verdict["warnings"])),
        figures=figures,
        headline={
            metric: (f"{metric}.p50", f"{metric}.{summary['metrics'][metric].get('carries', 'p99') or 'p50'}")
            for metric in HEADLINE
        },
    )


def measure_kind(kind: Kind, server: ServerProcess, further: Sequence[str] = ()) -> Judged:
    """Run one kind once; what runs beside begins when the load process is there and ends with its rows."""
    with tempfile.TemporaryDirectory() as out:
        flags = [*ASKED, *kind.bench.split(), *further]
        with start_bench(server, out, *flags, cpus=kind.client_cpus) as process:
            _await_file(process, out, "requests-*.arrows")
            with kind.load_beside():
                _await_file(process, out, "requests.parquet")
            output, _ = process.communicate()
        if not output:
            raise BenchError(f"{kind.name}: bench run ended with exit code {process.returncode}")
        run = load(Path(json.loads(output)["folder"]))
        summary = run.summary or {}
        rows = RunOfRows(
            rows=run.rows.read(TRUTH_COLUMNS),
            run_id=run.path.name,
            epoch_ns=run.manifest["drive"]["epoch_ns"],
            start_ns=round(summary["window"]["start_s"] * 1e9),
            end_ns=round(summary["window"]["end_s"] * 1e9),
            tokens_per_event=kind.tokens_per_event,
        )
        return judge_summary(kind, summary, compute_truth(rows, server.take_log()))


def _await_file(process: subprocess.Popen[bytes], out: str, pattern: str) -> None:
    while process.poll() is None and not any(Path(out).glob(f"*/{pattern}")):
        time.sleep(POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many of so many."""

    num: int
    of: int

    def __str__(self) -> str:
        share = f" ({100 * self.num / self.of:.1f} %)" if self.of else ""
        return f"{self.num} of {self.of}{share}"

    @classmethod
    def counted(cls, answers: Iterable[bool | None]) -> Rate:
        """Count the yes among the answers that are no None."""
        told = [answer for answer in answers if answer is not None]
        return cls(num=sum(told), of=len(told))


def score(judged: Sequence[Judged]) -> list[tuple[str, str, str]]:
    """What the benchmark is for: the name of each rate, its value, and the target."""
    right = [run for run in judged if not run.ought_to_be_invalid]
    bundled = [run for run in judged if run.kind.bundles]
    apart = [run for run in judged if not run.kind.bundles]
    rows = [
        ("said valid and wrong", Rate.counted(r.is_valid_and_wrong for r in judged if r.is_valid), "none"),
        ("said invalid and right", Rate.counted(r.is_invalid_and_right for r in right), "< 2 %"),
        ("of which for the client's timing", Rate.counted(r.is_client_blamed for r in right), ""),
        ("ought to be invalid", Rate.counted(r.ought_to_be_invalid for r in judged), ""),
        (
            "shown as sure and wrong, all figures",
            Rate.counted(f.is_wrong for r in judged for f in r.figures.values() if f.is_sure),
            "none",
        ),
        ("ITL withheld where the server bundles", Rate.counted(r.is_itl_withheld for r in bundled), "all"),
        ("ITL withheld elsewhere", Rate.counted(r.is_itl_withheld for r in apart), "none"),
    ]
    for name in FIGURES:
        held = Rate.counted(run.figures[name].has_held for run in judged)
        rows.append((f"range held the truth: {name.replace('_s.', '.')}", held, ">= 99 %"))
    return [(name, str(rate), target) for name, rate, target in rows]


COLUMNS = ("kind", "valid", "wrong", "TTFT off, p50 / high", "ITL off, p50 / high", "range", "held", "said")


def describe_kind(runs: Sequence[Judged]) -> tuple[str, ...]:
    """One row of the table, in order of COLUMNS; ms. off: the worst of the runs; range: the widest."""
    worst = {
        metric: [_worst(run.figures[run.headline[metric][at]] for run in runs) for at in (0, 1)]
        for metric in HEADLINE
    }
    shown = [run.figures[name] for run in runs for pair in run.headline.values() for name in pair]
    widths = [figure.range[1] - figure.range[0] for figure in shown if figure.range]
    held = Rate.counted(figure.has_held for run in runs for figure in run.figures.values())
    said = Counter(code for run in runs for code in run.reasons)
    said.update(note for run in runs for note in run.notes if note == "sent_together")
    return (
        runs[0].kind.name,
        f"{sum(run.is_valid for run in runs)} of {len(runs)}",
        f"{sum(run.ought_to_be_invalid for run in runs)}",
        *(" / ".join(map(_ms, worst[metric])) for metric in HEADLINE),
        _ms(max(widths, default=None)),
        f"{held.num}/{held.of}" if held.of else "—",
        ", ".join(code if num == len(runs) else f"{code} ({num})" for code, num in said.items()),
    )


def _worst(figures: Iterable[Figure]) -> float | None:
    return max((figure.error_s for figure in figures if figure.error_s is not None), default=None)


def _ms(value_s: float | None) -> str:
    return "—" if value_s is None else f"{value_s * 1e3:.3g}" if value_s >= 1e-6 else "0"


def render_row(cells: Sequence[str], *, is_markdown: bool) -> str:
    """One line of the table."""
    if is_markdown:
        return f"| {' | '.join(cells)} |"
    widths = (44, 8, 6, 20, 20, 8, 8, 0)
    return " ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=False))


def further_flags(kind: Kind, *, can_refuse_realtime: bool) -> list[str]:
    """The flags of a kind that only newer commands have."""
    return [] if kind.is_realtime or not can_refuse_realtime else ["--no-realtime"]


def main() -> None:
    """Run the kinds asked for, all by default; print a row for each as it comes, then the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", help="kinds that have this in their name; may be repeated")
    parser.add_argument("--times", type=int, default=3, help="runs of each kind")
    parser.add_argument("--list", action="store_true", help="name the kinds")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    kinds = [kind for kind in KINDS if not args.only or any(part in kind.name for part in args.only)]
    if args.list:
        print("\n".join(kind.name for kind in kinds))
        return
    wide = {**os.environ, "COLUMNS": "200"}
    told = subprocess.run([*BENCH, "--help"], stdout=subprocess.PIPE, env=wide, check=True).stdout
    can_refuse = b"no-realtime" in told
    print(f"{platform.platform()}, Python {platform.python_version()}; ms\n")
    print(render_row(COLUMNS, is_markdown=args.markdown))
    if args.markdown:
        print(render_row(["---"] * len(COLUMNS), is_markdown=True))
    judged: list[Judged] = []
    broken = []
    pressure = CpuPressure()
    for kind in kinds:
        runs: list[Judged] = []
        further = further_flags(kind, can_refuse_realtime=can_refuse)
        with start_server(GOLDEN, *kind.server_flags) as server:
            for _ in range(args.times):
                try:
                    runs.append(measure_kind(kind, server, further))
                except (BenchError, ValueError) as exc:
                    broken.append(str(exc))
        if runs:
            print(render_row(describe_kind(runs), is_markdown=args.markdown), flush=True)
        judged += runs
    _print_rates(judged, broken, pressure.percent(), is_markdown=args.markdown)


def _print_rates(
    judged: Sequence[Judged], broken: Sequence[str], percent: float | None, *, is_markdown: bool
) -> None:
    print()
    heads = ("in all", f"{len(judged)} runs", "target")
    rows = [heads, ("---",) * 3, *score(judged)] if is_markdown else [heads, *score(judged)]
    for cells in rows:
        print(
            render_row(cells, is_markdown=True) if is_markdown else f"{cells[0]:44} {cells[1]:22} {cells[2]}"
        )
    for run in judged:
        for message in run.messages if run.is_invalid_and_right else ():
            print(f"{run.kind.name}, invalid and right: {message}", file=sys.stderr)
        for name, figure in run.figures.items():
            if name in run.wrong or figure.has_held is False:
                said = "valid" if run.is_valid else "invalid"
                print(f"{run.kind.name}, {said}: {figure}", file=sys.stderr)
    for words in broken:
        print(f"\ndid not run: {words}")
    if percent is not None:
        print(f"\nCPU pressure meanwhile: {percent:.0f} % of the time")
    if broken or any(run.is_valid_and_wrong for run in judged):
        sys.exit(1)


if __name__ == "__main__":
    main()
