"""Simulated against live: the same plans under the same policies, the cost model fitted on another workload.

`python -m benchmarks.simulated_vs_live --rates 20,60 --seconds 20` prints a Markdown table: for each policy
and rate the live figure, the deviation of the simulated one, and how much of the time some task waited for a
processor (a live engine that has to share its core is not what a simulation describes).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BENCH = (sys.executable, "-c", "from loadgen.cli import main; main()", "run")
POLICIES = ("vllm-v1", "sarathi", "vllm-v0", "sglang", "static")
FIGURES = (("ttft_s", "p50"), ("ttft_s", "p99"), ("itl_s", "p50"), ("itl_s", "p99"))
FIT = ("--input-tokens", "lognormal(median=150,p99=900)", "--output-tokens", "lognormal(median=60,p99=300)")


def measure(out: Path, *flags: str) -> tuple[dict[str, Any], Path]:
    """Make one run and return its summary and its folder."""
    command = [*BENCH, "--out", str(out), "--json", "--quiet", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    summary = json.loads(done.stdout)
    return summary, Path(summary["folder"])


def pressure(folder: Path) -> str:
    percent = json.loads((folder / "manifest.json").read_text())["cpu_pressure_percent"]
    return "unknown" if percent is None else f"{percent:.0f} %"


def compare(live: dict[str, Any], simulated: dict[str, Any]) -> list[str]:
    """Return a cell per figure: the live value in milliseconds, and the simulated one's deviation."""
    cells = []
    for metric, statistic in FIGURES:
        seen, told = (run["metrics"][metric][statistic] for run in (live, simulated))
        cells.append(f"{seen * 1e3:.2f} ({(told / seen - 1) * 100:+.0f} %)" if seen and told else "-")
    return cells


def ranking(rows: dict[str, dict[str, Any]], metric: str) -> list[str]:
    return sorted(rows, key=lambda policy: rows[policy]["metrics"][metric]["p50"] or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="20,60")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="simulated-vs-live-"))
    _, fitted = measure(out, "--rate", "10", "--duration", f"{args.seconds}s", "--name", "fit", *FIT)
    names = " | ".join(f"{metric.removesuffix('_s').upper()} {stat}, ms" for metric, stat in FIGURES)
    print(f"| policy | rate /s | {names} | CPU pressure |\n|{'---|' * (len(FIGURES) + 3)}", flush=True)
    for rate in args.rates.split(","):
        live_by, simulated_by = {}, {}
        for policy in POLICIES:
            flags = ("--rate", rate, "--duration", f"{args.seconds}s", "--policy", policy, "--warmup", "2s")
            live, folder = measure(out, *flags, "--name", "live")
            simulated, _ = measure(out, *flags, "--name", "sim", "--simulate", "--cost", str(fitted))
            live_by[policy], simulated_by[policy] = live, simulated
            cells = " | ".join(compare(live, simulated))
            print(f"| {policy} | {rate} | {cells} | {pressure(folder)} |", flush=True)
        for metric in ("ttft_s", "e2e_s"):
            live_order, simulated_order = ranking(live_by, metric), ranking(simulated_by, metric)
            word = "the same" if live_order == simulated_order else "another"
            print(
                f"\n{rate} /s, by median {metric}: live {' < '.join(live_order)}; simulated in {word} order:"
                f" {' < '.join(simulated_order)}\n"
            )
    print(f"runs: {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
