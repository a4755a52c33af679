"""Simulated against live: the same plans under the same policies, the cost model fitted on another workload.

`python -m benchmarks.simulated_vs_live` takes five minutes of a quiet machine and prints the table of
docs/simulation.md: for each policy and rate the live figure in milliseconds and the deviation of the
simulated one, and whether it is within the goal: 10 % where the live engine was busy less than 80 % of the
time, 25 % above. `--profile FILE` writes the cost model fitted there, as reference_engine/profiles holds it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from reference_engine.fit import fit_folder

BENCH = (sys.executable, "-c", "from loadgen.cli import main; main()", "run")
POLICIES = "vllm-v1,sarathi,vllm-v0,sglang,static"
FIGURES = (("ttft_s", "p50"), ("ttft_s", "p99"), ("itl_s", "p50"), ("itl_s", "p99"))
# In bursts, so that the steps seen have from one to many requests in them.
FIT = (
    *("--arrival", "gamma(cv=4)"),
    *("--input-tokens", "lognormal(median=100,p99=800)", "--output-tokens", "lognormal(median=50,p99=250)"),
)
FIT_RATE = "16"
BELOW, GOAL_BELOW, GOAL_ABOVE = 0.8, 0.10, 0.25

Summary = dict[str, Any]


def measure(out: Path, *flags: str) -> tuple[Summary, Path]:
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


def deviations(live: Summary, simulated: Summary) -> list[tuple[float, float]]:
    """Return each figure as it was live, in seconds, and the relative deviation of the simulated one."""
    pairs = [
        [run["metrics"][metric][statistic] for run in (live, simulated)] for metric, statistic in FIGURES
    ]
    return [(seen, told / seen - 1) for seen, told in pairs if seen and told is not None]


def ranking(rows: dict[str, Summary], metric: str) -> list[str]:
    return sorted(rows, key=lambda policy: rows[policy]["metrics"][metric]["p50"] or 0.0)


def fit(out: Path, seconds: float, profile: Path | None) -> Path:
    """Measure another workload than those compared; return its folder, and write its profile where asked."""
    summary, folder = measure(out, "--rate", FIT_RATE, "--duration", f"{seconds}s", "--name", "fit", *FIT)
    fitted = fit_folder(folder)
    print(f"fitted at {FIT_RATE} /s, CPU pressure {pressure(folder)}; held out: {fitted.held_out}")
    residual = summary["attribution"]["residual_fraction"]
    print(f"residual: {100 * residual:.1f} % of the summed E2E of that run\n")
    if profile is not None:
        notes = (
            "one thread of torch, random weights of shape tiny, prompts of 100, answers of 50 tokens at the"
            f" median, {FIT_RATE} requests/s in bursts for {seconds:g} s; CPU pressure {pressure(folder)}."
            " Steps that something else disturbed are left out of the fit, but not of the held-out error."
        )
        named = msgspec.structs.replace(fitted, name=profile.stem, notes=notes)
        profile.write_bytes(msgspec.json.format(msgspec.json.encode(named), indent=2) + b"\n")
    return folder


def compare_at(
    rate: str, policies: list[str], out: Path, seconds: float, fitted: Path
) -> tuple[list[bool], list[str]]:
    """Print a row for each policy; return what was within its goal, and sentences about the order."""
    live_by: dict[str, Summary] = {}
    simulated_by: dict[str, Summary] = {}
    passed = []
    for policy in policies:
        flags = ("--rate", rate, "--duration", f"{seconds}s", "--policy", policy, "--warmup", "2s")
        live, folder = measure(out, *flags, "--name", "live")
        simulated, _ = measure(out, *flags, "--name", "sim", "--simulate", "--cost", str(fitted))
        live_by[policy], simulated_by[policy] = live, simulated
        busy = live["engine"]["busy_fraction"]
        goal = GOAL_BELOW if busy < BELOW else GOAL_ABOVE
        found = deviations(live, simulated)
        within = [abs(deviation) <= goal for _, deviation in found]
        cells = [
            f"{seen * 1e3:.2f} ({deviation * 100:+.0f} %{'' if is_in else ' **!**'})"
            for (seen, deviation), is_in in zip(found, within, strict=True)
        ]
        verdict = f"{sum(within)} of {len(within)} in {goal:.0%}"
        row = [policy, rate, f"{busy:.0%}", *cells, verdict, pressure(folder)]
        print(f"| {' | '.join(row)} |", flush=True)
        passed += within
    sentences = []
    for metric in ("ttft_s", "e2e_s"):
        orders = [ranking(by, metric) for by in (live_by, simulated_by)]
        same = "the same order simulated" if orders[0] == orders[1] else f"simulated {' < '.join(orders[1])}"
        sentences.append(f"{rate} /s, by median {metric}: live {' < '.join(orders[0])}; {same}.")
    return passed, sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="20,60")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--profile", type=Path, help="write the fitted cost model here")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="simulated-vs-live-"))
    fitted = fit(out, args.seconds, args.profile)
    names = [f"{metric.removesuffix('_s').upper()} {statistic}, ms" for metric, statistic in FIGURES]
    head = ["policy", "rate /s", "engine busy", *names, "within the goal", "CPU pressure"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    passed: list[bool] = []
    said: list[str] = []
    for rate in args.rates.split(","):
        within, sentences = compare_at(rate, args.policies.split(","), out, args.seconds, fitted)
        passed += within
        said += sentences
    print("", *said, sep="\n")
    print(f"\n{sum(passed)} of {len(passed)} figures are within their goal.")
    print(f"runs: {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
