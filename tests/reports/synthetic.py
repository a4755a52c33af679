"""Synthetic run folders with fixed names, seeds and times: what the goldens and the page checks read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.records import Outcome, RequestRecord
from loadgen.store import RowWriter, Run, RunFolder, load, stream_path
from workloads.plan import Plan

RUN_NAME = "20260131T120000Z-demo"
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What the run that is made up went through."""

    num_requests: int = 600
    rate_per_s: float = 20.0
    failure_share: float = 0.0
    error: str = "model overloaded, retry later"
    model: str = "tiny-llama"
    status: str = "complete"
    cancel_after: int | None = None
    has_engine: bool = True
    has_account: bool = False
    tokens_a_read: int = 1
    trace: dict[str, Any] | None = None
    seed: int = 7


def make_run(out: Path, story: Story | None = None) -> Run:
    """Write a run folder as a run writes it, and open it."""
    story = story or Story()
    rng = np.random.default_rng(story.seed)
    plan = make_plan(rng, story)
    folder = RunFolder(out / RUN_NAME)
    folder.path.mkdir(parents=True)
    folder.write_plan(plan)
    writer = RowWriter(stream_path(folder.path, 0))
    for index in range(len(plan)):
        writer.append(make_record(rng, plan, index, story))
    writer.close()
    folder.compact_requests(plan)
    if story.has_engine:
        write_steps(folder.path, int(plan.arrival_ns[-1]))
    if story.has_account:
        write_account(folder.path, plan)
    folder.write_manifest(make_manifest(plan, story))
    run = load(folder.path)
    from loadgen.measure.summary import summarize

    folder.write_summary(summarize(run))
    return run


def make_plan(rng: np.random.Generator, story: Story) -> Plan:
    gaps = rng.exponential(1 / story.rate_per_s, story.num_requests)
    lengths = [np.clip(rng.lognormal(np.log(32), 0.485, story.num_requests), 1, 256) for _ in range(2)]
    source: dict[str, Any] = {
        "workload": {"arrival": "poisson", "rate_per_s": story.rate_per_s, "num_requests": story.num_requests}
    }
    if story.trace:
        source["trace"] = story.trace
    return Plan.of(
        np.cumsum(gaps * SECOND_NS).astype(np.int64),
        lengths[0].astype(np.int32),
        lengths[1].astype(np.int32),
        source,
    )


def make_record(rng: np.random.Generator, plan: Plan, index: int, story: Story) -> RequestRecord:
    scheduled = int(plan.arrival_ns[index])
    num_prompt, num_output = int(plan.prompt_tokens[index]), int(plan.output_tokens[index])
    sent = scheduled + int(rng.exponential(60_000))
    record = RequestRecord(
        index=index,
        scheduled_ns=scheduled,
        sent_ns=sent,
        connected_ns=sent + 40_000,
        written_ns=sent + 60_000,
        prompt_tokens_planned=num_prompt,
        output_tokens_planned=num_output,
        outcome=Outcome.OK,
        http_status=200,
        worker=0,
        connection_reused=False,
        stamp_source="kernel",
        recv_lag_ns=int(rng.exponential(30_000)),
    )
    if rng.random() < story.failure_share:
        return _failed(record, story, sent, rng.random())
    if story.cancel_after is not None and index >= story.cancel_after:
        return replace(record, outcome=Outcome.CANCELLED, http_status=None, error="the run was stopped")
    wait = 0.018 + 0.0006 * num_prompt + rng.exponential(0.012)
    if scheduled > 18 * SECOND_NS and scheduled < 20 * SECOND_NS:
        wait += 0.25 * rng.random()
    gaps = rng.gamma(12, 0.011 / 12, num_output - 1) + (rng.random(num_output - 1) < 0.02) * 0.04
    first = sent + int(wait * SECOND_NS)
    # Tokens that one read brings share its stamp, so that gaps of 0 stand beside real ones.
    gaps[np.arange(len(gaps)) % story.tokens_a_read != 0] = 0
    stamps = [first, *(first + np.cumsum(gaps * SECOND_NS).astype(np.int64)).tolist()]
    return replace(
        record,
        headers_ns=first - 200_000,
        first_event_ns=first,
        first_token_ns=first,
        last_token_ns=stamps[-1],
        done_ns=stamps[-1] + 150_000,
        prompt_tokens=num_prompt,
        output_tokens=num_output,
        prompt_tokens_source="usage",
        output_tokens_source="usage",
        chunk_ns=stamps,
        chunk_lower_ns=stamps,
        chunk_tokens=[1] * num_output,
    )


def _failed(record: RequestRecord, story: Story, sent: int, draw: float) -> RequestRecord:
    if draw < 0.7:
        return replace(
            record,
            outcome=Outcome.HTTP_STATUS,
            http_status=503,
            error=story.error,
            headers_ns=sent + 2_000_000,
            done_ns=sent + 2_100_000,
        )
    return replace(
        record,
        outcome=Outcome.CONNECT_FAILED,
        http_status=None,
        error="connection refused",
        connected_ns=None,
        written_ns=None,
        done_ns=sent + 300_000,
    )


def make_manifest(plan: Plan, story: Story) -> dict[str, Any]:
    return {
        "status": story.status,
        "command": "bench run --rate 20 --dist lognormal --seed 7",
        "config": {
            "rate": {"value": story.rate_per_s, "origin": "flag"},
            "dist": {"value": "lognormal", "origin": "flag"},
            "seed": {"value": story.seed, "origin": "default"},
        },
        "plan_digest": plan.digest(),
        "plan": {"num_requests": len(plan), "span_s": plan.span_s, **plan.source},
        "target": {"url": "http://127.0.0.1:8000", "model": story.model, "api": "completions"},
        "environment": {"python": "3.12.3", "kernel": "Linux 6.8", "cpus": 2, "packages": {"numpy": "2.1.0"}},
        "started": "2026-01-31T12:00:00Z",
        "ended": "2026-01-31T12:00:31Z",
    }


def write_steps(folder: Path, end_ns: int) -> None:
    """Write an engine's step log: 11 ms steps with short pauses, as the reference engine logs them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    num_steps = end_ns // 25_000_000
    step = np.arange(num_steps, dtype=np.int64)
    start = step * 25_000_000
    columns = {
        "step": step,
        "start_ns": start,
        "end_ns": start + 11_000_000,
        "decode_seqs": 4 + step % 5,
        "prefill_tokens": 32 * (step % 3),
        "kv_used": 40 + step % 60,
        "kv_cached": step * 0,
        "kv_free": 216 - step % 60,
        "waiting": step % 2,
        "running": 5 + step % 5,
        "preempted": step * 0,
    }
    pq.write_table(pa.table(columns), folder / "engine_steps.parquet")


STEP_NS = 25_000_000


def write_account(folder: Path, plan: Plan) -> None:
    """Write an engine's account: a step of waiting, one of prefill, decodes; every tenth was evicted once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buckets = (
        "wait_slot",
        "preempted",
        "host",
        "own",
        "batch",
        "interference",
        "recompute",
        "swap",
        "residual",
    )
    rows = []
    for index in range(len(plan)):
        arrived = int(plan.arrival_ns[index])
        first = arrived // STEP_NS + 2
        last = first + min(int(plan.output_tokens[index]), 40)
        spans = [span("prefill", first, first, 32), span("decode", first + 1, last, last - first)]
        if index % 10 == 9:
            spans += [span("evicted", last + 1, last + 1, 64), span("prefill", last + 6, last + 6, 64)]
            spans.append(span("decode", last + 7, last + 9, 3))
        ended = (spans[-1]["last_step"] + 1) * STEP_NS
        waited, prefilled = first * STEP_NS - arrived, (first + 1) * STEP_NS - arrived
        row: dict[str, Any] = {
            "server_request_id": f"{folder.name}-{index}",
            "arrived_ns": arrived,
            "finished_ns": ended,
            "preemptions": int(index % 10 == 9),
            "spans": spans,
        }
        row |= {f"{name}_ns": 0 for name in buckets} | {f"first_{name}_ns": 0 for name in buckets}
        row |= {"wait_slot_ns": waited, "own_ns": ended - arrived - waited}
        row |= {"first_wait_slot_ns": waited // 2, "first_own_ns": prefilled - waited}
        rows.append(row)
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"schema_version": "1"})
    pq.write_table(table, folder / "engine_requests.parquet")


def span(kind: str, first: int, last: int, tokens: int) -> dict[str, Any]:
    return {"kind": kind, "first_step": first, "last_step": last, "tokens": tokens}


def write_server_metrics(folder: Path) -> None:
    """Write what a target told of itself, once a second."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("running", "waiting", "kv_usage")
    rows = [
        {"t_ns": second * SECOND_NS, "name": name, "value": 0.1 * second}
        for second in range(3)
        for name in names
    ]
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"schema_version": "1"})
    pq.write_table(table, folder / "server.parquet")
