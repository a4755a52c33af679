"""Real engines, measured end to end by `bench run` and checked against what they say of themselves.

Not collected by default: `make test-servers` installs the engines (see install.sh) and runs this file.
SERVERS is the folder that they are in. On a busy machine a run may be told that its client was late; all else
holds.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import loadgen
from loadgen.store import Run
from loadgen.target import ServerProcess
from tests.real_servers.engines import READY_S, Engine, engines
from tests.test_main_job import BUSY_MACHINE, bench

SERVERS = Path(os.environ["SERVERS"]).resolve()
MAX_SHARE = 0.25
MAX_HTTP_S = {"ttft_s": 0.02, "e2e_s": 0.02, "itl_s": 0.002}  # what its HTTP side may add on a busy machine
pytestmark = [pytest.mark.load, pytest.mark.timeout(600)]


ENGINES = engines(SERVERS)
CASES = [(name, api) for name, engine in ENGINES.items() for api in engine.apis]


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, ServerProcess]]:
    """Engines that have been started; each is when it is first asked for, and all end with the module."""
    processes: dict[str, ServerProcess] = {}
    yield processes
    for process in processes.values():
        process.stop()


def ensure(running: dict[str, ServerProcess], name: str, log: Path) -> Engine:
    engine = ENGINES[name]
    if name not in running:
        running[name] = ServerProcess(engine.command, log=log)
        running[name].wait_answers(engine.health_url, READY_S)
    return engine


def measure(folder: Path, engine: Engine, api: str) -> Run:
    done = bench(
        folder,
        *("run", "--target", engine.url, "--api", api, "--rate", str(engine.rate), "--requests", "40"),
        *("--input-tokens", "lognormal(median=64,p99=128)"),  # longer than any template
        *("--json", "--probe-timeout", "20s"),
    )
    assert done.returncode in (0, 3), done.stderr
    return loadgen.load(folder / json.loads(done.stdout)["folder"])


def page(engine: Engine) -> dict[str, float]:
    with urllib.request.urlopen(f"{engine.url}/metrics") as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^([\w:]+) ([0-9.e+]+)$", text, re.MULTILINE)}


@pytest.mark.parametrize(("name", "api"), CASES)
def test_counts_and_times_agree(
    name: str, api: str, running: dict[str, ServerProcess], tmp_path: Path
) -> None:
    engine = ensure(running, name, tmp_path / "server.log")
    before = page(engine) if name == "llama-server" else {}
    run = measure(tmp_path, engine, api)
    summary, rows = run.summary, run.requests
    assert summary is not None
    assert {reason["code"] for reason in summary["verdict"]["reasons"]} <= BUSY_MACHINE
    assert summary["counts"]["ok"] == 40
    assert (rows["prompt_tokens"] == rows["prompt_tokens_planned"]).all()
    assert (rows["output_tokens_source"] == "usage").all()
    if engine.ignores_eos:
        assert (rows["output_tokens"] == rows["output_tokens_planned"]).all()
    else:
        assert (rows["output_tokens"] <= rows["output_tokens_planned"]).all()
    report(name, api, run)
    if not engine.has_metrics:
        return
    seen: dict[str, Any] = summary["server"]
    assert seen["num_resets"] == 0
    assert seen["counters"]["prompt_tokens"] == rows["prompt_tokens"].sum()
    assert seen["counters"]["output_tokens"] == rows["output_tokens"].sum()
    for metric, view in seen["histograms"].items():
        if view.get("client"):
            assert view["n"] == view["client"]["n"], metric
            slack_s = view["client"]["mean"] - view["client"].get("mean_lower", view["client"]["mean"])
            limit_s = MAX_SHARE * view["mean"] + MAX_HTTP_S[metric] + slack_s
            assert abs(view["difference_s"]) < limit_s, metric
    if name == "llama-server":
        check_llama_s_own_times(before, engine, run)


def check_llama_s_own_times(before: dict[str, float], engine: Engine, run: Run) -> None:
    """Its seconds of prompt and generation, probes included, beside ours from the send to the last token."""
    after, rows = page(engine), run.requests
    names = ("llamacpp:prompt_seconds_total", "llamacpp:tokens_predicted_seconds_total")
    theirs_s = sum(after[name] - before[name] for name in names)
    ours_s = float((rows["last_token_ns"] - rows["sent_ns"]).sum()) / 1e9
    print(f"llama-server: {theirs_s:.2f} s of work by its own count, {ours_s:.2f} s by ours")
    assert 0.9 * theirs_s < ours_s < 1.5 * theirs_s + 1.0


def report(name: str, api: str, run: Run) -> None:
    """What goes into the table of docs/endpoints.md."""
    assert run.summary is not None
    rows, seen = run.requests, run.summary["server"].get("histograms", {})
    known = rows["chunk_tokens"].map(lambda tokens: all(t is not None and t == t for t in tokens)).mean()
    prompts, outputs, asked = (
        rows[column].sum() for column in ("prompt_tokens", "output_tokens", "output_tokens_planned")
    )
    print(
        f"\n{name} {api}: {prompts} prompt and {outputs} output tokens of {asked}; "
        f"tokens of each event known in {known:.0%} of the answers; "
        f"connections reused for {rows['connection_reused'].mean():.0%}"
    )
    for metric, view in seen.items():
        if view.get("client"):
            print(f"  {metric}: server {view['mean']:.5f} ({view['n']}), ours {view['client']['mean']:.5f}")
    print("  ", run.manifest["target"]["notes"])


def test_a_server_started_by_the_command_line(tmp_path: Path) -> None:
    engine = ENGINES["llama-server"]
    command = " ".join(engine.command).replace(str(engine.port), "8112")
    done = bench(
        tmp_path,
        *("run", "--cmd", command, "--ready-url", "http://127.0.0.1:8112/health", "--rate", "8"),
        *("--requests", "20", "--json"),
    )
    assert done.returncode in (0, 3), done.stderr
    summary = json.loads(done.stdout)
    assert summary["counts"]["ok"] == 20
    assert summary["server"]["gauges"]["process_rss_bytes"]["max"] > 1e7
    assert (tmp_path / summary["folder"] / "server.log").stat().st_size > 0
