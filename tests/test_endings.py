"""How runs end that do not end well, as a user sees it: exit code, status, words, and what is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import loadgen
from tests.loadgen.answering import MODELS, Answer, Routes, completions, server
from tests.test_main_job import assert_every_row_is_there, command, environment, only_run, reason_codes

pytestmark = pytest.mark.load
LOAD = ("--rate", "50", "--quiet", "--api", "completions")


def only_to_probes(answer: Answer) -> Routes:
    """Good answers to a preflight, which asks for 1 or 16 tokens; `answer` to a load that asks for 7."""
    proper = completions()
    return {
        "/v1/models": MODELS,
        "/v1/completions": lambda request: answer if request["max_tokens"] == 7 else proper(request),
    }


def start(folder: Path, *arguments: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, *command("run", *arguments)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def folder_of(process: subprocess.Popen[str], place: Path) -> Path:
    """Wait until the run sends."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if streams := [
            path for path in place.glob("runs/*/requests-*.arrows") if path.stat().st_size > 20_000
        ]:
            return streams[0].parent
        time.sleep(0.05)
    pytest.fail(f"the run did not start: {process.communicate()}")


@pytest.mark.parametrize(
    "answer",
    [(503, "text/plain", b"busy"), (200, "text/event-stream", b"data: {not json\n\n")],
    ids=["503", "malformed"],
)
def test_a_run_without_a_good_answer_measured_nothing(tmp_path: Path, answer: Answer) -> None:
    with server(only_to_probes(answer)) as url:
        process = start(
            tmp_path, "--target", url, *LOAD, "--requests", "40", "--output-tokens", "7", "--dist", "fixed"
        )
        out, err = process.communicate(timeout=60)
    run = only_run(tmp_path)
    assert process.returncode == 3, err
    assert "no_answers" in reason_codes(run)
    assert "target_died" not in reason_codes(run)
    assert "none of 40 requests got a good answer" in " ".join(out.split())


def test_a_killed_load_process_fails_the_run(tmp_path: Path) -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        process = start(tmp_path, "--target", url, *LOAD, "--duration", "20s")
        folder = folder_of(process, tmp_path)
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    run = loadgen.load(folder)
    assert process.returncode == 3, err
    assert run.manifest["status"] == "failed"
    assert "failed" in reason_codes(run)
    assert "interrupted" not in reason_codes(run)
    assert_every_row_is_there(run)
    assert (run.requests["outcome"] == "ok").sum() >= 1


def test_a_folder_deleted_under_a_run_ends_it_with_3(tmp_path: Path) -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        process = start(tmp_path, "--target", url, *LOAD, "--duration", "4s")
        shutil.rmtree(folder_of(process, tmp_path))
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert err.startswith("bench: ")
    assert "was removed while it was written" in err
    assert len(err.splitlines()) == 1


def test_rows_that_do_not_fit_the_disk_end_the_run_with_3(tmp_path: Path) -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        before = ("sh", "-c", 'ulimit -f 100; exec "$0" "$@"')  # no file longer than 100 blocks
        process = start(tmp_path, "--target", url, *LOAD, "--duration", "4s", before=before)
        _, err = process.communicate(timeout=60)
    run = only_run(tmp_path)
    assert process.returncode == 3, err
    assert "Traceback" not in err
    assert "File too large" in err
    assert run.manifest["status"] == "failed"
    assert "failed" in reason_codes(run)


def test_what_the_limits_refuse_after_the_preflight_leaves_no_folder(tmp_path: Path) -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        before = ("sh", "-c", 'ulimit -n 70; exec "$0" "$@"')
        process = start(tmp_path, "--target", url, *LOAD, "--duration", "4s", before=before)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "a process may open 70 files" in err
    assert list(tmp_path.glob("runs/*")) == []


def test_a_terminal_that_goes_away_ends_a_run_like_sigterm(tmp_path: Path) -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        process = start(tmp_path, "--target", url, *LOAD, "--duration", "30s")
        folder = folder_of(process, tmp_path)
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert json.loads((folder / "manifest.json").read_text())["status"] == "interrupted"
    assert "interrupted" in reason_codes(loadgen.load(folder))


def test_nohup_keeps_a_run_alive(tmp_path: Path) -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        before = ("sh", "-c", 'trap "" HUP; exec "$0" "$@"')
        process = start(tmp_path, "--target", url, *LOAD, "--duration", "3s", before=before)
        folder = folder_of(process, tmp_path)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
    assert json.loads((folder / "manifest.json").read_text())["status"] == "complete"


def test_ctrl_c_while_the_commands_are_imported_is_quiet() -> None:
    stub = (
        "import sys, loadgen.__main__ as door\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "door.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", stub], env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
