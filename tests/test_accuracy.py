"""The client's truth and its price, held against servers that log their own writes.

What is asserted must hold on a busy machine: kernel stamps lie inside the server's writes whenever they are
read, medians are small, ratios are taken in one run. The sharp figures are those of `benchmarks.client`.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.client import measure_stack
from loadgen.drive import DriveConfig, drive
from loadgen.endpoints import ENDPOINTS
from loadgen.golden.judge import JUDGED_COLUMNS, ClientErrors, judge, quantile_ms
from loadgen.golden.process import GOLDEN, start_server
from loadgen.store import RunFolder, load
from loadgen.transport.sockets import start_stamping
from workloads.plan import Plan

NUM_REQUESTS = 40
NUM_TOKENS = 20
COLUMNS = (*JUDGED_COLUMNS, "chunk_tokens", "output_tokens", "stamp_source")

pytestmark = pytest.mark.load


def drive_golden(out: Path, *flags: str, endpoint: str = "completions") -> tuple[pa.Table, ClientErrors]:
    plan = Plan.of(
        (np.arange(NUM_REQUESTS) * 25_000_000).astype(np.int64),
        np.full(NUM_REQUESTS, 5, np.int32),
        np.full(NUM_REQUESTS, NUM_TOKENS, np.int32),
    )
    folder = RunFolder.create(out, "accuracy")
    with start_server(GOLDEN, "--ttft-ms", "60", "--gap-ms", "8", *flags) as server:
        config = DriveConfig(
            url=server.url,
            model="golden",
            seed=1,
            nonce=2,
            run_id=folder.run_id,
            endpoint=ENDPOINTS[endpoint],
        )
        stop = threading.Event()
        result = drive(plan, config, folder=folder.path, on_progress=lambda _: None, stop=stop)
        folder.write_plan(plan)
        folder.compact_requests(plan)
        folder.write_manifest({"status": "complete"})
        rows = load(folder.path).rows.read(COLUMNS)
        return rows, judge(rows, server.take_log(), run_id=folder.run_id, epoch_ns=result.epoch_ns)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_rows_say_what_the_server_did(tmp_path: Path, endpoint: str) -> None:
    rows, errors = drive_golden(tmp_path, endpoint=endpoint)
    assert rows["outcome"].to_pylist() == ["ok"] * NUM_REQUESTS
    assert errors.num_requests == NUM_REQUESTS
    assert len(errors.stamp_ns) == NUM_REQUESTS * NUM_TOKENS
    # The role event of a chat comes 60 ms before the first token: taken for one, it would be an error of 60.
    assert (quantile_ms(errors.ttft_ns, 0.5) or 0) < 10
    assert (quantile_ms(errors.gap_ns, 0.5) or 0) < 1


def test_kernel_stamps_of_events_read_alone_lie_inside_the_writes(tmp_path: Path) -> None:
    with start_stamping() or pytest.skip("this kernel stamps nothing"):
        rows, errors = drive_golden(tmp_path)
    assert set(rows["stamp_source"].to_pylist()) == {"kernel"}
    alone = errors.stamp_ns[errors.is_alone]
    assert len(alone) > 0.5 * len(errors.stamp_ns)
    assert np.mean(np.abs(alone) < 50_000) > 0.98


def test_several_tokens_an_event_are_counted_as_such(tmp_path: Path) -> None:
    rows, errors = drive_golden(tmp_path, "--tokens-per-event", "4")
    assert set(rows["output_tokens"].to_pylist()) == {NUM_TOKENS}
    assert {len(stamps) for stamps in rows["chunk_ns"].to_pylist()} == {NUM_TOKENS // 4}
    assert {tokens for row in rows["chunk_tokens"].to_pylist() for tokens in row} <= {4, None}
    assert errors.num_requests == NUM_REQUESTS


def test_a_token_costs_a_fraction_of_what_httpx_takes() -> None:
    # In steps: wake-ups, which other work makes dear for both, are few.
    ours, peer = (measure_stack(stack, 64, 30, "steps", pinned=False) for stack in ("bench", "httpx"))
    assert ours.cpu_us_per_event < 0.6 * peer.cpu_us_per_event
    assert ours.reads_per_event > 0.8
