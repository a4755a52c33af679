"""What the slowest first tokens waited for, request by request, in the words of whoever kept account.

The reference engine's account up to the first token, and the rest as the client's and the network's share;
without an account the phases that the client saw. The parts of a request sum to its TTFT, and none is below
0: where the engine was faster than its cost model says, all work is taken to have been that much faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.measure.measured import Measured
from loadgen.measure.series import SlowRequest
from loadgen.store import Run

CLIENT, RESIDUAL = "client", "residual"
WORKS = ("own", "batch", "interference", "recompute", "swap")
FIRST = "first_"
NOT_BUCKETS = ("first_scheduled_ns", "first_token_ns")


def first_token_causes(
    run: Run, measured: Measured, requests: Sequence[SlowRequest]
) -> list[dict[str, float]]:
    """Return for each request the seconds of its TTFT by cause."""
    accounts = _accounts(run, [request.index for request in requests])
    found: list[dict[str, float]] = []
    for request in requests:
        parts, ttft_s = accounts.get(request.index), request.ttft_s or 0.0
        if parts is None:
            lag_s = float(measured.columns.sent_ns[request.index]) / 1e9 - request.scheduled_s
            parts = {"not sent": lag_s, "no answer": ttft_s - lag_s}
        else:
            parts = _without_negatives({CLIENT: ttft_s - sum(parts.values()), **parts})
        found.append({cause: seconds for cause, seconds in parts.items() if seconds})
    return found


def _without_negatives(parts: dict[str, float]) -> dict[str, float]:
    work_s = sum(parts[name] for name in WORKS)
    if parts[RESIDUAL] >= 0 or not work_s:
        return parts
    share = 1 + parts[RESIDUAL] / work_s
    return {**parts, **{name: share * parts[name] for name in WORKS}, RESIDUAL: 0.0}


def _accounts(run: Run, indices: Sequence[int]) -> dict[int, dict[str, float]]:
    """The engine's buckets up to the first token, in seconds, of those requests that have an account."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = run.engine_request_rows()
    if table is None or "first_own_ns" not in table.column_names:
        return {}
    prefix = f"{run.manifest.get('run_id', run.path.name)}-"
    names = [
        n for n in table.column_names if n.startswith(FIRST) and n.endswith("_ns") and n not in NOT_BUCKETS
    ]
    asked = pa.array([f"{prefix}{index}" for index in indices], pa.string())
    is_asked = pc.is_in(table.column("server_request_id"), value_set=asked)
    rows: list[dict[str, Any]] = table.filter(is_asked).select(["server_request_id", *names]).to_pylist()
    return {
        int(row["server_request_id"].removeprefix(prefix)): {
            name.removeprefix(FIRST).removesuffix("_ns"): row[name] / 1e9 for name in names
        }
        for row in rows
        if row["first_own_ns"] is not None
    }
