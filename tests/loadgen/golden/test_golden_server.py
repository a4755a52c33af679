"""The golden server against a plain blocking client: what it sends, when, and what it says about that."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest

from loadgen.errors import BenchError
from loadgen.golden.process import GOLDEN, ServerProcess, start_server
from tests.servers import FAULTY, NULL
from tests.servers.faulty import FaultyServer

ASKED = {"prompt": "a b c", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def golden() -> Iterator[ServerProcess]:
    with start_server(GOLDEN, "--ttft-ms", "20", "--gap-ms", "10") as server:
        yield server


def post(
    connection: http.client.HTTPConnection,
    asked: object,
    request_id: str = "t-0",
    path: str = "/v1/completions",
) -> bytes:
    connection.request("POST", path, json.dumps(asked), {"X-Request-Id": request_id})
    return connection.getresponse().read()


def events_of(body: bytes) -> list[dict[str, object]]:
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def connect(server: ServerProcess) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.host, server.port, timeout=10)


def test_stream_holds_the_tokens_asked_for_and_their_usage(golden: ServerProcess) -> None:
    connection = connect(golden)
    *tokens, usage = events_of(post(connection, ASKED))
    connection.close()
    choices = [event["choices"] for event in tokens]
    assert [choice[0]["finish_reason"] for choice in choices] == [None] * 4 + ["length"]  # type: ignore[index]
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def test_chat_opens_with_a_role_event_that_holds_no_text(golden: ServerProcess) -> None:
    asked = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 2, "stream": True}
    connection = connect(golden)
    events = events_of(post(connection, asked, path="/v1/chat/completions"))
    connection.close()
    deltas = [event["choices"][0]["delta"] for event in events]  # type: ignore[index]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": " w"}, {"content": " w"}]


def test_log_encloses_each_write_on_the_schedule_and_is_handed_over_once(golden: ServerProcess) -> None:
    golden.take_log()
    connection = connect(golden)
    start_ns = time.monotonic_ns()
    post(connection, ASKED, "t-7")
    end_ns = time.monotonic_ns()
    connection.close()
    log = golden.take_log()
    events = log.events_of("t-7")
    before_ns, after_ns = log.before_ns[events], log.after_ns[events]
    assert start_ns < log.arrived_ns[0] < before_ns[0]
    assert after_ns[-1] < end_ns
    assert (after_ns >= before_ns).all()
    assert before_ns[0] >= log.arrived_ns[0] + 20_000_000
    assert (log.lateness_ns() >= 0).all()
    assert np.median(np.diff(before_ns)) == pytest.approx(10e6, rel=0.2)
    assert golden.take_log().row_of == {}


def test_answer_without_stream_comes_when_the_last_token_would(golden: ServerProcess) -> None:
    connection = connect(golden)
    start_ns = time.monotonic_ns()
    answer = json.loads(post(connection, ASKED | {"stream": False}))
    connection.close()
    assert answer["choices"][0]["text"] == " w" * 5
    assert time.monotonic_ns() - start_ns >= 60_000_000


def test_bad_request_and_unknown_path_are_answered_as_errors(golden: ServerProcess) -> None:
    connection = connect(golden)
    assert b"bad request" in post(connection, {"max_tokens": 3})
    assert b"no such path" in golden.get("/nowhere")
    connection.close()


def test_several_tokens_an_event_keep_the_usage() -> None:
    with start_server(GOLDEN, "--tokens-per-event", "2", "--ttft-ms", "1", "--gap-ms", "1") as server:
        connection = connect(server)
        *tokens, usage = events_of(post(connection, ASKED))
        connection.close()
    assert [event["choices"][0]["text"] for event in tokens] == [" w w", " w w", " w"]  # type: ignore[index]
    assert usage["usage"]["completion_tokens"] == 5  # type: ignore[index]


def test_several_tokens_an_event_are_counted_along_the_stream_where_asked() -> None:
    asked = ASKED | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    with start_server(GOLDEN, "--tokens-per-event", "2", "--gap-ms", "1") as server:
        connection = connect(server)
        events = events_of(post(connection, asked))
        connection.close()
    assert [event["usage"]["completion_tokens"] for event in events] == [2, 4, 5, 5]  # type: ignore[index]


def test_a_whole_answer_in_one_write_is_the_same_answer_and_one_instant(golden: ServerProcess) -> None:
    connection = connect(golden)
    expected = post(connection, ASKED)
    connection.close()
    flags = ("--gap-ms", "1", "--events-per-write", "9", "--tail-joined", "--realtime")
    with start_server(GOLDEN, *flags) as server:
        connection = connect(server)
        assert [post(connection, ASKED), post(connection, ASKED)] == [expected, expected]
        connection.close()
        log = server.take_log()
    assert np.diff(log.offsets).tolist() == [5, 5]
    assert len(set(log.before_ns.tolist())) == len(set(log.due_ns.tolist())) == 2


@pytest.mark.parametrize("writes", ["token", "whole"])
def test_null_server_sends_the_same_answer_at_once(golden: ServerProcess, writes: str) -> None:
    connection = connect(golden)
    expected = post(connection, ASKED)
    connection.close()
    with start_server(NULL, "--writes", writes) as server:
        connection = connect(server)
        assert [post(connection, ASKED), post(connection, ASKED)] == [expected, expected]
        connection.close()


@pytest.mark.parametrize("module", [GOLDEN, NULL])
def test_a_request_without_a_length_is_refused_and_the_server_lives_on(module: str) -> None:
    with start_server(module) as server:
        with socket.create_connection((server.host, server.port), timeout=10) as chunked:
            head = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            chunked.sendall(head + b"2\r\n{}\r\n0\r\n\r\n")
            assert chunked.recv(4096).startswith(b"HTTP/1.1 411 ")
        connection = connect(server)
        assert post(connection, ASKED)
        connection.close()


def test_faults_depend_on_seed_and_index_alone_and_come_as_often_as_asked() -> None:
    server = FaultyServer({"stall": 0.1, "cr": 0.3}, seed=5)
    chosen = [server.choose_fault(f"run-{i}") for i in range(2000)]
    assert chosen == [
        FaultyServer({"stall": 0.1, "cr": 0.3}, seed=5).choose_fault(f"b-{i}") for i in range(2000)
    ]
    assert chosen.count("stall") == pytest.approx(200, abs=60)
    assert chosen.count("cr") == pytest.approx(600, abs=100)
    assert chosen.count("none") == 2000 - chosen.count("stall") - chosen.count("cr")


def test_faulty_server_logs_what_each_request_got() -> None:
    with start_server(FAULTY, "--fault", "status_429=1") as server:
        connection = connect(server)
        assert b"no luck" in post(connection, ASKED, "t-3")
        connection.close()
        assert json.loads(server.get("/log")) == [["t-3", "status_429"]]


def test_a_server_that_does_not_come_up_is_an_error() -> None:
    with pytest.raises(BenchError, match="did not start"), start_server(GOLDEN, "--no-such-flag"):
        pass
