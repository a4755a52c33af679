"""Bad input: one clear line and exit code 2 before anything is sent, never a traceback."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadgen.cli import main
from tests.loadgen.answering import MODELS, completions, server


def bench(*arguments: str | Path) -> int:
    """Run a command in this process and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run a command that must be refused; return its one line."""
    assert bench(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("bench: ")
    return lines[0]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# a port that refuses: what gets this far says so in its line, and the test sees that no earlier check fired
NOWHERE = ("--target", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "20", "--dist", "lognormall"], ["lognormall", "lognormal", "uniform"]),
        (["--rate", "20", "--arrival", "poison"], ["poison", "poisson", "gamma"]),
        (["--rate", "20", "--arrival", "gamma(cw=2)"], ["cw", "cv"]),
        (["--rate", "20", "--input-tokens", "lognormal(median=32,q99=128)"], ["q99", "median"]),
        (["--rate", "-3"], ["rate", "-3"]),
        (["--rate", "0"], ["rate", "0"]),
        (["--rate", "nan"], ["rate", "nan"]),
        (["--rate", "twenty"], ["--rate", "number"]),
        (["--rate", "20", "--duration", "30"], ["--duration", "unit"]),
        (["--rate", "20", "--duration", "0s"], ["duration"]),
        (["--rate", "20", "--slo", "ttft=fast"], ["ttft=fast"]),
        (["--rate", "20", "--slo", "tttf=500ms"], ["tttf", "ttft"]),
        (["--rate", "20", "--workers", "many"], ["--workers", "many"]),
        (["--rate", "20", "--header", "nonsense"], ["--header", "nonsense"]),
        (["--rate", "20", "--header", "X A: 1"], ["--header", "X A", "name"]),
        (["--rate", "20", "--header", "X-A: na\u00efve"], ["--header", "X-A", "ASCII"]),
        (["--rate", "20", "--header", "content-length: 3"], ["--header", "content-length"]),
        (["--rate", "20", "--field", "a=NaN"], ["--field", "a=NaN"]),
        (["--rate", "20", "--model", "\udcff"], ["--model", "UTF-8"]),
        (["--rate", "20", "--concurrency", "0"], ["--concurrency"]),
        (["--rate", "20", "--max-in-flight", "-4"], ["--max-in-flight"]),
        (["--rate", "20", "--timeout", "0"], ["--timeout", "above 0"]),
        (["--rate", "20", "--probe-timeout", "0s"], ["--probe-timeout", "above 0"]),
        (["--rate", "20", "--metrics-url", "foo"], ["--metrics-url", "foo"]),
        (["--rate", "1e308", "--requests", "5"], ["rate", "1e+308"]),
        (["--rate", "1e-300", "--requests", "2"], ["years"]),
        (["--rate", "20", "--name", "../up"], ["--name"]),
        (["--rate", "20", "--trace", "no-such-file.csv"], ["--rate", "--trace-speed"]),
        (["--trace", "no-such-file.csv"], ["no-such-file.csv"]),
        ([], ["--rate", "--trace"]),
        (["--rate", "20", "--duration", "5s", "--requests", "3"], ["--duration", "--requests"]),
        (["--rate", "5", "--concurrency", "2", "--requests", "4"], ["--concurrency", "--max-in-flight"]),
        (["--rate", "20", "--duration", "5s", "--warmup", "40s"], ["--warmup", "40 s"]),
        (["--trace", "x.csv", "--duration", "5s"], ["--trace-window"]),
        (["--concurrency", "4"], ["--requests"]),
    ],
)
def test_a_wrong_flag_is_named(
    arguments: Sequence[str], words: Sequence[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = refusal(capsys, "run", *arguments, *NOWHERE)
    for word in words:
        assert word in line, line
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_key_that_no_header_can_hold_is_told_and_not_quoted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_API_KEY", "cl\u00e9-secret")
    line = refusal(capsys, "run", "--rate", "20", *NOWHERE)
    assert "BENCH_API_KEY" in line
    assert "secret" not in line


def test_a_bad_row_is_named_by_file_line_and_column(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "bad.csv.gz"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44"]
    rows += ["2023-11-16 18:15:50.9951690,many,109"]
    trace.write_bytes(gzip.compress("\r\n".join(rows).encode()))
    line = refusal(capsys, "run", "--trace", trace, *NOWHERE)
    for word in ("bad.csv.gz", "3", "ContextTokens", "many"):
        assert word in line, line


def test_an_unwritable_output_folder_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    line = refusal(capsys, "run", "--rate", "20", "--out", tmp_path / "file" / "runs", *NOWHERE)
    assert "cannot write a run folder" in line


def test_a_target_that_refuses_connections_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        line = refusal(capsys, "run", "--rate", "20", "--target", url)
    assert "refuses connections" in line
    assert url in line
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_target_that_is_no_openai_server_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with server({"/v1/models": (200, "text/html", b"<h1>hello</h1>")}) as url:
        line = refusal(capsys, "run", "--rate", "20", "--target", url)
    assert "not an OpenAI-compatible server" in line


def test_a_prompt_longer_than_the_context_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        line = refusal(
            capsys, "run", "--rate", "20", "--dist", "fixed", "--input-tokens", "600", "--target", url
        )
    for word in ("context", "512", "600"):
        assert word in line, line


@pytest.mark.parametrize("command", ["report", "run"])
def test_an_unknown_flag_is_told(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--nonsense" in refusal(capsys, command, "--nonsense")


def test_a_folder_that_is_no_run_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "manifest.json" in refusal(capsys, "report", tmp_path)
    assert "no run folder" in refusal(capsys, "report")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rat = 20", ["rat"]),
        ("rate = ", ["TOML"]),
        ("[run]\nrate = 7", ["run", "table"]),
        ("duration = 30", ["duration = 30", "unit"]),
        ("rate = true", ["bench.toml", "rate", "value"]),
        ('quiet = "banana"', ["bench.toml", "quiet", "banana", "true or false"]),
        ("rate = [1, 2]", ["rate", "list"]),
        ("sessions = {turns = 4}", ["sessions", "table"]),
    ],
)
def test_a_bad_configuration_file_is_told(
    text: str, words: Sequence[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "bench.toml").write_text(text)
    line = refusal(capsys, "run", *NOWHERE)
    for word in words:
        assert word in line, line


def test_a_bad_environment_variable_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_RATE", "many")
    assert "BENCH_RATE" in refusal(capsys, "run", *NOWHERE)
    assert "BENCH_RATE" not in refusal(capsys, "run", "--rate", "many", *NOWHERE)


def test_a_variable_of_several_values_holds_one_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_HEADER", "X-A: has blanks\nX-B")
    assert "--header 'X-B'" in refusal(capsys, "run", "--rate", "20", *NOWHERE)
