"""What the tail is made of: the excess of each cause in the slowest requests over the rest.

Reads the reference engine's own account of each request, nanosecond by nanosecond, and adds what lies outside
the engine: client and network. The causes of a request sum to its latency exactly, so their excesses sum to
the excess of the latency. For gaps between tokens the account is by step: all decodes of a step share its
gap. Causes are named by the engine; nothing here knows how it found them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.measure.columns import Floats
from loadgen.measure.measured import Measured
from loadgen.store import Run

if TYPE_CHECKING:
    import pyarrow as pa

TAIL_SHARE = 0.01
LEAST_EXCESS = 0.05  # of the rest: parts of a smaller excess are large numbers that all but cancel
CLIENT, RESIDUAL = "client", "residual"
FIRST = "first_"
STEP_COLUMNS = ("start_ns", "end_ns", "running", "decode_seqs", "decode_work_ns", "work_ns")
NOT_BUCKETS = ("arrived_ns", "enqueued_ns", "first_scheduled_ns", "first_token_ns", "finished_ns")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """Latencies in seconds and what they are made of; weights: how many values each stands for."""

    latency_s: Floats
    causes: dict[str, Floats]
    weights: Floats

    def tail(self) -> dict[str, Any] | None:
        """Compare the slowest hundredth with the rest; None where there are too few to tell apart.

        Shares are null where the slowest are hardly slower than the rest.
        """
        order = np.argsort(self.latency_s, kind="stable")
        weights = self.weights[order]
        cut = weights.sum() * (1 - TAIL_SHARE)
        is_tail = np.cumsum(weights) > cut
        if len(order) < 2 or is_tail.all() or not is_tail.any():
            return None
        slow, rest = order[is_tail], order[~is_tail]
        tail_s, rest_s = self._mean(self.latency_s, slow), self._mean(self.latency_s, rest)
        excess_s = tail_s - rest_s
        causes: list[dict[str, Any]] = []
        for name, values in self.causes.items():
            in_tail, in_rest = self._mean(values, slow), self._mean(values, rest)
            excess = in_tail - in_rest
            if in_tail or in_rest:
                share = excess / excess_s if excess_s > LEAST_EXCESS * rest_s else None
                causes.append(
                    {"cause": name, "tail_s": in_tail, "rest_s": in_rest, "excess_s": excess, "share": share}
                )
        causes.sort(key=lambda cause: -cause["excess_s"])
        return {
            "n": int(self.weights.sum()),
            "num_tail": int(self.weights[slow].sum()),
            "from_s": float(self.latency_s[slow].min()),
            "tail_s": tail_s,
            "rest_s": rest_s,
            "excess_s": excess_s,
            "causes": causes,
        }

    def _mean(self, values: Floats, rows: Floats) -> float:
        return float(np.average(values[rows], weights=self.weights[rows]))


def attribute(run: Run, measured: Measured) -> dict[str, Any]:
    """Compute the `attribution` of summary.json; empty where the target keeps no account of its time."""
    table = run.engine_request_rows()
    if table is None or "own_ns" not in table.column_names or table.column("own_ns").null_count == len(table):
        return {}
    index, buckets = _by_request(run, table)
    counted = np.zeros(len(measured.columns), bool)
    counted[index] = measured.counted[index]
    kept = counted[index]
    index, buckets = index[kept], {name: values[kept] for name, values in buckets.items()}
    if not len(index):
        return {}
    columns = measured.columns
    scheduled = columns.scheduled_ns[index]
    e2e = _parts(columns.last_token_ns[index] - scheduled, buckets, "")
    ttft = _parts(columns.first_token_ns[index] - scheduled, buckets, FIRST)
    found = {"ttft_s": ttft.tail(), "itl_s": None, "e2e_s": e2e.tail()}
    gaps = _gaps(run, measured, buckets)
    if gaps is not None:
        found["itl_s"] = gaps.tail()
    total = float(e2e.latency_s.sum())
    return {
        "num_requests": len(index),
        "tail_share": TAIL_SHARE,
        "tails": found,
        "mean_s": {name: float(values.mean()) for name, values in e2e.causes.items()},
        "residual_fraction": float(np.abs(e2e.causes[RESIDUAL]).sum()) / total if total else None,
    }


def _by_request(run: Run, table: pa.Table) -> tuple[Any, dict[str, Floats]]:
    """Return the plan's index of each row with an account, and its buckets in nanoseconds."""
    import pyarrow.compute as pc

    prefix = f"{run.manifest.get('run_id', run.path.name)}-"
    ids = table.column("server_request_id")
    table = table.filter(pc.and_(pc.starts_with(ids, prefix), pc.is_valid(table.column("own_ns"))))
    index = pc.cast(
        pc.utf8_slice_codeunits(table.column("server_request_id"), len(prefix)), "int64"
    ).to_numpy()
    names = [n for n in table.column_names if n.endswith("_ns") and n not in NOT_BUCKETS]
    buckets = {n: table.column(n).to_numpy().astype(np.float64) for n in names}
    buckets["num_preemptions"] = table.column("preemptions").to_numpy().astype(np.float64)
    return index, buckets


def _parts(latency_ns: Floats, buckets: dict[str, Floats], prefix: str) -> Parts:
    names = [name.removesuffix("_ns") for name in buckets if name.endswith("_ns")]
    names = [name for name in names if not name.startswith(FIRST)]
    causes = {name: buckets[f"{prefix}{name}_ns"] / 1e9 for name in names}
    inside = np.sum([buckets[f"{prefix}{name}_ns"] for name in names], axis=0)
    causes[CLIENT] = (latency_ns - inside) / 1e9
    return Parts(latency_s=latency_ns / 1e9, causes=causes, weights=np.ones(len(latency_ns)))


def _gaps(run: Run, measured: Measured, buckets: dict[str, Floats]) -> Parts | None:
    """Return the gaps between tokens by step, and one for each eviction; None without a cost of steps."""
    table = run.step_rows()
    if table is None or "work_ns" not in table.column_names:
        return None
    step = {name: table.column(name).to_numpy().astype(np.float64) for name in STEP_COLUMNS}
    window = measured.window
    is_decoding = step["decode_seqs"] > 0
    at = np.flatnonzero(is_decoding)
    before, at = at[:-1], at[1:]
    # A gap begins where the residents' last tokens came out; after an idle engine there is none.
    begins = step["end_ns"][before]
    is_gap = (step["running"][before] > 0) & window.holds(begins)
    before, at, begins = before[is_gap], at[is_gap], begins[is_gap]
    ticks = step["end_ns"] - step["start_ns"]
    busy = np.concatenate([[0.0], np.cumsum(ticks)])
    decodes, work = step["decode_work_ns"][at], step["work_ns"][at]
    stalled = busy[at] - busy[before + 1]
    gap = step["end_ns"][at] - begins
    causes = {
        "batch": decodes,
        "interference": work - decodes,
        "stall_prefill": stalled,
        "host": gap - stalled - ticks[at],
        RESIDUAL: ticks[at] - work,
    }
    weights = step["decode_seqs"][at]
    evicted = buckets["num_preemptions"] > 0
    times = buckets["num_preemptions"][evicted]
    away = {name: buckets[f"{name}_ns"][evicted] / times for name in ("preempted", "recompute")}
    none = np.zeros(int(evicted.sum()))
    causes = {name: np.append(values, none) / 1e9 for name, values in causes.items()}
    for name, values in away.items():
        causes[name] = np.append(np.zeros(len(gap)), values) / 1e9
    latency = np.append(gap, away["preempted"] + away["recompute"]) / 1e9
    return Parts(latency_s=latency, causes=causes, weights=np.append(weights, times))
