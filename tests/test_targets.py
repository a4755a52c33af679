"""`bench run` against servers that are not ours: several at once, started by a command, with a key."""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from loadgen.cli.opened import OpenedTarget
from loadgen.cli.options import RunOptions
from loadgen.endpoints.openai import Chat
from loadgen.preflight import Preflight
from tests.loadgen.answering import MODELS, Routes, completions, server
from tests.test_main_job import bench, only_run

pytestmark = pytest.mark.load

KEY = "sk-planted-5f3a9c"
LOAD = ("run", "--rate", "20", "--requests", "10", "--output-tokens", "4", "--workers", "1", "--json")

SERVER = """
import json, os, sys
sys.path.insert(0, os.environ["ROOT"])
from tests.loadgen.answering import MODELS, completions, make_server
print("my key is", os.environ["BENCH_API_KEY"], flush=True)
routes = {"/health": (200, "text/plain", b"ok"), "/v1/models": MODELS, "/v1/completions": completions()}
make_server(int(sys.argv[1]), routes).serve_forever()
"""


def test_two_targets_share_the_load_and_their_preflight_is_kept(tmp_path: Path) -> None:
    routes: Routes = {"/v1/models": MODELS, "/v1/completions": completions()}
    with server(routes) as a, server(routes) as b:
        done = bench(tmp_path, *LOAD, "--target", a, "--target", b)
    assert json.loads(done.stdout)["counts"]["ok"] == 10
    target = only_run(tmp_path).manifest["target"]
    assert target["urls"] == [a, b]
    assert {"what": "api", "found": "completions", "meaning": ""} in target["preflight"]
    assert f"target {a}, {b}" in done.stderr


@pytest.mark.parametrize(
    ("metrics_url", "is_sent"),
    [(None, True), ("http://127.0.0.1:7/stats", True), ("http://127.0.0.1:8/metrics", False)],
)
def test_a_key_goes_to_no_other_server(metrics_url: str | None, is_sent: bool) -> None:
    preflight = Preflight(
        api="chat", endpoint=Chat(), model="m", lengths=None, context_tokens=None, findings=()
    )
    target = OpenedTarget(
        urls=("http://127.0.0.1:7",),
        headers={"Authorization": f"Bearer {KEY}"},
        preflight=preflight,
        is_gone=lambda _: False,
    )
    telemetry = target.telemetry(RunOptions(metrics_url=metrics_url))
    assert telemetry is not None
    assert (KEY in telemetry._client.headers.get("authorization", "")) is is_sent


def test_targets_that_are_not_alike_are_refused(tmp_path: Path) -> None:
    plain: Routes = {"/v1/models": MODELS, "/v1/completions": completions()}
    longer: Routes = {"/v1/models": MODELS, "/v1/completions": completions(template_tokens=5)}
    with server(plain) as a, server(longer) as b:
        done = bench(tmp_path, *LOAD, "--target", a, "--target", b)
    assert done.returncode == 2
    assert f"{b} is not like {a}" in done.stderr


def everything_written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_planted_key_is_sent_and_appears_nowhere(tmp_path: Path) -> None:
    """Not in the folder (rows and their errors, manifest, log, report), not on stdout, not on stderr."""
    seen: list[str] = []

    class Quoting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*MODELS)

        def do_POST(self) -> None:
            seen.append(str(self.headers["authorization"]))
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if (
                len(seen) % 3 == 0 and len(seen) > 12
            ):  # some requests of the run fail in words that hold the key
                self._answer(429, "application/json", f'{{"error":"quota of {KEY} used up"}}'.encode())
            else:
                self._answer(*completions()(request))

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Quoting)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    try:
        url = f"http://127.0.0.1:{http.server_port}"
        done = bench(tmp_path, *LOAD, "--target", url, "--field", f'user="{KEY}"', BENCH_API_KEY=KEY)
    finally:
        http.shutdown()
        http.server_close()
    run = only_run(tmp_path)
    report = bench(tmp_path, "report", str(run.path), BENCH_API_KEY=KEY)
    assert report.returncode == 0
    assert set(seen) == {f"Bearer {KEY}"}
    errors = run.requests["error"].dropna().tolist()
    assert errors
    assert all("quota of *** used up" in error for error in errors)
    written = everything_written(tmp_path) + done.stdout.encode() + done.stderr.encode()
    assert KEY.encode() not in written
    assert b"used up" in written


def free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_server_started_by_a_command_is_measured_and_stopped(tmp_path: Path) -> None:
    port = free_port()
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    done = bench(
        tmp_path,
        *LOAD,
        "--cmd",
        f"{sys.executable} {script} {port}",
        "--ready-url",
        f"http://127.0.0.1:{port}/health",
        BENCH_API_KEY=KEY,
        ROOT=str(Path(__file__).parent.parent),
    )
    assert json.loads(done.stdout)["counts"]["ok"] == 10, done.stderr
    run = only_run(tmp_path)
    assert run.manifest["target"]["kind"] == "command"
    assert (run.path / "server.log").read_text().startswith("my key is ***\n")
    series = run.server_rows()
    assert series is not None
    assert {"process_cpu_s", "process_rss_bytes"} <= set(series.column("name").to_pylist())
    again = bench(
        tmp_path, *LOAD, "--target", f"http://127.0.0.1:{port}", ROOT=os.fspath(tmp_path), BENCH_API_KEY=KEY
    )
    assert "refuses connections" in again.stderr


def test_the_log_of_a_server_that_does_not_start_is_kept(tmp_path: Path) -> None:
    code = f"import sys; print('{KEY} has no access'); sys.exit(4)"
    ready = ("--ready-url", f"http://127.0.0.1:{free_port()}/")
    done = bench(tmp_path, *LOAD, "--cmd", f'{sys.executable} -c "{code}"', *ready, BENCH_API_KEY=KEY)
    assert done.returncode == 2
    assert "ended with code 4 before it was ready: *** has no access" in done.stderr
    assert KEY not in done.stderr
    (log,) = (tmp_path / "runs").iterdir()
    assert log.name in done.stderr
    assert log.read_text() == "*** has no access\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--cmd", "serve"), "--cmd needs --ready-url"),
        (("--ready-url", "http://127.0.0.1:1/"), "--ready-url belongs to --cmd"),
        (("--cmd", "'", "--ready-url", "http://127.0.0.1:1/"), '--cmd "\'": No closing quotation'),
        (
            ("--cmd", "/no/such/server", "--ready-url", "http://127.0.0.1:1/"),
            "cannot start '/no/such/server'",
        ),
        (("--target", "http://127.0.0.1:1", "--field", "min_p"), "--field 'min_p' is not NAME=JSON"),
        (("--target", "http://u:p@127.0.0.1:1"), "--target holds a user name"),
        (("--target", "http://127.0.0.1:1", "--api", "soap"), "unknown protocol 'soap'"),
        (
            ("--target", "http://127.0.0.1:1", "--target", "http://127.0.0.1:2", "--transport", "httpx"),
            "--transport httpx takes one --target",
        ),
    ],
)
def test_flags_that_do_not_fit_are_told(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    done = bench(tmp_path, *LOAD, *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert not any((tmp_path / "runs").glob("*"))
