"""The reference engine beside real ones on the same tiny model: `python -m benchmarks.peers --servers DIR`.

Tokens per second over HTTP at three concurrencies, 64 tokens in and 64 out as the servers count them, one
thread for each model. All servers run from the start and are measured turn by turn; the others are stopped
(SIGSTOP) meanwhile, so that what disturbs one disturbs all. The client has a processor of its own; what a
server does beside its model may use both. DIR is as tests/real_servers/install.sh leaves it.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.runs import CLIENT_CPU, SERVER_CPU, run_bench
from loadgen.golden.process import ServerProcess as Target
from loadgen.target import ServerProcess
from tests.real_servers.engines import LOCAL, READY_S, Engine, engines

CONCURRENCIES = (1, 8, 32)
WAVES = 5  # of requests at a time; all are equally long, so that they stay together
LENGTHS = ("--dist", "fixed", "--input-tokens", "64", "--output-tokens", "64")
OURS, TRANSFORMERS, EAGER, COMPILED = "reference", "transformers", "vllm eager", "vllm compiled"
Speeds = dict[tuple[str, int], list[float]]


def arms(servers: Path) -> dict[str, Engine]:
    """Return the engines to compare, by the name of their column."""
    real = engines(servers)
    eager = real["vllm"]
    compiled = [arg.replace(str(eager.port), "8104") for arg in eager.args if arg != "--enforce-eager"]
    ours = ["-m", "reference_engine.server", "--model", str(servers / "tiny"), *LOCAL, "8105"]
    return {
        OURS: replace(
            eager,
            program=Path(sys.executable),
            args=[*ours, "--pin-engine", str(SERVER_CPU)],
            port=8105,
            environment={},
        ),
        EAGER: eager,
        COMPILED: replace(eager, args=compiled, port=8104),
        TRANSFORMERS: real["transformers"],
    }


def missing(servers: Path) -> list[str]:
    return [
        str(path)
        for path in (servers / "tiny", *(e.program for e in arms(servers).values()))
        if not path.exists()
    ]


def measure(engine: Engine, concurrency: int) -> float:
    """Return the output tokens per second that the server reported in its answers."""
    driven = run_bench(
        Target(host="127.0.0.1", port=engine.port, pid=0),
        *("--api", "completions", "--concurrency", str(concurrency), "--scrape-interval", "0"),
        *("--requests", str(WAVES * concurrency), "--warmup", "0", *LENGTHS),
        is_logged=False,
    )
    counts = driven.summary["counts"]
    if counts["failed"]:
        sys.exit(
            f"{engine.url} failed {counts['failed']} of {counts['sent']} requests: {counts['by_outcome']}"
        )
    return float(driven.summary["rates"]["output_tokens_per_s"])


def start(engines_by_name: dict[str, Engine], logs: Path, stack: ExitStack) -> dict[str, ServerProcess]:
    """Start all, one after the other; each sleeps once it is ready."""
    running: dict[str, ServerProcess] = {}
    for name, engine in engines_by_name.items():
        process = ServerProcess(
            engine.command, log=logs / f"{engine.port}.log", cpus=(SERVER_CPU, CLIENT_CPU)
        )
        stack.callback(process.stop)
        stack.callback(os.killpg, process.pid, signal.SIGCONT)
        process.wait_answers(engine.health_url, READY_S)
        os.killpg(process.pid, signal.SIGSTOP)
        running[name] = process
        print(f"{name} is ready", flush=True)
    return running


def compare(engines_by_name: dict[str, Engine], rounds: int) -> Speeds:
    """Measure every engine at every concurrency once a round."""
    speeds: Speeds = {(name, n): [] for name in engines_by_name for n in CONCURRENCIES}
    with tempfile.TemporaryDirectory() as logs, ExitStack() as stack:
        running = start(engines_by_name, Path(logs), stack)
        for _ in range(rounds):
            for concurrency in CONCURRENCIES:
                for name, engine in engines_by_name.items():
                    os.killpg(running[name].pid, signal.SIGCONT)
                    speeds[name, concurrency].append(measure(engine, concurrency))
                    os.killpg(running[name].pid, signal.SIGSTOP)
    return speeds


def render(speeds: Speeds) -> Iterator[str]:
    """Yield the table: medians over the rounds, and medians of the ratios within each."""
    names = [name for name, n in speeds if n == CONCURRENCIES[0]]
    yield f"{'tokens/s at concurrency':24}" + "".join(f"{n:>10}" for n in CONCURRENCIES)
    for name in names:
        yield f"{name:24}" + "".join(f"{statistics.median(speeds[name, n]):>10,.0f}" for n in CONCURRENCIES)
    for words, others, target in (
        ("/ transformers", (TRANSFORMERS,), 2.0),
        ("/ vllm, the better", (EAGER, COMPILED), 1.0),
    ):
        ratios = [ratio(speeds, n, others) for n in CONCURRENCIES]
        mark = "met" if min(ratios) >= target else "MISSED"
        yield f"{words:24}" + "".join(f"{r:>10.2f}" for r in ratios) + f"   target {target:g}: {mark}"


def ratio(speeds: Speeds, concurrency: int, others: Sequence[str]) -> float:
    rounds = zip(*(speeds[name, concurrency] for name in (OURS, *others)), strict=True)
    return float(statistics.median(ours / max(theirs) for ours, *theirs in rounds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=Path, default=Path(".servers"))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    servers = args.servers.resolve()
    if absent := missing(servers):
        print(f"not compared with other engines: no {', '.join(absent)}; `make test-servers` installs them")
        return
    for line in render(compare(arms(servers), args.rounds)):
        print(line)


if __name__ == "__main__":
    main()
