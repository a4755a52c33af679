"""Result files of other tools, in and out: vLLM bench (Python and Rust) and SGLang's bench_serving.

A file with per-request arrays becomes a run folder with a row a request, as far as the arrays go; one with
totals only becomes a folder with a summary and no rows. What a file does not hold is listed, never made up:
these tools start their clocks when they send, count gaps between events, and keep no failed request's tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.errors import UsageError
from loadgen.measure.summary import summarize
from loadgen.measurement import conclude
from loadgen.records import Outcome, RequestRecord
from loadgen.row_stream import RowWriter, stream_path
from loadgen.store import Run, RunFolder
from workloads.plan import Plan

ARRAYS: dict[
    str, tuple[str | None, str]
] = {  # the Rust client's name in failed_requests; what is unknown without it
    "queue_times": (None, "when each request was due: latency is from the send"),
    "start_times": (
        "start_time",
        "when each request was sent: rates, load in flight and warm-up are not known",
    ),
    "ttfts": ("ttft", "time to first token of each request"),
    "itls": ("itl", "gaps between events"),
    "latencies": ("latency", "end-to-end latency: taken as time to first token plus the gaps"),
    "errors": ("error", "errors: a request without a first token counts as failed"),
    "input_lens": ("prompt_len", "prompt lengths"),
    "output_lens": ("output_tokens", "output lengths"),
}
ALWAYS_MISSING = (
    "stamps of the kernel, and how far each can be off",
    "the length asked for: taken as the length given",
)
STATISTICS = {"mean": "mean", "median": "p50", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}
METRICS = {  # ours by theirs; their clocks start at the send
    "ttft": "ttft_from_send_s",
    "tpot": "tpot_s",
    "itl": "event_gap_s",
    "e2el": "e2e_from_send_s",
    "e2e_latency": "e2e_from_send_s",
    "client_queue_time": "send_lag_s",
}
FAILURES = (
    ("timeout", Outcome.TIMEOUT),
    ("cannot connect", Outcome.CONNECT_FAILED),
    ("connection refused", Outcome.CONNECT_FAILED),
    ("disconnected", Outcome.RESET),
    ("reset", Outcome.RESET),
    ("payload", Outcome.TRUNCATED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measurement of another tool. missing: what its file does not say, one sentence each."""

    tool: str
    values: Mapping[str, Any]
    records: tuple[RequestRecord, ...]
    missing: tuple[str, ...]


def read_results(file: Path) -> list[Result]:
    """Read one object, a list of them, or one a line; UsageError says what else it is."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"cannot read {file}: {exc}") from exc
    documents = _documents(text, file)
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise UsageError(f"{file} holds no result: an object, a list of objects or one a line is due")
    return [_read(document, f"{file}, result {number}") for number, document in enumerate(documents, 1)]


def _documents(text: str, file: Path) -> list[Any]:
    """The documents of a file. Python's own reader takes the bare Infinity and NaN that SGLang writes."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"{file} is neither JSON nor JSON lines: {exc}") from exc
    return whole if isinstance(whole, list) else [whole]


def _read(values: Mapping[str, Any], where: str) -> Result:
    tool = _tool_of(values)
    if tool is None:
        raise UsageError(
            f"{where} is no result of vLLM bench or SGLang's bench_serving: it lacks `completed` or "
            "`request_throughput`"
        )
    columns = {name: value for name in ARRAYS if isinstance(value := values.get(name), list) and value}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise UsageError(f"{where}: arrays of different lengths: {lengths}")
    if "ttfts" not in columns and "latencies" not in columns:
        nothing = ("requests: totals only, so that nothing can be checked, drawn or judged",)
        return Result(tool=tool, values=values, records=(), missing=nothing)
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    failed = values.get("failed_requests")
    if isinstance(failed, list) and len(rows) <= int(values["completed"]):
        rows += [_failed_row(entry) for entry in failed]
    rows.sort(key=_due_s)
    records = tuple(_record(index, row, _due_s(rows[0])) for index, row in enumerate(rows))
    missing = ALWAYS_MISSING + tuple(lack for name, (_, lack) in ARRAYS.items() if name not in columns)
    return Result(tool=tool, values=values, records=records, missing=missing)


def _tool_of(values: Mapping[str, Any]) -> str | None:
    if "completed" not in values or "request_throughput" not in values:
        return None
    if "total_output_tokens_retokenized" in values or "accept_length" in values:
        return "SGLang bench_serving"
    return "vLLM bench (Rust)" if "failed_requests" in values or "steady_state" in values else "vLLM bench"


def _failed_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A failed request of the Rust client, under the names of the arrays."""
    row = {ours: entry.get(theirs) for ours, (theirs, _) in ARRAYS.items() if theirs}
    return {**row, "errors": row["errors"] or "failed"}


def _number(value: object) -> float:
    """A finite number; 0 for anything else."""
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else 0.0


def _due_s(row: Mapping[str, Any]) -> float:
    """When a request was to be sent: what it waited in the client came before its start."""
    return _number(row.get("start_times")) - _number(row.get("queue_times")) if "start_times" in row else 0.0


def _record(index: int, row: Mapping[str, Any], first_s: float) -> RequestRecord:
    """One request. A TTFT of 0 is none; gaps are between events, and so is one token an event verified."""
    scheduled_ns = _ns(_due_s(row) - first_s)
    sent_ns = scheduled_ns + _ns(_number(row.get("queue_times")))
    ttft_s, error = _number(row.get("ttfts")), str(row.get("errors") or "")
    gaps = [_number(gap) for gap in row.get("itls") or ()]
    latency_s = _number(row.get("latencies")) or ttft_s + sum(gaps)
    is_ok = not error and (ttft_s > 0 or ("ttfts" not in row and latency_s > 0))
    chunk_ns = [sent_ns + _ns(at) for at in np.cumsum([ttft_s, *gaps])] if ttft_s > 0 else []
    output_tokens = int(_number(row.get("output_lens"))) or None
    prompt_tokens = int(_number(row.get("input_lens"))) or None
    is_counted = output_tokens == len(chunk_ns)
    return RequestRecord(
        index=index,
        scheduled_ns=scheduled_ns,
        sent_ns=sent_ns,
        first_token_ns=chunk_ns[0] if chunk_ns else None,
        first_answer_ns=chunk_ns[0] if chunk_ns else None,
        last_token_ns=chunk_ns[-1] if chunk_ns else sent_ns + _ns(latency_s) if is_ok else None,
        done_ns=sent_ns + _ns(latency_s) if latency_s else None,
        prompt_tokens_planned=prompt_tokens or 1,
        output_tokens_planned=output_tokens or 1,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prompt_tokens_source="unknown" if prompt_tokens is None else "tokenizer",
        output_tokens_source="unknown" if output_tokens is None else "usage",
        chunk_ns=chunk_ns,
        chunk_lower_ns=chunk_ns,
        chunk_tokens=[1 if is_counted else None] * len(chunk_ns),
        stamp_source="user",
        outcome=Outcome.OK if is_ok else _outcome_of(error),
        error=None if is_ok else error or "no first token",
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _outcome_of(error: str) -> Outcome:
    """The outcome that the words of an error name; `http_status` for those that name none."""
    named = (outcome for word, outcome in FAILURES if word in error.lower())
    return next(named, Outcome.HTTP_STATUS if error else Outcome.TRUNCATED)


def import_result(result: Result, file: Path, out: Path, name: str) -> Run:
    """Write a run folder for one result of another tool."""
    folder = RunFolder.create(out, name)
    values, records = result.values, result.records
    limit = values.get("max_concurrency")
    manifest: dict[str, Any] = {
        "run_id": folder.run_id,
        "status": "complete",
        "config": {
            "warmup": {"value": 0, "origin": "default"},
            "max_in_flight": {"value": limit if isinstance(limit, int) else None, "origin": "file"},
        },
        "target": _target_of(values),
        "imported": {"tool": result.tool, "file": file.name, "missing": list(result.missing)},
        "started": str(values.get("date", "")),
    }
    if not records:
        folder.write_manifest(manifest)
        folder.write_summary(_summary_of_totals(result))
        return Run(folder.path, manifest)
    plan = Plan.of(
        np.array([record.scheduled_ns for record in records], np.int64),
        np.array([record.prompt_tokens_planned for record in records], np.int32),
        np.array([record.output_tokens_planned for record in records], np.int32),
        {"imported": result.tool},
    )
    folder.write_plan(plan)
    with closing(RowWriter(stream_path(folder.path, 0))) as rows:
        for record in records:
            rows.append(record)
    folder.compact_requests(plan)
    folder.write_manifest(manifest | {"plan_digest": plan.digest()})
    return conclude(folder)


def _target_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured; a run of ours that was simulated stays that."""
    ours = values.get("bench")
    cost = ours.get("simulated") if isinstance(ours, dict) else None
    simulated = {"kind": "simulated engine", "cost": cost} if isinstance(cost, dict) else {}
    return {"kind": "import", "model": values.get("model_id"), **simulated}


def _summary_of_totals(result: Result) -> dict[str, Any]:
    """A summary without rows: the other tool's own statistics under our names, the rest null."""
    values = result.values
    metrics = {}
    for theirs, ours in METRICS.items():
        found = {o: values.get(f"{t}_{theirs}_ms") for t, o in STATISTICS.items()}
        if any(value is not None for value in found.values()):
            scaled = {o: _number(v) / 1e3 if v is not None else None for o, v in found.items()}
            metrics[ours] = {"unit": "s", "n": int(values["completed"]), **scaled}
    failed, completed = (int(_number(values.get(name))) for name in ("failed", "completed"))
    reason = {
        "code": "imported_totals",
        "message": f"only totals of {result.tool} are there.",
        "advice": "Save that tool's details (--save-detailed, --output-details), or measure with bench run.",
    }
    return {
        "schema_version": 1,
        "verdict": {"status": "invalid", "reasons": [reason], "findings": [], "warnings": []},
        "rates": {
            "completed_per_s": values.get("request_throughput"),
            "output_tokens_per_s": values.get("output_throughput"),
        },
        "counts": {"scheduled": completed + failed, "ok": completed, "failed": failed},
        "metrics": metrics,
    }


def export_vllm(run: Run) -> dict[str, Any]:
    """The run in the keys of vLLM bench's `--save-detailed`; ours beside them under `bench`.

    By that tool's rules: every ok request counts, latency is from the send, gaps are between events, and a
    failed request has zeros. What a request waited in the client stands under `queue_times`.
    """
    rows = run.rows.read().to_pylist()
    summary = summarize(run)
    config = {name: entry.get("value") for name, entry in run.manifest.get("config", {}).items()}
    target = run.manifest.get("target") or {}
    model, ours = target.get("model"), {"run": run.path.name, "verdict": summary["verdict"]["status"]}
    if target.get("kind") == "simulated engine":
        ours["simulated"] = {name: target["cost"].get(name) for name in ("name", "origin")}
        model = f"simulated {ours['simulated']['name']}"
    for row in rows:
        row["prompt_tokens"] = row["prompt_tokens"] or row["prompt_tokens_planned"]
        if row["outcome"] != Outcome.OK:
            row.update(output_tokens=0, first_token_ns=None, last_token_ns=None, chunk_ns=[])
            row["error"] = row["error"] or row["outcome"]
    ok = [row for row in rows if row["outcome"] == Outcome.OK]
    starts_s = [(row["scheduled_ns"] if row["sent_ns"] is None else row["sent_ns"]) / 1e9 for row in rows]
    latencies_s = [_span_s(row, "sent_ns", "last_token_ns") for row in rows]
    offered_per_s = "inf" if config.get("concurrency") else summary["rates"]["offered_per_s"]
    return {
        "date": _vllm_date(str(run.manifest.get("started", ""))),
        "endpoint_type": target.get("api"),
        "backend": target.get("api"),
        "label": config.get("name"),
        "model_id": model,
        "tokenizer_id": None,
        "num_prompts": len(rows),
        "request_rate": config.get("rate") or offered_per_s,
        "burstiness": 1.0 if config.get("arrival", "poisson") == "poisson" else None,
        "max_concurrency": config.get("concurrency") or config.get("max_in_flight"),
        "completed": len(ok),
        "failed": len(rows) - len(ok),
        "total_input_tokens": sum(row["prompt_tokens"] for row in ok),
        "total_output_tokens": sum(row["output_tokens"] or 0 for row in rows),
        "request_goodput": summary["slo"]["goodput_per_s"],
        "max_concurrent_requests": _most_at_once(starts_s, latencies_s),
        **summary["dialects"]["vllm"],
        "input_lens": [row["prompt_tokens"] for row in rows],
        "output_lens": [row["output_tokens"] or 0 for row in rows],
        "ttfts": [_span_s(row, "sent_ns", "first_token_ns") for row in rows],
        "itls": [(np.diff(row["chunk_ns"]) / 1e9).tolist() for row in rows],
        "start_times": starts_s,
        "latencies": latencies_s,
        "queue_times": [_span_s(row, "scheduled_ns", "sent_ns") for row in rows],
        "generated_texts": [""] * len(rows),
        "errors": ["" if row["outcome"] == Outcome.OK else row["error"] for row in rows],
        "bench": ours,
    }


def _span_s(row: Mapping[str, Any], start: str, end: str) -> float:
    return 0.0 if row[start] is None or row[end] is None else (row[end] - row[start]) / 1e9


def _most_at_once(starts_s: Sequence[float], spans_s: Sequence[float]) -> int:
    ends_s = [start + span for start, span in zip(starts_s, spans_s, strict=True)]
    edges = sorted([(at, 1) for at in starts_s] + [(at, -1) for at in ends_s])
    return int(max(np.cumsum([step for _, step in edges]), default=0))


def _vllm_date(started: str) -> str:
    """`20260131-120000` of an ISO instant."""
    digits = "".join(c for c in started[:19] if c.isdigit())
    return f"{digits[:8]}-{digits[8:]}" if len(digits) == 14 else started
