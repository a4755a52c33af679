"""A server that bench starts is waited for, watched and stopped, whatever it does."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import TargetError
from loadgen.target import ServerProcess, is_gone
from tests.loadgen.answering import server


def command(code: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        f"import os, signal, sys, time\nfd = int(sys.argv[1])\n{code}",
        "{ready_fd}",
    ]


READY = 'os.write(fd, b\'{"port": 1234, "model": "m"}\\n\')\n'


def test_ready_watched_and_stopped(tmp_path: Path) -> None:
    code = "print('hello', flush=True)\n" + READY + "time.sleep(60)"
    with ServerProcess(command(code), log=tmp_path / "log") as server:
        assert server.wait_ready(30.0)["model"] == "m"
        assert server.url == "http://127.0.0.1:1234"
        assert server.is_alive()
    assert not server.is_alive()
    assert server.last_words() == "hello"


WAY: dict[str, Any] = {"headers": {"X-Tenant": "a"}, "verify": True}


def test_a_target_is_gone_where_nobody_listens_and_not_where_somebody_is_rude(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadgen.target.POLL_S", 0.0)
    with server({"/": (500, "text/plain", b"no")}) as url:
        assert not is_gone(url, **WAY, trust_env=False)
    assert is_gone(url, **WAY, trust_env=False)
    monkeypatch.setattr("loadgen.target.ASK_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not is_gone(address, **WAY, trust_env=False)  # it accepts, and says nothing
        assert not is_gone(address, **WAY, trust_env=False)  # now its backlog is full


def test_a_target_that_a_proxy_alone_reaches_is_asked_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.target.POLL_S", 0.0)
    nobody = "http://127.0.0.1:9"
    with server({f"{nobody}/": (200, "text/plain", b"by way of the proxy")}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        assert not is_gone(nobody, **WAY, trust_env=True)
        assert is_gone(nobody, **WAY, trust_env=False)


def test_a_machine_without_descriptors_cannot_say_that_a_target_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_socket(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", no_socket)
    assert not is_gone("http://127.0.0.1:9", **WAY, trust_env=False)


def test_a_server_that_ends_early_is_told_with_its_last_words(tmp_path: Path) -> None:
    code = "print('no such model')\nsys.exit(7)"
    with (
        ServerProcess(command(code), log=tmp_path / "log") as server,
        pytest.raises(TargetError, match="ended with code 7 before it was ready: no such model"),
    ):
        server.wait_ready(30.0)


def test_a_server_that_is_never_ready_is_told(tmp_path: Path) -> None:
    with (
        ServerProcess(command("time.sleep(60)"), log=tmp_path / "log") as server,
        pytest.raises(TargetError, match="not ready after 0 s.*printed nothing"),
    ):
        server.wait_ready(0.05)
    assert not server.is_alive()


def test_a_server_that_will_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.target.STOP_TIMEOUT_S", 0.2)
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "time.sleep(60)"
    with ServerProcess(command(code), log=tmp_path / "log") as server:
        server.wait_ready(30.0)
    assert not server.is_alive()


def test_ctrl_c_at_the_terminal_does_not_reach_the_server(tmp_path: Path) -> None:
    code = 'os.write(fd, b\'{"port": 1, "session": %d}\\n\' % os.getsid(0))\ntime.sleep(60)'
    with ServerProcess(command(code), log=tmp_path / "log") as server:
        assert server.wait_ready(30.0)["session"] == server.pid


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no sched_setaffinity")
def test_a_server_stays_on_the_processors_it_was_given(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    code = (
        'time.sleep(0.3)\nos.write(fd, b\'{"port": 1, "cpus": [%d]}\\n\' % os.sched_getaffinity(0).pop())\n'
    )
    with ServerProcess(command(code + "time.sleep(60)"), log=tmp_path / "log", cpus=[cpu]) as server:
        assert server.wait_ready(30.0)["cpus"] == [cpu]
        assert os.sched_getaffinity(server.pid) == {cpu}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


SERVE = (
    "from http.server import BaseHTTPRequestHandler, HTTPServer\n"
    "class Answer(BaseHTTPRequestHandler):\n"
    "    count = 0\n"
    "    def do_GET(self):\n"
    "        Answer.count += 1\n"
    "        self.send_response(503 if Answer.count < 3 else 200)\n"
    "        self.end_headers()\n"
    "HTTPServer(('127.0.0.1', int(sys.argv[1])), Answer).serve_forever()\n"
)


def python(code: str, *arguments: object) -> list[str]:
    return [
        sys.executable,
        "-c",
        f"import os, signal, subprocess, sys, time\n{code}",
        *map(str, arguments),
    ]


def test_a_server_is_ready_once_its_url_answers_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.target.POLL_S", 0.01)
    port = free_port()
    with ServerProcess(python(SERVE, port), log=tmp_path / "log") as server:
        server.wait_answers(f"http://127.0.0.1:{port}/health", 30.0)
        assert '"GET /health HTTP/1.1" 200' in (tmp_path / "log").read_text()


def test_a_command_that_ends_before_it_answers_is_told(tmp_path: Path) -> None:
    with (
        ServerProcess(python("print('no weights')\nsys.exit(3)"), log=tmp_path / "log") as server,
        pytest.raises(TargetError, match="ended with code 3 before it was ready: no weights"),
    ):
        server.wait_answers(f"http://127.0.0.1:{free_port()}/", 30.0)


def test_a_command_that_never_answers_is_told(tmp_path: Path) -> None:
    with (
        ServerProcess(python("print('loading', flush=True)\ntime.sleep(60)"), log=tmp_path / "log") as server,
        pytest.raises(TargetError, match="was not ready after 1 s; its last words: loading"),
    ):
        server.wait_answers(f"http://127.0.0.1:{free_port()}/", 1.0)
    assert not server.is_alive()


def test_waiting_ends_when_it_is_to_stop(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with ServerProcess(python("time.sleep(60)"), log=tmp_path / "log") as server:
        server.wait_answers(f"http://127.0.0.1:{free_port()}/", 60.0, stop=stop)
        assert server.is_alive()


def test_a_server_that_is_not_ready_is_not_waited_for_when_it_is_to_stop(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with ServerProcess(command("time.sleep(60)"), log=tmp_path / "log") as server:
        with pytest.raises(KeyboardInterrupt):
            server.wait_ready(60.0, stop=stop)
        assert server.is_alive()


@pytest.mark.parametrize("child_dies_of", ["SIGTERM", "SIGKILL"])
def test_children_that_outlive_their_server_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child_dies_of: str
) -> None:
    monkeypatch.setattr("loadgen.target.CHILDREN_TIMEOUT_S", 0.2)
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if child_dies_of == "SIGKILL" else ""
    child = f"import signal, time\n{stubborn}print('child', flush=True)\ntime.sleep(60)"
    code = (
        f"c = subprocess.Popen([sys.executable, '-c', {child!r}])\nprint(c.pid, flush=True)\ntime.sleep(60)"
    )
    log = tmp_path / "log"
    with ServerProcess(python(code), log=log):
        while len(said := log.read_text().split()) < 2:
            time.sleep(0.01)
    pid = next(int(word) for word in said if word.isdecimal())
    give_up = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
