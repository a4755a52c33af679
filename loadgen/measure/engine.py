"""What the reference engine did inside the window: how full it was, whom it evicted, how steady its batches.

Read from its own logs, in the run folder. Shares and means are over time, not over steps: a long step counts
for more.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Window
from loadgen.store import Run

Ints = NDArray[np.int64]
COLUMNS = (
    "start_ns", "end_ns", "decode_seqs", "prefill_seqs", "prefill_tokens",
    "kv_used", "kv_cached", "kv_free", "preempted",
)  # fmt: skip


def describe_engine(run: Run, window: Window) -> dict[str, float | None]:
    """Return the `engine` of summary.json; nothing where its steps are not known."""
    table = run.step_rows()
    if table is None or not window.length_s > 0:
        return {}
    known = [name for name in COLUMNS if name in table.column_names]
    steps = {name: table.column(name).to_numpy() for name in known}
    inside = np.clip(steps["end_ns"], window.start_ns, window.end_ns)
    inside = inside - np.clip(steps["start_ns"], window.start_ns, window.end_ns)
    kept = inside > 0
    steps = {name: values[kept] for name, values in steps.items()}
    weights = inside[kept].astype(np.float64)
    num_steps = len(weights)
    found: dict[str, float | None] = {
        "busy_fraction": float(weights.sum()) / 1e9 / window.length_s,
        "steps_per_s": num_steps / window.length_s,
        "mean_step_s": float(weights.sum()) / 1e9 / num_steps if num_steps else None,
    }
    if not num_steps or len(known) < len(COLUMNS):
        return found
    batch = steps["decode_seqs"] + steps["prefill_seqs"]
    blocks = steps["kv_used"] + steps["kv_cached"] + steps["kv_free"]
    return {
        **found,
        "batch_mean": float(np.average(batch, weights=weights)),
        "kv_used_fraction": float(np.average(steps["kv_used"] / blocks, weights=weights)),
        "num_preemptions": int(steps["preempted"].sum()),
        "recompute_fraction": recompute_fraction(run, steps),
        "flapping_cv": flapping_cv(steps, batch, weights),
        "flapping_step": float(np.mean(np.abs(np.diff(batch)) / batch[:-1])) if num_steps > 1 else None,
    }


def recompute_fraction(run: Run, steps: Mapping[str, Ints]) -> float | None:
    """Return the share of all tokens computed that had been computed before an eviction."""
    table = run.engine_request_rows()
    if table is None or "finished_ns" not in table.column_names:
        return None
    ended = table.column("finished_ns").to_numpy()
    is_inside = (ended >= steps["start_ns"][0]) & (ended <= steps["end_ns"][-1])
    again = int(table.column("recomputed_tokens").to_numpy()[is_inside].sum())
    computed = int(steps["decode_seqs"].sum() + steps["prefill_tokens"].sum())
    return again / computed if computed else None


def flapping_cv(steps: Mapping[str, Ints], batch: Ints, weights: NDArray[np.float64]) -> float | None:
    """Return the coefficient of variation of the mean batch of each second that had a step."""
    second = (steps["start_ns"] // 1_000_000_000).astype(np.int64)
    second -= second.min()
    weight = np.bincount(second, weights)
    level = np.bincount(second, weights * batch)[weight > 0] / weight[weight > 0]
    return float(level.std() / level.mean()) if len(level) > 1 else None
