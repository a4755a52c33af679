"""The client's own speed and truth, as ratios and errors of one run: `python -m benchmarks.client`.

Server on one processor, client on the other, every token a write of its own. Each figure stands beside its
target; a figure counts only where the server itself was punctual to half of it. Figures move with the
machine, ratios less so; docs/accuracy.md keeps a dated copy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.busy import busy_loops, measure_busy
from benchmarks.runs import CLIENT_CPU, SERVER_CPU, Driven, run_bench
from benchmarks.stacks import StackCost, opening_s
from loadgen.golden.judge import quantile_ms
from loadgen.golden.process import GOLDEN, Int64, start_server
from loadgen.measurement import CpuPressure

NULL = "tests.servers.null"
ON_SERVER_CPU = ("--cpu", str(SERVER_CPU))
COST_TOKENS_PER_S = 2_500
MUST_KEEP_UP_TOKENS_PER_S = 20_000
STILL_PAIRS = 5
LENGTHS = ("--dist", "fixed", "--input-tokens", "32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value; `is_met` is None where there is no target or the server was too late to tell."""

    name: str
    value: float | None
    unit: str
    target: str = ""
    is_met: bool | None = None
    note: str = ""

    def render(self) -> str:
        """Return the figure as one line."""
        mark = {True: "met", False: "MISSED", None: ""}[self.is_met]
        value = "-" if self.value is None else f"{self.value:,.4g}"
        return f"  {self.name:58} {value:>10} {self.unit:9} {self.target:14} {mark:7} {self.note}".rstrip()


def below(name: str, value: float | None, limit: float, unit: str, note: str = "") -> Figure:
    """A figure that is to stay below a limit."""
    is_met = None if value is None else value < limit
    return Figure(name=name, value=value, unit=unit, target=f"< {limit:g}", is_met=is_met, note=note)


def error_figure(name: str, errors_ns: Int64, limit_ms: float, driven: Driven) -> Figure:
    """A p99 error, judged only where the server was punctual enough to tell."""
    assert driven.errors is not None
    value = quantile_ms(errors_ns, 0.99)
    late_ms = quantile_ms(driven.errors.lateness_ns, 0.99)
    note = f"server late by {late_ms:.3g} ms p99" if late_ms is not None else ""
    if value is None or late_ms is None or late_ms > max(value, limit_ms) / 2:
        return Figure(
            name=name, value=value, unit="ms", target=f"< {limit_ms:g}", note=f"{note}: does not count"
        )
    return below(name, value, limit_ms, "ms", note)


def measure_cost() -> Iterator[Figure]:
    """CPU per streamed token of three clients, tokens evenly spread and in steps as an engine writes them."""
    for num_streams, num_tokens in ((64, 150), (512, 30)):
        for regime in ("spread", "steps"):
            costs = {
                stack: measure_stack(stack, num_streams, num_tokens, regime)
                for stack in ("bench", "aiohttp", "httpx")
            }
            where = f"{num_streams} streams, {regime}"
            for cost in costs.values():
                parse = (
                    ""
                    if cost.parse_us_per_event is None
                    else f", parsing later {cost.parse_us_per_event:.3g} us"
                )
                note = f"reads per event {cost.reads_per_event:.2f}{parse}"
                yield Figure(
                    name=f"{where}: {cost.stack}", value=cost.cpu_us_per_event, unit="us/token", note=note
                )
            ours = costs["bench"].cpu_us_per_event
            yield below(f"{where}: bench / aiohttp", ours / costs["aiohttp"].cpu_us_per_event, 0.4, "x")
            yield below(f"{where}: bench / httpx", ours / costs["httpx"].cpu_us_per_event, 0.125, "x")


def measure_stack(
    stack: str, num_streams: int, num_tokens: int, regime: str, *, pinned: bool = True
) -> StackCost:
    """Run one stack in a process of its own against a golden server of its own."""
    gap_ms = num_streams / COST_TOKENS_PER_S * 1e3
    ttft_ms = opening_s(num_streams) * 1e3 + 300
    flags = ["--in-steps"] if regime == "steps" else []
    if pinned:
        flags += ON_SERVER_CPU
    with start_server(GOLDEN, "--ttft-ms", f"{ttft_ms}", "--gap-ms", f"{gap_ms}", *flags) as server:
        command = [sys.executable, "-m", "benchmarks.stacks", stack, server.url]
        sizes = ["--streams", f"{num_streams}", "--tokens", f"{num_tokens}"]
        if pinned:
            sizes += ["--cpu", f"{CLIENT_CPU}"]
        output = subprocess.run([*command, *sizes], stdout=subprocess.PIPE, check=True).stdout
    return StackCost(**json.loads(output))


def measure_accuracy() -> Iterator[Figure]:
    """200 requests/s of 64 tokens, 10 ms apart: what the rows say against what the server wrote down."""
    with start_server(GOLDEN, *ON_SERVER_CPU, "--ttft-ms", "20", "--gap-ms", "10") as server:
        driven = run_bench(server, "--rate", "200", "--duration", "10s", *LENGTHS, "--output-tokens", "64")
    errors = driven.errors
    assert errors is not None
    yield error_figure("200 requests/s: TTFT error p99", errors.ttft_ns, 0.2, driven)
    yield Figure(name="200 requests/s: TTFT error p50", value=quantile_ms(errors.ttft_ns, 0.5), unit="ms")
    yield error_figure("200 requests/s: gap error p99", errors.gap_ns, 0.1, driven)
    yield Figure(name="200 requests/s: gap error p50", value=quantile_ms(errors.gap_ns, 0.5), unit="ms")
    yield Figure(
        name="200 requests/s: events alone in their read", value=errors.alone_fraction * 100, unit="%"
    )
    yield Figure(name="200 requests/s: CPU per token, all in", value=cpu_us_per_token(driven), unit="us")
    yield below("start to first request", driven.start_s, 2.0, "s")
    yield below("peak memory (PSS, all processes)", driven.peak_pss_mb, 200.0, "MB", note=driven.verdict())


def cpu_us_per_token(driven: Driven) -> float:
    """CPU time of the load process per token, sending and parsing included."""
    return float(driven.worker["cpu_s"] / max(driven.worker["num_events"], 1) * 1e6)


def measure_streams() -> Iterator[Figure]:
    """1,000 streams at once, at growing token rates: where the client stops keeping up."""
    for tokens_per_s in (10_000, 20_000, 40_000, 60_000):
        gap_ms = 1000 / tokens_per_s * 1e3
        rate_per_s = tokens_per_s / 64
        with start_server(GOLDEN, *ON_SERVER_CPU, "--ttft-ms", "50", "--gap-ms", f"{gap_ms}") as server:
            flags = ["--rate", f"{rate_per_s}", "--arrival", "constant", "--output-tokens", "64", *LENGTHS]
            driven = run_bench(server, *flags, "--duration", f"{max(8.0, gap_ms * 0.128):g}s")
        errors = driven.errors
        assert errors is not None
        where = f"1,000 streams, {tokens_per_s:,} tokens/s"
        note = f"{driven.worker['peak_in_flight']} in flight, {driven.verdict()}"
        error_ms = quantile_ms(errors.ttft_ns, 0.99)
        is_met = (error_ms is not None and error_ms < 5) or (
            tokens_per_s > MUST_KEEP_UP_TOKENS_PER_S and "client_slow" in driven.verdict()
        )
        target = "< 5" if tokens_per_s <= MUST_KEEP_UP_TOKENS_PER_S else "< 5, or told"
        yield Figure(
            name=f"{where}: TTFT error p99",
            value=error_ms,
            unit="ms",
            target=target,
            is_met=is_met,
            note=note,
        )
        yield Figure(name=f"{where}: gap error p99", value=quantile_ms(errors.gap_ns, 0.99), unit="ms")
        reads, cpu = driven.reads_per_event, cpu_us_per_token(driven)
        note = f"CPU {cpu:.3g} us/token; server late by {quantile_ms(errors.lateness_ns, 0.99):.3g} ms p99"
        target = ">= 0.9" if tokens_per_s <= MUST_KEEP_UP_TOKENS_PER_S else ""
        yield Figure(
            name=f"{where}: reads per event",
            value=reads,
            unit="",
            target=target,
            is_met=reads >= 0.9 if target else None,
            note=note,
        )


def measure_sending() -> Iterator[Figure]:
    """How late requests leave, up to rates that hurt."""
    for rate_per_s in (500, 5_000):
        with start_server(NULL, *ON_SERVER_CPU) as server:
            flags = ["--rate", f"{rate_per_s}", "--duration", "3s", *LENGTHS, "--output-tokens", "1"]
            driven = run_bench(server, *flags, is_logged=False)
        lag_ms, counts = driven.metric_ms("send_lag_s"), driven.summary["counts"]
        note = f"sent {counts['sent']:,} of {counts['scheduled']:,}, {counts['ok']:,} ok, {driven.verdict()}"
        name = f"{rate_per_s:,} requests/s: send lag p99"
        if rate_per_s == 500:
            yield below(name, lag_ms, 1.0, "ms", note)
        else:
            is_met = counts["sent"] == counts["scheduled"] or "client_late" in driven.verdict()
            yield Figure(name=name, value=lag_ms, unit="ms", target="all sent", is_met=is_met, note=note)
        cost = driven.worker["cpu_s"] / max(driven.worker["num_rows"], 1) * 1e6
        yield Figure(name=f"{rate_per_s:,} requests/s: CPU per request", value=cost, unit="us")


def measure_memory() -> Iterator[Figure]:
    """Memory of the load process: per finished request over a long run, per stream in flight."""
    peaks_mb = {}
    for num_requests in (10_000, 100_000):
        with start_server(NULL, *ON_SERVER_CPU, "--writes", "whole") as server:
            flags = ["--rate", "1900", "--requests", f"{num_requests}", *LENGTHS, "--output-tokens", "4"]
            driven = run_bench(server, *flags, is_logged=False)
        peaks_mb[num_requests] = driven.worker["max_rss_bytes"] / 1e6
        note = f"{driven.summary['counts']['ok']:,} ok"
        yield Figure(
            name=f"{num_requests:,} requests: peak of the load process",
            value=peaks_mb[num_requests],
            unit="MB",
            note=note,
        )
    growth = (peaks_mb[100_000] - peaks_mb[10_000]) / 90_000 * 1e6
    yield below("memory per request of the plan, finished or not", growth, 200.0, "bytes")
    peaks = {}
    for num_streams in (100, 2_000):
        with start_server(GOLDEN, *ON_SERVER_CPU, "--ttft-ms", "200", "--gap-ms", "100") as server:
            rate_per_s = num_streams / 6.5
            flags = [
                "--rate",
                f"{rate_per_s}",
                "--arrival",
                "constant",
                "--duration",
                "8s",
                "--output-tokens",
                "64",
            ]
            driven = run_bench(server, *flags, *LENGTHS)
        peaks[driven.worker["peak_in_flight"]] = driven.worker["max_rss_bytes"]
    (few, few_bytes), (many, many_bytes) = sorted(peaks.items())
    per_stream_kb = (many_bytes - few_bytes) / (many - few) / 1e3
    yield Figure(
        name=f"memory per stream of 64 tokens ({few} against {many})", value=per_stream_kb, unit="kB"
    )


def measure_busy_core() -> Iterator[Figure]:
    """The client's processor shared with a busy loop: kernel stamps against the reads of the same run."""
    busy = measure_busy(64, 200, 3_200, (SERVER_CPU, CLIENT_CPU))
    alone = busy.is_alone
    share = float(alone.mean()) * 100
    yield Figure(name="busy core: events alone in their read", value=share, unit="%")
    yield below(
        "busy core: kernel stamp error p99, alone", quantile_ms(busy.kernel_ns[alone], 0.99), 1.0, "ms"
    )
    yield Figure(
        name="busy core: kernel stamp error p99, all", value=quantile_ms(busy.kernel_ns, 0.99), unit="ms"
    )
    yield Figure(name="busy core: error of the read p50", value=quantile_ms(busy.read_ns, 0.5), unit="ms")
    late = f"server late by {quantile_ms(busy.lateness_ns, 0.99):.3g} ms p99"
    yield Figure(
        name="busy core: error of the read p99", value=quantile_ms(busy.read_ns, 0.99), unit="ms", note=late
    )
    flags = ["--rate", "50", "--duration", "6s", *LENGTHS, "--output-tokens", "64"]
    with start_server(GOLDEN, *ON_SERVER_CPU) as server, busy_loops(CLIENT_CPU):
        driven = run_bench(server, *flags)
    lag_ms = driven.metric_ms("recv_lag_s")
    yield Figure(
        name="busy core: `bench run` at 50 requests/s, recv lag p99",
        value=lag_ms,
        unit="ms",
        note=driven.verdict(),
    )


def measure_holding_still() -> Iterator[Figure]:
    """One plan beside busy loops on the client's processor, alternately in real time and not; medians."""
    flags = ["--rate", "50", "--duration", "6s", *LENGTHS, "--output-tokens", "64"]
    for num_loops in (1, 8):
        driven: dict[str, list[Driven]] = {"--realtime": [], "--no-realtime": []}
        for pair in range(STILL_PAIRS):
            for flag in sorted(driven, reverse=bool(pair % 2)):
                with start_server(GOLDEN, *ON_SERVER_CPU) as server, busy_loops(CLIENT_CPU, num_loops):
                    driven[flag].append(run_bench(server, *flags, flag))
        for runs in driven.values():
            where = f"{num_loops} busy loops, {runs[0].worker['scheduling']}"
            verdicts = ", ".join(run.verdict() for run in runs)
            errors = [run.errors for run in runs if run.errors is not None]
            yield spread(f"{where}: TTFT error p99", [quantile_ms(e.ttft_ns, 0.99) for e in errors], verdicts)
            yield spread(f"{where}: gap error p99", [quantile_ms(e.gap_ns, 0.99) for e in errors])
            yield spread(f"{where}: send lag p99", [run.metric_ms("send_lag_s") for run in runs])
            yield spread(f"{where}: ran, CPU", [run.worker["cpu_s"] * 1e3 for run in runs])
            yield spread(f"{where}: waited for it", [(run.worker["wait_s"] or 0.0) * 1e3 for run in runs])
            late = [quantile_ms(e.lateness_ns, 0.99) for e in errors]
            yield spread(f"{where}: server late, p99", late)


def spread(name: str, values_ms: Sequence[float | None], note: str = "") -> Figure:
    """The median of several runs; the note says from where to where they go."""
    known = sorted(value for value in values_ms if value is not None)
    reach = f"{known[0]:.3g} to {known[-1]:.3g}" if known else "not known"
    return Figure(
        name=name,
        value=statistics.median(known) if known else None,
        unit="ms",
        note=f"{reach} {note}".rstrip(),
    )


SECTIONS: dict[str, Callable[[], Iterator[Figure]]] = {
    "cost": measure_cost,
    "accuracy": measure_accuracy,
    "busy": measure_busy_core,
    "still": measure_holding_still,
    "streams": measure_streams,
    "sending": measure_sending,
    "memory": measure_memory,
}


def main() -> None:
    """Measure the sections asked for, all by default, and print every figure as it comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="a section; may be repeated")
    sections = parser.parse_args().only or list(SECTIONS)
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two processors are needed: one for the server, one for the client")
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors")
    for section in sections:
        measure = SECTIONS[section]
        print(f"{section}: {measure.__doc__}")
        pressure = CpuPressure()
        for figure in measure():
            print(figure.render(), flush=True)
        percent = pressure.percent()
        waited = "not told by this system" if percent is None else f"{percent:.0f} % of the time"
        print(f"  CPU pressure meanwhile: {waited}")


if __name__ == "__main__":
    main()
