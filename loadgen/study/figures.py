"""What the study reads of a run: figures of its summary by name, and a few of its engine's own account."""

from __future__ import annotations

from typing import Any

from loadgen.measure.replicates import Replicate
from loadgen.store import Run

METRICS = {"ttft_s": "ttft", "itl_s": "itl", "e2e_s": "e2e"}


def read_figures(run: Run) -> dict[str, float]:
    """Return `ttft.p99` and its like, `engine.*`, mean seconds by cause as `mean.*`, and shares of the tail.

    `ttft.tail.wait_slot` is the share of a cause in what sets the slowest hundredth apart;
    `ttft.shortest.p99` is over the shortest prompts alone.
    """
    replicate = Replicate.of(run)
    found = {**replicate.figures}
    found |= {f"engine.{name}": value for name, value in replicate.engine.items()}
    found |= {f"mean.{cause}": value for cause, value in replicate.causes_s.items()}
    attribution = (run.summary or {}).get("attribution") or {}
    for metric, short in METRICS.items():
        tail = (attribution.get("tails") or {}).get(metric) or {}
        for cause in tail.get("causes", ()):
            if cause["share"] is not None:
                found[f"{short}.tail.{cause['cause']}"] = cause["share"]
    shortest = ((run.summary or {}).get("groups") or {}).get("prompt_tokens_up_to", [{}])[0].get(
        "ttft_s"
    ) or {}
    found |= {f"ttft.shortest.{name}": shortest[name] for name in ("p50", "p99") if shortest.get(name)}
    found["is_stable"] = {True: 1.0, None: 0.5, False: 0.0}[replicate.is_stable]
    found["num_requests"] = float((run.summary or {})["counts"]["scheduled"])
    return found | read_steps(run)


def read_steps(run: Run) -> dict[str, float]:
    """Return what the step log says over the whole run, start and end included."""
    import numpy as np

    steps, requests = run.step_rows(), run.engine_request_rows()
    if steps is None or requests is None or not len(steps) or not len(requests):
        return {}
    step: dict[str, Any] = {name: steps.column(name).to_numpy() for name in ("start_ns", "end_ns")}
    columns = ("running", "decode_seqs", "decode_context", "prefill_seqs", "kv_used", "kv_cached", "kv_free")
    for name in columns:
        step[name] = steps.column(name).to_numpy().astype(np.float64)
    of = {name: requests.column(name).to_numpy() for name in ("output_tokens", "preemptions")}
    block_tokens = int(steps.schema.metadata[b"block_tokens"])
    ticks = step["end_ns"] - step["start_ns"]
    span_s = (step["end_ns"].max() - step["start_ns"].min()) / 1e9
    rows = step["decode_seqs"]
    batch = rows + step["prefill_seqs"]
    busy_tokens = (step["kv_used"] * block_tokens * ticks).sum()
    is_full = batch >= 0.9 * batch.max()
    found = {
        "tokens_per_s": float(of["output_tokens"].sum()) / span_s,
        "rows_wasted": 1 - float((of["output_tokens"] - 1).sum()) / max(float(rows.sum()), 1.0),
        "tokens_per_s_when_full": float(rows[is_full].sum() / (ticks[is_full].sum() / 1e9)),
        "step_few_over_full": _few_over_full(step["running"], ticks),
        "batch_peak": float(batch.max()),
        "batch_over_peak": float(np.average(batch, weights=ticks) / batch.max()),
        "kv_useful": float((step["decode_context"] * ticks).sum() / busy_tokens) if busy_tokens else 0.0,
        "kv_tokens_per_request": float(busy_tokens / max((batch * ticks).sum(), 1.0)),
        "pool_tokens": float((step["kv_used"] + step["kv_cached"] + step["kv_free"])[0] * block_tokens),
        "evicted": float((of["preemptions"] > 0).mean()),
        "evictions_per_request": float(of["preemptions"].mean()),
    }
    return {name: value for name, value in found.items() if value is not None}


def _few_over_full(running: Any, ticks: Any) -> float | None:
    """Return the median step with at most a quarter of the most residents over one with nearly all."""
    import numpy as np

    few, full = (running > 0) & (running <= running.max() / 4), running >= 0.9 * running.max()
    return float(np.median(ticks[few]) / np.median(ticks[full])) if few.any() and full.any() else None
