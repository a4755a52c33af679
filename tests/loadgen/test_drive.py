"""Load processes against servers that record what reached them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from loadgen.drive import Progress
from loadgen.drive.worker import record_of
from loadgen.endpoints.base import ChunkFacts
from loadgen.endpoints.openai import Completions
from loadgen.errors import BenchError, TargetError, UsageError
from loadgen.interpret import PlanRow
from loadgen.priority import StepForward, waited_ns
from loadgen.transport.base import End, Exchange
from tests.loadgen.driving import even_plan, run_drive
from tests.loadgen.scripted import HEAD, ScriptedServer, chunk, serving, stream, token


def answer_soon(sock: socket.socket, _: bytes) -> bool:
    time.sleep(0.02)
    sock.sendall(stream(4))
    return True


def never_answer(sock: socket.socket, _: bytes) -> bool:
    sock.settimeout(30)
    sock.recv(1)
    return False


def request_ids(server: ScriptedServer) -> list[int]:
    """The index at the end of each request's id, in the order of arrival."""
    marker = b"X-Request-Id: "
    lines = [
        line for request in server.requests for line in request.split(b"\r\n") if line.startswith(marker)
    ]
    return [int(line.rpartition(b"-")[2]) for line in lines]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_what_is_sent_is_the_plan_whatever_the_number_of_processes(num_workers: int, tmp_path: Path) -> None:
    plan = even_plan(40, gap_ms=10)
    with serving(answer_soon) as server:
        driven = run_drive(plan, tmp_path, server.url, workers=num_workers, prompt_offset=2)
    assert sorted(request_ids(server)) == list(range(40))
    words = sorted(
        request.partition(b'"prompt":"')[2].partition(b'"')[0].count(b" ") + 1 for request in server.requests
    )
    assert words == [n - 2 for n in range(3, 43)]
    assert driven.outcomes == {"ok": 40}
    assert driven.rows["index"].tolist() == list(range(40))
    assert driven.rows["worker"].tolist() == [i % num_workers for i in range(40)]
    assert driven.rows["scheduled_ns"].tolist() == plan.arrival_ns.tolist()
    assert (driven.rows["sent_ns"] >= driven.rows["scheduled_ns"]).all()
    assert driven.result.load_model == "open loop"
    assert [stats.num_rows for stats in driven.result.workers] == [
        len(range(w, 40, num_workers)) for w in range(num_workers)
    ]
    last = driven.progress[-1]
    assert (last.num_sent, last.num_ended, last.num_in_flight) == (40, 40, 0)
    assert last.output_tokens == 160
    assert len(last.recent_ttft_s) == 40


def test_the_same_plan_gives_the_same_prompts_whatever_the_number_of_processes(tmp_path: Path) -> None:
    bodies = []
    for num_workers in (1, 2):
        with serving(answer_soon) as server:
            run_drive(even_plan(10, gap_ms=2), tmp_path, server.url, workers=num_workers)
            bodies.append(sorted(request.partition(b"\r\n\r\n")[2] for request in server.requests))
    assert bodies[0] == bodies[1]


def test_a_server_that_never_answers_does_not_close_the_loop(tmp_path: Path) -> None:
    plan = even_plan(60, gap_ms=10)
    with serving(never_answer) as server:
        driven = run_drive(plan, tmp_path, server.url, first_token_timeout_s=1.5)
        assert len(server.requests) == 60
    assert driven.outcomes == {"timeout": 60}
    assert driven.result.workers[0].peak_in_flight == 60
    lag_ms = (driven.rows["sent_ns"] - driven.rows["scheduled_ns"]).astype(float) / 1e6
    assert lag_ms.median() < 20
    waited_s = (driven.rows["done_ns"] - driven.rows["sent_ns"]).astype(float) / 1e9
    assert waited_s.min() >= 1.5
    assert driven.rows["error"].str.contains("no token within 1.5 s").all()


def test_a_stalled_stream_ends_though_pings_come(tmp_path: Path) -> None:
    def stall(sock: socket.socket, _: bytes) -> bool:
        sock.sendall(HEAD + chunk(token()))
        for _n in range(100):
            sock.sendall(chunk(b": ping\n\n"))
            time.sleep(0.05)
        return False

    with serving(stall) as server:
        driven = run_drive(even_plan(3, gap_ms=10), tmp_path, server.url, stall_timeout_s=0.4)
    assert driven.outcomes == {"stalled": 3}
    assert [len(stamps) for stamps in driven.rows["chunk_ns"]] == [1, 1, 1]


def test_what_is_in_flight_after_the_drain_is_cancelled_and_says_so(tmp_path: Path) -> None:
    with serving(never_answer) as server:
        driven = run_drive(even_plan(3, gap_ms=10), tmp_path, server.url, drain_timeout_s=0.3)
    assert driven.outcomes == {"cancelled": 3}
    assert driven.rows["error"].str.contains("still in flight 0.3 s after the last request").all()
    assert not driven.result.interrupted


def test_a_run_stopped_midway_has_a_marked_row_for_every_request(tmp_path: Path) -> None:
    stop = threading.Event()

    def after_some(progress: Progress) -> None:
        if progress.num_sent >= 10:
            stop.set()

    def first_few(sock: socket.socket, request: bytes) -> bool:
        is_early = int(request.partition(b"X-Request-Id: ")[2].partition(b"\r\n")[0].rpartition(b"-")[2]) < 4
        return answer_soon(sock, request) if is_early else never_answer(sock, request)

    with serving(first_few) as server:
        begun = time.monotonic()
        driven = run_drive(
            even_plan(300, gap_ms=30), tmp_path, server.url, workers=2, stop=stop, on_progress=after_some
        )
    assert time.monotonic() - begun < 7
    assert driven.result.interrupted
    assert driven.result.worker_errors == []
    assert driven.result.num_rows == len(driven.rows) == 300
    assert driven.outcomes["ok"] == 4
    assert driven.outcomes["cancelled"] >= 6
    assert sum(driven.outcomes.values()) == 300
    unsent = driven.rows[driven.rows["outcome"] == "unsent"]
    assert unsent["sent_ns"].isna().all()
    assert unsent["error"].str.contains("stopped").all()
    assert unsent["worker"].isin([0, 1]).all()


def test_a_run_stopped_before_it_began_sends_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with serving(answer_soon) as server:
        driven = run_drive(even_plan(20, gap_ms=500), tmp_path, server.url, stop=stop)
    assert driven.result.interrupted
    assert driven.outcomes == {"unsent": 20}
    assert driven.rows["scheduled_ns"].tolist() == [n * 500_000_000 for n in range(20)]
    assert server.requests == []


def test_a_killed_load_process_is_noted_and_the_others_go_on(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_one(progress: Progress) -> None:
        if progress.num_ended >= 20 and not killed:
            victim = next(p for p in multiprocessing.active_children() if p.name == "bench-load-1")
            assert victim.pid is not None
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    with serving(answer_soon) as server:
        driven = run_drive(even_plan(150, gap_ms=20), tmp_path, server.url, workers=2, on_progress=kill_one)
    assert killed
    assert len(driven.result.worker_errors) == 1
    assert "load process 1 died (signal 9)" in driven.result.worker_errors[0]
    assert not driven.result.interrupted
    assert len(driven.rows) == 150
    of_the_other = driven.rows[driven.rows["index"] % 2 == 0]
    assert (of_the_other["outcome"] == "ok").all()
    of_the_dead = driven.rows[driven.rows["index"] % 2 == 1]
    assert set(of_the_dead["outcome"]) <= {"ok", "unsent"}
    assert (of_the_dead["outcome"] == "unsent").sum() > 20


def test_ctrl_c_while_load_processes_start_stops_the_run(tmp_path: Path) -> None:
    """The terminal sends it to the whole group, so also to processes that are still importing."""
    script = tmp_path / "parent.py"
    script.write_text(STARTING)
    command = [sys.executable, str(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=60)
    assert (out, err) == (b"interrupted True\n", b"")


STARTING = """
import signal, sys, threading, time
from pathlib import Path
from loadgen.drive import pool
from tests.loadgen.driving import even_plan, run_drive

def main():
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    start = pool.SpawnProcess.start
    def tell(process):
        start(process)
        time.sleep(0.15)  # it is importing now
        print("started", flush=True)
    pool.SpawnProcess.start = tell
    driven = run_drive(even_plan(20, gap_ms=100), Path(sys.argv[1]), "http://127.0.0.1:9", stop=stop)
    print("interrupted", driven.result.interrupted, flush=True)

if __name__ == "__main__":
    main()
"""


PARENT = """
import multiprocessing, sys, threading
from pathlib import Path
from tests.loadgen.driving import even_plan, run_drive

def main():
    def tell(progress):
        print(*(p.pid for p in multiprocessing.active_children()), flush=True)
    run_drive(even_plan(1000, gap_ms=100), Path(sys.argv[2]), sys.argv[1], on_progress=tell)

if __name__ == "__main__":
    main()
"""


def test_load_processes_stop_when_their_parent_is_gone(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with serving(answer_soon) as server:
        command = [sys.executable, str(script), server.url, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
            assert parent.stdout is not None
            worker = int(parent.stdout.readline())
            time.sleep(0.3)
            parent.kill()
        give_up = time.monotonic() + 10
        while is_running(worker):
            assert time.monotonic() < give_up, "the load process goes on without its parent"
            time.sleep(0.05)
    assert list(tmp_path.glob("*/requests-0.arrows"))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class InFlight:
    """Answers after a while, and remembers how many it had at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def __call__(self, sock: socket.socket, request: bytes) -> bool:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.03)
        with self._lock:
            self._now -= 1
        return answer_soon(sock, request)


def test_a_cap_delays_requests_and_charges_them(tmp_path: Path) -> None:
    counter = InFlight()
    plan = even_plan(20, gap_ms=5)
    with serving(counter) as server:
        driven = run_drive(plan, tmp_path, server.url, workers=2, max_in_flight=3)
    assert counter.most <= 3
    assert driven.outcomes == {"ok": 20}
    assert driven.rows["scheduled_ns"].tolist() == plan.arrival_ns.tolist()
    lag_ms = (driven.rows["sent_ns"] - driven.rows["scheduled_ns"]).astype(float) / 1e6
    assert lag_ms.max() > 100
    assert driven.result.load_model == "open loop, capped at 3 in flight"


def test_a_closed_loop_sends_when_one_ends(tmp_path: Path) -> None:
    counter = InFlight()
    with serving(counter) as server:
        driven = run_drive(even_plan(12, gap_ms=60_000), tmp_path, server.url, concurrency=3)
    assert counter.most <= 3
    assert driven.outcomes == {"ok": 12}
    rows = driven.rows.sort_values("scheduled_ns")
    assert (rows["scheduled_ns"].iloc[:3] == 0).all()
    ends = sorted(rows["done_ns"])
    for scheduled_ns, end_ns in zip(rows["scheduled_ns"].iloc[3:], ends, strict=False):
        assert 0 <= scheduled_ns - end_ns < 20_000_000
    assert driven.result.load_model == "closed loop, 3 at a time"


def test_the_portable_transport_drives_the_same_plan(tmp_path: Path) -> None:
    with serving(answer_soon) as server:
        driven = run_drive(even_plan(20, gap_ms=10), tmp_path, server.url, transport="httpx", workers=2)
    assert sorted(request_ids(server)) == list(range(20))
    assert driven.outcomes == {"ok": 20}
    assert set(driven.rows["stamp_source"]) == {"user"}
    assert not driven.result.workers[0].has_kernel_stamps


def test_a_target_that_is_gone_gives_a_failed_row_each(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    driven = run_drive(even_plan(5, gap_ms=5), tmp_path, url)
    assert driven.outcomes == {"connect_failed": 5}
    assert driven.rows["sent_ns"].notna().all()


def test_bad_input_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot find host"):
        run_drive(even_plan(1, gap_ms=1), tmp_path, "http://no-such-host.invalid")
    with pytest.raises(UsageError, match="CA file"):
        run_drive(even_plan(1, gap_ms=1), tmp_path, "https://127.0.0.1:1", ca_file="/nowhere.pem")
    with pytest.raises(BenchError, match=r"load process 0 died .* before the run started"):
        run_drive(even_plan(1, gap_ms=1), tmp_path, "http://127.0.0.1:1", prompts="/nowhere")


class Broken(Completions, frozen=True):
    """An endpoint with a mistake in it."""

    def interpret(self, data: bytes) -> ChunkFacts:
        raise ZeroDivisionError(len(data))


def test_a_mistake_in_reading_an_answer_costs_one_row() -> None:
    exchange = Exchange(
        index=7, request_id="r-7", scheduled_ns=100, sent_ns=150, ended=End.COMPLETE, ended_ns=900
    )
    exchange.chunks, exchange.stamps, exchange.reads_ns = [stream(2)], [800], [810]
    exchange.since_ns = [700]
    row = PlanRow(index=7, prompt_tokens=1, output_tokens=2)
    assert record_of(exchange, Completions(), 0, row).outcome == "ok"
    record = record_of(exchange, Broken(), 0, row)
    assert (record.index, record.outcome, record.scheduled_ns, record.sent_ns) == (7, "malformed", 100, 150)
    assert "ZeroDivisionError" in str(record.error)


LIGHT = """
import sys
import loadgen.drive.process as process
heavy = {"pandas", "matplotlib", "torch", "scipy", "httpx", "typer", "rich", "asyncio"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
sys.meta_path.insert(0, process.WithoutPandas())
from pathlib import Path
from loadgen.records import Outcome, RequestRecord
rows = process.RowWriter(Path(sys.argv[1]))
planned = {"scheduled_ns": 0, "prompt_tokens_planned": 1, "output_tokens_planned": 1}
rows.append(RequestRecord(index=0, outcome=Outcome.OK, **planned))
rows.close()
assert "pandas" not in sys.modules
"""


def test_a_load_process_imports_nothing_heavy(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIGHT, str(tmp_path / "rows.arrows")]
    subprocess.run(command, check=True, timeout=60)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_load_processes_say_how_they_were_scheduled(is_wanted: bool, tmp_path: Path) -> None:
    with StepForward(is_wanted=is_wanted) as granted_here:
        pass
    with serving(answer_soon) as server:
        driven = run_drive(even_plan(5, gap_ms=10), tmp_path, server.url, realtime=is_wanted)
    (stats,) = driven.result.workers
    assert stats.scheduling == granted_here.words
    assert (stats.wait_s is None) == (waited_ns() is None)
    assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER  # never the parent
