"""How often the main job ends VALID: `python -m benchmarks.main_job [--times 20] [--servers DIR]`.

The command of `make run`, the Azure minute (BENCH_TRACES is a folder that holds its trace), and runs against
the real servers that tests/real_servers/install.sh has put into DIR, each as a user types it and beside
whatever else the machine does. With --paired each is made twice, with and without real-time scheduling of
its load processes, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadgen.measurement import CpuPressure
from loadgen.target import ServerProcess
from tests.real_servers.engines import READY_S, engines

BENCH = (sys.executable, "-c", "from loadgen.cli import main; main()", "run")
MAIN = ("--rate", "20", "--dist", "lognormal")
AZURE = ("--trace-window", "0:60s", "--length-scale", "0.1")
REAL_S = "20s"


def measure(flags: tuple[str, ...]) -> dict[str, Any]:
    """Make one run and return its summary."""
    with tempfile.TemporaryDirectory() as out:
        command = [*BENCH, "--out", out, "--quiet", "--json", *flags]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def repeat(name: str, flags: tuple[str, ...], times: int, *, is_paired: bool) -> Iterator[str]:
    """Make the runs, a line each, and then a line for all of them."""
    arms: dict[str, tuple[str, ...]] = {"": ()}
    if is_paired:
        arms["without real time"] = ("--no-realtime",)
    seen: dict[str, Counter[str]] = {arm: Counter() for arm in arms}
    for number in range(times):
        for arm, more in arms.items():
            pressure, stolen_s = CpuPressure(), read_stolen_s()
            summary = measure((*flags, *more))
            stolen_s = read_stolen_s() - stolen_s
            codes = ", ".join(reason["code"] for reason in summary["verdict"]["reasons"])
            seen[arm][codes or "VALID"] += 1
            figures = "  ".join(
                f"{metric[:-2]}.{one} {show(summary['metrics'][metric], one)}"
                for metric in ("ttft_s", "itl_s")
                for one in ("p50", "p99")
            )
            lag_ms = 1e3 * (summary["metrics"]["send_lag_s"]["p99"] or 0)
            yield (
                f"  {number + 1:3} {codes or 'VALID':12} {figures}  send lag p99 {lag_ms:.3f} ms, "
                f"{summary['load']['scheduling']}, CPU pressure {pressure.percent() or 0:.0f} %, "
                f"{stolen_s:.2f} s taken from the virtual machine  {arm}"
            )
    for arm, codes_seen in seen.items():
        told = ", ".join(f"{n} {code}" for code, n in codes_seen.most_common())
        yield f"{name} {arm}: {told} of {times}"


def read_stolen_s() -> float:
    """Processor time that the host gave to others while this machine wanted it; since its start."""
    return int(Path("/proc/stat").read_text().split(None, 10)[8]) / os.sysconf("SC_CLK_TCK")


def show(metric: dict[str, Any], statistic: str) -> str:
    """`3.2 [3.0, 3.2]`: a figure in ms and where its error lets it lie."""
    value, error = metric[statistic], metric["error"].get(statistic)
    if value is None or error is None:
        return "-"
    return f"{1e3 * value:.3g} [{1e3 * error[0]:.3g}, {1e3 * error[1]:.3g}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--servers", type=Path, help="measure the real servers in this folder, too")
    parser.add_argument("--paired", action="store_true")
    parser.add_argument("--only", choices=("main", "azure", "real"))
    asked = parser.parse_args()
    jobs: list[tuple[str, tuple[str, ...]]] = [("main", MAIN)]
    if traces := os.environ.get("BENCH_TRACES"):
        jobs.append(("azure", ("--trace", f"{traces}/azure_llm_2023_conv.csv.gz", *AZURE)))
    for name, flags in jobs:
        if asked.only in (None, name):
            print(f"{name}: bench run {' '.join(flags)}", flush=True)
            for line in repeat(name, flags, asked.times, is_paired=asked.paired):
                print(line, flush=True)
    if asked.servers is None or asked.only not in (None, "real"):
        return
    for name, engine in engines(asked.servers.resolve()).items():
        with ExitStack() as stack, tempfile.TemporaryDirectory() as logs:
            server = ServerProcess(engine.command, log=Path(logs) / "server.log")
            stack.callback(server.stop)
            server.wait_answers(engine.health_url, READY_S)
            flags = ("--target", engine.url, "--rate", str(engine.rate), "--duration", REAL_S)
            print(f"{name}: bench run {' '.join(flags)}", flush=True)
            for line in repeat(name, flags, asked.times, is_paired=asked.paired):
                print(line, flush=True)


if __name__ == "__main__":
    main()
