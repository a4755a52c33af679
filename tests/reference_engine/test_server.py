"""The real server process over loopback HTTP."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks.soak import soak
from reference_engine.tokenizer import WORDS
from tests.reference_engine.process import RunningServer, running_server

pytestmark = pytest.mark.engine

TEN_WORDS = " ".join(WORDS[:10])


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def stream_events(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def fetch_table(client: httpx.Client, path: str) -> pd.DataFrame:
    response = client.get(path)
    assert response.status_code == 200
    table: pd.DataFrame = pq.read_table(io.BytesIO(response.content)).to_pandas()
    return table


def post_bytes(body: dict[str, Any], request_id: str = "raw") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: {request_id}\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def test_ready_line_models_and_health(server: RunningServer, client: httpx.Client) -> None:
    assert server.about["model"] == "nano"
    assert server.about["pid"] == server.process.pid
    assert client.get("/health").status_code == 200
    (model,) = client.get("/v1/models").json()["data"]
    assert model["id"] == "nano"
    assert model["max_model_len"] == 2048


def test_stream_and_body_say_the_same_with_exact_counts(client: httpx.Client) -> None:
    body = {"model": "nano", "prompt": TEN_WORDS, "max_tokens": 12, "ignore_eos": True}
    whole = client.post("/v1/completions", json=body).json()
    events = stream_events(client, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    texts = [event["choices"][0]["text"] for event in events[:-1]]
    assert len(texts) == 12
    assert all(texts)
    assert "".join(texts) == whole["choices"][0]["text"]
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"] == whole["usage"]
    assert whole["usage"] == {"prompt_tokens": 11, "completion_tokens": 12, "total_tokens": 23}


def test_chat_streams_and_answers_whole(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": TEN_WORDS}], "max_tokens": 5}
    whole = client.post("/v1/chat/completions", json=body).json()
    events = stream_events(client, "/v1/chat/completions", body)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    text = "".join(delta["content"] for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == 5


def test_several_prompts_are_answered_side_by_side(client: httpx.Client) -> None:
    prompts, fields = [[5, 6], [7], [8, 9, 10]], {"max_tokens": 6, "n": 1}
    alone = [client.post("/v1/completions", json={"prompt": p, **fields}).json() for p in prompts]
    texts = [answer["choices"][0]["text"] for answer in alone]
    whole = client.post("/v1/completions", json={"prompt": prompts, **fields}).json()
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == list(enumerate(texts))
    assert whole["usage"] == {"prompt_tokens": 6, "completion_tokens": 18, "total_tokens": 24}
    body = {"prompt": prompts, **fields, "stream_options": {"include_usage": True}}
    *events, usage = stream_events(client, "/v1/completions", body)
    streamed = ["", "", ""]
    for event in events:
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert streamed == texts
    assert [event["choices"][0]["finish_reason"] for event in events].count("length") == 3
    assert usage["usage"] == whole["usage"]
    words = {"prompt": ["able", "about"], "max_tokens": 2}
    assert len(client.post("/v1/completions", json=words).json()["choices"]) == 2


def test_sampling_repeats_with_its_seed(client: httpx.Client) -> None:
    def answer(**fields: Any) -> str:
        body = {"prompt": TEN_WORDS, "max_tokens": 8, **fields}
        text: str = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        return text

    assert answer(temperature=1, seed=5) == answer(temperature=1, seed=5)
    assert answer(temperature=1) != answer(temperature=1)
    assert answer() == answer(temperature=0, seed=9)


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "words"),
    [
        ("POST", "/v1/completions", b"{", 400, "not valid JSON"),
        ("POST", "/v1/completions", b'{"prompt": 1}', 400, "wrong request"),
        ("POST", "/v1/completions", b'{"prompt": "a", "model": "gpt"}', 404, "does not exist"),
        ("POST", "/v1/completions", b'{"prompt": "able", "max_tokens": 4000}', 400, "context is 2048"),
        ("POST", "/v1/chat/completions", b'{"messages": []}', 400, "at least one message"),
        ("GET", "/v1/completions", b"", 405, "not allowed"),
        ("GET", "/nothing", b"", 404, "nothing at /nothing"),
    ],
)
def test_errors_are_openai_shaped(
    client: httpx.Client, method: str, path: str, content: bytes, status: int, words: str
) -> None:
    response = client.request(method, path, content=content)
    assert response.status_code == status
    error = response.json()["error"]
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert client.get("/health").status_code == 200


def test_what_is_not_http_is_refused(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"hello\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")
        assert sock.recv(1000) == b""


def test_requests_sent_ahead_are_answered_in_order(server: RunningServer) -> None:
    requests = [post_bytes({"prompt": TEN_WORDS, "max_tokens": n}, f"ahead-{n}") for n in (9, 1, 5)]
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"".join(requests) + b"GET /health HTTP/1.0\r\n\r\n")
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    order = [received.index(f"x-request-id: ahead-{n}".encode()) for n in (9, 1, 5)]
    assert order == sorted(order)
    assert received.endswith(b'{"status":"ok"}')


def test_a_client_that_goes_away_frees_its_blocks_within_a_step(
    server: RunningServer, client: httpx.Client
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(post_bytes({"prompt": TEN_WORDS, "max_tokens": 2000, "stream": True}, "gone"))
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK")
    deadline = time.monotonic() + 10
    while True:
        requests = fetch_table(client, "/requests")
        row = requests[requests.server_request_id == "gone"]
        if len(row):
            break
        assert time.monotonic() < deadline
    assert row.finish_reason.item() == "cancelled"
    assert row.output_tokens.item() < 2000
    steps = fetch_table(client, "/steps")
    assert (steps.start_ns <= row.finished_ns.item()).all()  # it was alone: no step came after
    client.post("/v1/completions", json={"prompt": "able", "max_tokens": 1})
    assert fetch_table(client, "/steps").kv_used.iloc[-1] == 0


def test_a_reader_that_sleeps_does_not_hold_up_others(server: RunningServer, client: httpx.Client) -> None:
    body = {"prompt": TEN_WORDS, "max_tokens": 1500, "stream": True}
    with socket.socket() as sleeper:
        sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sleeper.connect(("127.0.0.1", server.port))
        sleeper.sendall(post_bytes(body, "sleeper"))
        answer = client.post("/v1/completions", json={"prompt": TEN_WORDS, "max_tokens": 200})
        assert answer.json()["usage"]["completion_tokens"] == 200
        received = b""
        while b"[DONE]" not in received:
            received += sleeper.recv(65536)
    assert received.count(b'"text"') == 1500


def test_a_stop_string_ends_the_request_in_the_engine_too(client: httpx.Client) -> None:
    body = {"prompt": TEN_WORDS, "max_tokens": 1000}
    words = (
        client.post("/v1/completions", json={**body, "max_tokens": 9}).json()["choices"][0]["text"].split()
    )
    stopped = client.post(
        "/v1/completions", json={**body, "stop": f" {words[6]}"}, headers={"x-request-id": "stopped"}
    ).json()
    first = words.index(words[6])
    assert stopped["choices"][0]["text"].split() == words[:first]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == first + 1
    client.post("/v1/completions", json={"prompt": "able", "max_tokens": 1})
    requests = fetch_table(client, "/requests").set_index("server_request_id")
    assert requests.finish_reason["stopped"] == "stop"
    assert requests.output_tokens["stopped"] < 1000


def test_a_dead_engine_ends_the_server_and_its_streams() -> None:
    with running_server() as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(post_bytes({"prompt": TEN_WORDS, "max_tokens": 2000, "stream": True}))
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        os.kill(server.about["engine_pid"], signal.SIGKILL)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
        assert b"[DONE]" not in received
        assert server.process.wait(timeout=20) == 1


@pytest.mark.load
def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    """20,000 take two minutes: `python -m benchmarks.soak`."""
    assert len(list(soak(1200))) == 6


def test_metrics_and_tokenize(client: httpx.Client) -> None:
    before = client.get("/metrics").text
    client.post("/v1/completions", json={"prompt": TEN_WORDS, "max_tokens": 5})
    after = client.get("/metrics")
    assert after.headers["content-type"].startswith("text/plain")

    def value(text: str, name: str) -> float:
        return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])

    assert value(after.text, "engine_output_tokens_total") - value(before, "engine_output_tokens_total") == 5
    for name, number in (("time_to_first_token", 1), ("inter_token_latency", 4)):
        count = f"engine_{name}_seconds_count"
        assert value(after.text, count) - value(before, count) == number
    answer = client.post("/tokenize", json={"prompt": TEN_WORDS}).json()
    assert answer["count"] == len(answer["tokens"]) == 11
    assert client.post("/tokenize", json={"prompt": 1}).status_code == 400


def test_a_policy_with_knobs_serves_and_reports_what_it_shares() -> None:
    flags = (
        "--policy",
        "sarathi",
        "--chunk-tokens",
        "32",
        "--prefix-sharing",
        "--swap",
        "--swap-tokens",
        "512",
    )
    with running_server(*flags) as server, httpx.Client(base_url=server.url, timeout=20) as client:
        assert server.about["policy"] == "sarathi"
        body = {"prompt": " ".join(WORDS[:100]), "max_tokens": 3}
        cached = [
            client.post("/v1/completions", json=body).json()["usage"]["prompt_tokens_details"][
                "cached_tokens"
            ]
            for _ in range(2)
        ]
    assert cached == [0, 96]


def test_a_full_queue_is_answered_with_429_and_when_to_come_back() -> None:
    body = {"prompt": TEN_WORDS, "max_tokens": 400, "stream": True}
    with running_server("--max-batch", "1", "--max-waiting", "1") as server:
        first, second = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(2))
        with first, second:
            first.sendall(post_bytes(body))
            assert first.recv(100).startswith(b"HTTP/1.1 200")
            second.sendall(post_bytes(body))
            third = httpx.post(f"{server.url}/v1/completions", json=body)
            assert third.status_code == 429
            assert third.headers["retry-after"] == "1"
            assert "1 requests are waiting" in third.json()["error"]["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_writes_the_logs_and_leaves_with_0(tmp_path: Path, number: signal.Signals) -> None:
    with running_server("--log-dir", str(tmp_path)) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(post_bytes({"prompt": TEN_WORDS, "max_tokens": 300, "stream": True}, "last"))
            received = sock.recv(1000)
            server.process.send_signal(number)
            while data := sock.recv(65536):
                received += data
                if b"[DONE]" in received:
                    break
        assert received.count(b'"text"') == 300
        assert server.process.wait(timeout=20) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(server.about["engine_pid"], 0)
    (request,) = pq.read_table(tmp_path / "engine_requests.parquet").to_pylist()
    assert request["server_request_id"] == "last"
    assert request["output_tokens"] == 300
    assert len(pd.read_parquet(tmp_path / "engine_steps.parquet")) == 300


def test_the_server_dies_with_whoever_started_it(tmp_path: Path) -> None:
    starter = (
        "import sys, time\n"
        "from tests.reference_engine.process import running_server\n"
        f"with running_server('--log-dir', {str(tmp_path)!r}) as server:\n"
        "    print(server.about['pid'], server.about['engine_pid'], flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() and not is_zombie(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.05)
    assert (tmp_path / "engine_steps.parquet").exists()


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_health_is_503_until_the_engine_is_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "reference_engine.server", "--model", "nano", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        statuses = []
        deadline = time.monotonic() + 60
        while 200 not in statuses and time.monotonic() < deadline:
            try:
                statuses.append(httpx.get(f"http://127.0.0.1:{port}/health").status_code)
            except httpx.ConnectError:
                pass
            time.sleep(0.05)
        process.terminate()
        assert process.wait(timeout=20) == 0
    assert statuses[0] == 503
    assert statuses[-1] == 200


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--port", "99999"], "port must be 0-65535"),
        (["--model", "huge"], "unknown model 'huge': no shape (nano, tiny"),
        (["--policy", "magic"], "unknown policy 'magic'; known policies: static, orca"),
        (["--policy", "orca", "--watermark", "0.1"], "policy orca has no knob 'watermark'; its knobs: "),
        (["--order", "alphabetic"], "unknown order 'alphabetic'; known orders: fcfs"),
        (["--kv-tokens", "3"], "kv_tokens 3 holds no block"),
        (["--max-batch", "0"], "max_batch must be at least 1"),
        (["--host", "192.0.2.1"], "Cannot assign"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(args: list[str], words: str) -> None:
    command = [sys.executable, "-m", "reference_engine.server", "--port", "0", *args]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_http_process_imports_no_torch() -> None:
    code = "import sys, reference_engine.server as s; print('torch' in sys.modules, 'pyarrow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]
