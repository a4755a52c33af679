"""A server that bench starts is waited for, watched and stopped, whatever it does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from loadgen.errors import TargetError
from loadgen.target import ServerProcess


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
