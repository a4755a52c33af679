"""The main job, end to end, as a user types it: a real engine process, real sockets, a real run folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import loadgen
from loadgen.records import column_names
from tests.loadgen.answering import MODELS, completions, server

ROOT = Path(__file__).parent.parent
BUSY_MACHINE = {"client_late", "client_slow"}  # what a machine shared with other work may be told

pytestmark = [pytest.mark.engine, pytest.mark.load]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from loadgen.cli import main; main()", *arguments]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def bench(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=110
    )


def only_run(folder: Path) -> loadgen.Run:
    (manifest,) = folder.glob("runs/*/manifest.json")
    return loadgen.load(manifest.parent)


def reason_codes(run: loadgen.Run) -> set[str]:
    assert run.summary is not None
    return {reason["code"] for reason in run.summary["verdict"]["reasons"]}


def assert_every_row_is_there(run: loadgen.Run) -> None:
    assert list(run.requests["index"]) == list(range(len(run.plan)))
    assert list(run.requests.columns) == column_names()
    assert run.summary is not None
    assert sum(run.summary["counts"]["by_outcome"].values()) == len(run.plan)


def test_one_command_measures_the_reference_engine(tmp_path: Path) -> None:
    done = bench(tmp_path, "run", "--rate", "10", "--dist", "lognormal", "--duration", "4s", "--json")
    run = only_run(tmp_path)
    assert run.summary is not None
    assert reason_codes(run) <= BUSY_MACHINE, done.stderr
    assert done.returncode == (3 if reason_codes(run) else 0), done.stderr
    printed = json.loads(done.stdout)
    assert printed.pop("folder") == str(run.path.relative_to(tmp_path))
    assert printed == run.summary
    assert_every_row_is_there(run)
    rows = run.requests
    assert set(rows["outcome"]) == {"ok"}
    assert (rows["output_tokens"] == rows["output_tokens_planned"]).all()
    assert (rows["prompt_tokens"] == rows["prompt_tokens_planned"]).all()
    assert run.steps is not None
    assert 0 < run.summary["engine"]["busy_fraction"] < 1
    assert run.summary["arrivals"]["asked"] == "poisson at 10 /s"
    assert run.manifest["status"] == "complete"
    assert run.manifest["config"]["rate"] == {"value": 10.0, "origin": "flag"}
    page = bench(tmp_path, "report")
    assert page.returncode == 0, page.stderr
    assert (tmp_path / page.stdout.strip()).read_text().startswith("<!doctype html>")


def test_what_the_client_stamped_is_what_the_engine_logged(tmp_path: Path) -> None:
    bench(tmp_path, "run", "--rate", "10", "--duration", "3s", "--json")
    run = only_run(tmp_path)
    engine = __import__("pandas").read_parquet(run.path / "engine_requests.parquet")
    seen = run.requests.assign(request_id=[f"{run.path.name}-{index}" for index in run.requests["index"]])
    both = seen.merge(engine, left_on="request_id", right_on="server_request_id", suffixes=("", "_engine"))
    assert len(both) == len(run.requests)
    # cause before effect, on one clock: sent, arrived, computed, received
    assert (both["sent_ns"] <= both["arrived_ns"]).all()
    assert (both["first_token_ns_engine"] <= both["first_token_ns"]).all()
    assert (both["finished_ns"] <= both["done_ns"]).all()
    assert (both["output_tokens"] == both["output_tokens_engine"]).all()


def test_any_server_is_measured_by_its_url(tmp_path: Path) -> None:
    ready, write = os.pipe()
    serve = subprocess.Popen(
        command("serve", "--port", "0", "--ready-fd", str(write)),
        pass_fds=[write],
        env=environment(),
        cwd=tmp_path,
    )
    os.close(write)
    with os.fdopen(ready) as said, stopping(serve):
        url = f"http://127.0.0.1:{json.loads(said.readline())['port']}"
        for api in ("completions", "chat"):
            done = bench(
                tmp_path,
                "run",
                "--target",
                url,
                "--api",
                api,
                "--rate",
                "8",
                "--duration",
                "2s",
                "--name",
                api,
            )
            (folder,) = tmp_path.glob(f"runs/*-{api}")
            run = loadgen.load(folder)
            assert reason_codes(run) <= BUSY_MACHINE, done.stdout + done.stderr
            assert set(run.requests["outcome"]) == {"ok"}
            assert (run.requests["prompt_tokens"] == run.requests["prompt_tokens_planned"]).mean() > 0.9


@contextmanager
def stopping(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(30) == 0


def started(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a run and return once it sends, with its folder."""
    process = subprocess.Popen(
        command("run", *arguments),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if streams := list(folder.glob("runs/*/requests-*.arrows")):
            return process, streams[0].parent
        time.sleep(0.05)
    pytest.fail(f"the run did not start: {process.communicate()}")


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "terminate"]
)
def test_a_stopped_run_leaves_a_complete_marked_folder(tmp_path: Path, signum: int, code: int) -> None:
    process, folder = started(tmp_path, "--rate", "10", "--duration", "60s")
    time.sleep(1.5)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    run = loadgen.load(folder)
    assert run.manifest["status"] == "interrupted"
    assert "interrupted" in reason_codes(run)
    assert "INVALID" in out
    assert_every_row_is_there(run)
    assert set(run.requests["outcome"]) <= {"ok", "cancelled", "unsent"}
    assert (run.requests["outcome"] == "ok").sum() >= 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_a_second_signal_insists_and_the_first_names_the_exit_code(tmp_path: Path, signum: int) -> None:
    process, folder = started(tmp_path, "--rate", "10", "--duration", "60s")
    time.sleep(0.5)
    process.send_signal(signum)
    time.sleep(0.05)  # two that come together are told in the order of their numbers
    process.send_signal(signal.SIGINT if signum == signal.SIGTERM else signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if signum == signal.SIGINT else 143), err
    assert "Traceback" not in err
    run = loadgen.load(folder)
    assert run.manifest["status"] == "interrupted"
    assert list(run.requests["index"]) == list(range(len(run.plan)))


def test_a_dead_server_leaves_a_complete_marked_folder(tmp_path: Path) -> None:
    process, folder = started(tmp_path, "--rate", "10", "--duration", "60s")
    time.sleep(1.5)
    engine = json.loads((folder / "manifest.json").read_text())["target"]["engine"]
    os.kill(engine["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    run = loadgen.load(folder)
    assert process.returncode == 3, err
    assert "target_died" in reason_codes(run)
    assert "target_died" in out
    assert_every_row_is_there(run)
    assert (run.requests["outcome"] == "ok").sum() >= 1


def digest(folder: Path, url: str, hash_seed: str, seed: str) -> str:
    name = f"s{seed}-{hash_seed}"
    load = ("--rate", "30", "--duration", "1s", "--seed", seed)
    bench(folder, "run", "--target", url, *load, "--name", name, PYTHONHASHSEED=hash_seed)
    (manifest,) = folder.glob(f"runs/*-{name}/manifest.json")
    return str(json.loads(manifest.read_text())["plan_digest"])


def test_the_same_seed_gives_the_same_plan_in_any_process(tmp_path: Path) -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        first = digest(tmp_path, url, "1", "7")
        assert digest(tmp_path, url, "2", "7") == first
        assert digest(tmp_path, url, "1", "8") != first


def test_a_recorded_minute_is_replayed_with_every_row_accounted_for(tmp_path: Path) -> None:
    traces = os.environ.get("BENCH_TRACES")
    if not traces:
        pytest.skip("BENCH_TRACES is not set: no recorded traces to replay")
    trace = str(Path(traces) / "azure_llm_2023_conv.csv.gz")
    # twelve times as fast: a minute of production in five seconds
    speed: Sequence[str] = ("--trace-speed", "12", "--length-scale", "0.02")
    done = bench(tmp_path, "run", "--trace", trace, "--trace-window", "0:60s", *speed)
    run = only_run(tmp_path)
    found = run.manifest["plan"]["trace"]
    rows = found["rows"]
    assert rows["read"] == rows["kept"] + sum(rows["dropped"].values())
    assert rows["kept"] == len(run.plan) == len(run.requests)
    assert str(rows["kept"]) in done.stdout, done.stdout + done.stderr
    assert_every_row_is_there(run)
