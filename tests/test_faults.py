"""Whole runs against the faulty server: no row is lost, nothing hangs, every outcome is what really happened.

Each run mixes several faults at 10 % each; the server logs which request got which, so that rows are held
against what was done to them. EXPECTED is what a client should make of each fault.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loadgen.drive import DriveConfig
from loadgen.golden.process import ServerProcess, start_server
from loadgen.measurement import record
from loadgen.records import Outcome
from loadgen.store import RunFolder, load
from tests.servers import FAULTY
from tests.servers.faults import FAULTS
from tests.servers.faulty import PROPER
from workloads.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

    Rows = pd.DataFrame

EXPECTED: dict[str, Outcome] = {
    PROPER: Outcome.OK,
    **{name: Outcome.HTTP_STATUS for name in FAULTS if name.startswith("status_")},
    "html_502": Outcome.HTTP_STATUS,
    "no_content": Outcome.HTTP_STATUS,
    "html_200": Outcome.MALFORMED,
    "garbage": Outcome.MALFORMED,
    "invalid_json": Outcome.MALFORMED,
    "invalid_chunk_size": Outcome.MALFORMED,
    "reset_before_head": Outcome.RESET,
    "close_before_head": Outcome.RESET,
    "close_inside_head": Outcome.RESET,
    "reset_midway": Outcome.RESET,
    "truncated": Outcome.TRUNCATED,
    "truncated_then_done": Outcome.TRUNCATED,
    "truncated_by_close": Outcome.TRUNCATED,
    "close_inside_chunk": Outcome.TRUNCATED,
    "close_short_of_length": Outcome.TRUNCATED,
    "missing_finish_reason_and_usage": Outcome.TRUNCATED,
    "error_event": Outcome.ERROR_EVENT,
    "error_body": Outcome.ERROR_EVENT,
    "ping_forever": Outcome.TIMEOUT,
    "no_first_token": Outcome.TIMEOUT,
    "no_answer": Outcome.TIMEOUT,
    "tokens_forever": Outcome.TIMEOUT,
    "stall": Outcome.STALLED,
    "stall_with_pings": Outcome.STALLED,
    # A finish reason was seen, or the count asked for by usage: how the connection ended is a note.
    "stall_before_done": Outcome.OK,
    "missing_done": Outcome.OK,
    "missing_finish_reason": Outcome.OK,
    "keep_alive_broken": Outcome.OK,
    "connection_close": Outcome.OK,
    "close_delimited": Outcome.OK,
    "surplus_bytes": Outcome.OK,
    # Odd, but right by the letter of HTTP, SSE and the API.
    "chunk_extensions": Outcome.OK,
    "trailers": Outcome.OK,
    "huge_line": Outcome.OK,
    "utf8_split": Outcome.OK,
    "crlf": Outcome.OK,
    "cr": Outcome.OK,
    "multi_line_data": Outcome.OK,
    "every_field": Outcome.OK,
    "coalesced": Outcome.OK,
    "split_events": Outcome.OK,
    "early_role": Outcome.OK,
    "empty_text": Outcome.OK,
    "not_streamed": Outcome.OK,
    "slow_head": Outcome.OK,
    "informational": Outcome.OK,
}
NUM_RUNS = 6
GROUPS = [sorted(FAULTS)[i::NUM_RUNS] for i in range(NUM_RUNS)]
NUM_REQUESTS = 100
NUM_TOKENS = 8
LONGEST_RUN_S = 20.0


def plan_of(num_requests: int, rate_per_s: float) -> Plan:
    return Plan.of(
        (np.arange(num_requests) * 1e9 / rate_per_s).astype(np.int64),
        np.full(num_requests, 5, np.int32),
        np.full(num_requests, NUM_TOKENS, np.int32),
    )


def measure(url: str, plan: Plan, out: Path, *, workers: int = 1, transport: str = "raw") -> Rows:
    folder = RunFolder.create(out, "faults")
    config = DriveConfig(
        url=url,
        model="golden",
        seed=1,
        nonce=2,
        run_id=folder.run_id,
        workers=workers,
        transport=transport,
        connect_timeout_s=1.0,
        first_token_timeout_s=0.8,
        stall_timeout_s=0.4,
        timeout_s=3.0,
        drain_timeout_s=5.0,
    )
    record(
        plan,
        config,
        folder,
        manifest={},
        on_progress=lambda _: None,
        stop=threading.Event(),
        is_target_alive=lambda: True,
    )
    return load(folder.path).requests


def faults_by_index(server: ServerProcess) -> dict[int, str]:
    log = json.loads(server.get("/log"))
    assert len(log) == len(dict(log)), "a request came twice: something was retried"
    return {int(request_id.rpartition("-")[2]): fault for request_id, fault in log}


def run_with(
    faults: list[str], out: Path, transport: str = "raw", workers: int = 1
) -> tuple[Rows, dict[int, str]]:
    flags = [flag for name in faults for flag in ("--fault", f"{name}=0.1")]
    with start_server(FAULTY, *flags) as server:
        start_s = time.monotonic()
        rows = measure(server.url, plan_of(NUM_REQUESTS, 100.0), out, transport=transport, workers=workers)
        assert time.monotonic() - start_s < LONGEST_RUN_S
        return rows, faults_by_index(server)


def test_every_fault_has_an_expectation() -> None:
    assert set(EXPECTED) == {PROPER, *FAULTS}


def misjudged(rows: Rows, done: dict[int, str]) -> list[str]:
    assert list(rows["index"]) == list(range(NUM_REQUESTS))
    assert set(done) == set(range(NUM_REQUESTS)), "a request never reached the server"
    return [
        f"{done[index]}: {outcome} ({error})"
        for index, outcome, error in zip(rows["index"], rows["outcome"], rows["error"], strict=True)
        if outcome != EXPECTED[done[index]]
    ]


@pytest.mark.load
@pytest.mark.parametrize("faults", GROUPS, ids=[group[0] for group in GROUPS])
def test_every_outcome_is_what_the_server_did(faults: list[str], tmp_path: Path) -> None:
    rows, done = run_with(faults, tmp_path)
    assert misjudged(rows, done) == []
    assert set(done.values()) >= set(faults)
    assert rows[rows["outcome"] != Outcome.OK]["error"].notna().all(), "a failure without words"


@pytest.mark.load
def test_outcomes_are_the_same_through_httpx_and_two_load_processes(tmp_path: Path) -> None:
    # Not among these: faults that poison a connection which httpx then uses again.
    faults = [
        "status_429",
        "truncated",
        "reset_midway",
        "error_event",
        "stall",
        "no_answer",
        "cr",
        "invalid_json",
    ]
    rows, done = run_with(faults, tmp_path, transport="httpx", workers=2)
    assert misjudged(rows, done) == []


@pytest.mark.load
def test_rows_keep_what_came_before_the_fault(tmp_path: Path) -> None:
    rows, done = run_with(["early_role", "stall", "status_429", "coalesced", "not_streamed"], tmp_path)
    rows = rows.assign(fault=[done[index] for index in rows["index"]])
    by_fault = dict(list(rows.groupby("fault")))
    role = by_fault["early_role"]
    assert (role["first_token_ns"] - role["sent_ns"] >= 100_000_000).all()
    assert (role["first_event_ns"] < role["first_token_ns"]).all()
    assert by_fault["stall"]["chunk_ns"].map(len).eq(3).all()
    assert by_fault["stall"]["output_tokens"].isna().all()
    assert by_fault["status_429"]["error"].str.contains(r"Retry-After: 7").all()
    assert by_fault["status_429"]["first_token_ns"].isna().all()
    merged = by_fault["coalesced"]
    assert merged["chunk_ns"].map(len).eq(NUM_TOKENS).all()
    assert all(
        lower[-1] < stamp[-1]
        for lower, stamp in zip(merged["chunk_lower_ns"], merged["chunk_ns"], strict=True)
    )
    assert by_fault["not_streamed"]["first_token_ns"].isna().all()
    assert by_fault["not_streamed"]["output_tokens"].eq(NUM_TOKENS).all()


@pytest.mark.load
def test_a_port_that_nobody_listens_on_refuses_every_request(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    rows = measure(f"http://127.0.0.1:{port}", plan_of(20, 100.0), tmp_path)
    assert rows["outcome"].eq(Outcome.CONNECT_FAILED).all()
    assert rows["error"].str.contains("ECONNREFUSED").all()
    assert rows["sent_ns"].notna().all()


@pytest.mark.load
def test_a_server_that_never_accepts_ends_in_connect_timeouts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, socket.socket() as first:
        first.connect(listener.getsockname())  # the one place in the queue is taken
        rows = measure(f"http://127.0.0.1:{listener.getsockname()[1]}", plan_of(5, 100.0), tmp_path)
    assert rows["outcome"].eq(Outcome.CONNECT_TIMEOUT).all()
    assert rows["connected_ns"].isna().all()
