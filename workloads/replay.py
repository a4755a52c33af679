"""From a recorded workload to a plan: which rows, at what speed, how long; every row read is accounted for.

Speed divides the times, so that bursts and think times shrink too; thinning leaves rows out by chance and
keeps the time structure; copies lay shifted copies over each other and smooth bursts. They are not the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from workloads.errors import WorkloadError
from workloads.figures import workload_figures
from workloads.laws import to_tokens
from workloads.limits import ContextLimit
from workloads.plan import Plan
from workloads.streams import Streams
from workloads.traces import BadRows, TraceTable, read_trace

ZeroOutput = Literal["drop", "as-one", "error"]
ZERO_OUTPUT: tuple[str, ...] = ("drop", "as-one", "error")
MIN_RATE_PER_S, MAX_RATE_PER_S = 0.01, 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How a recorded workload is replayed. window_s counts from the file's first row, before speed."""

    path: Path
    window_s: tuple[float, float | None] | None
    speed: float
    length_scale: float
    num_requests: int | None
    bad_rows: BadRows
    zero_output: ZeroOutput
    limit: ContextLimit

    def plan(self, streams: Streams) -> Plan:
        table = self._select(read_trace(self.path, bad_rows=self.bad_rows))
        inputs = to_tokens(table.input_tokens.astype(np.float64) * self.length_scale)
        outputs = to_tokens(table.output_tokens.astype(np.float64) * self.length_scale)
        rng = streams.generator("lengths/resample")

        def redraw(n: int) -> tuple[Any, Any]:
            picks = rng.integers(0, len(inputs), n)
            return inputs[picks], outputs[picks]

        fitted = self.limit.fit(inputs, outputs, redraw, lambda i: f"{self.path}, line {table.line[i]}:")
        table = table.keep(fitted.kept, "over_context")
        if not len(table):
            raise WorkloadError(f"{self.path}: no row is left to send ({_reasons(table)})")
        arrival_ns = np.rint((table.arrival_ns - table.arrival_ns[0]) / self.speed).astype(np.int64)
        source = {"trace": _facts(table), "limits": fitted.counts}
        return Plan.of(
            arrival_ns,
            fitted.input_tokens[fitted.kept].astype(np.int32),
            fitted.output_tokens[fitted.kept].astype(np.int32),
            source,
        )

    def _select(self, table: TraceTable) -> TraceTable:
        """Apply the window first, then the row rules, so that a row outside is counted as outside."""
        if self.window_s is not None:
            start_ns, end_s = round(self.window_s[0] * 1e9), self.window_s[1]
            inside = table.arrival_ns >= start_ns
            if end_s is not None:
                inside &= table.arrival_ns < round(end_s * 1e9)
            span_s = float(table.arrival_ns[-1]) / 1e9 if len(table) else 0.0
            table = table.keep(inside, "outside_window")
            if not len(table):
                raise WorkloadError(f"{self.path}: no row lies in the window; the file spans 0:{span_s:.0f}s")
        table = self._without_zeros(table)
        if self.num_requests is not None:
            table = table.keep(np.arange(len(table)) < self.num_requests, "beyond_num_requests")
        if not len(table):
            raise WorkloadError(f"{self.path}: no row is left to send ({_reasons(table)})")
        _check_unit(table)
        return table

    def _without_zeros(self, table: TraceTable) -> TraceTable:
        table = table.keep(table.input_tokens > 0, "zero_input")
        zero = table.output_tokens == 0
        if self.zero_output == "error" and zero.any():
            raise WorkloadError(
                f"{self.path}, line {table.line[zero][0]}, column {table.format.output_tokens}: 0 output "
                "tokens; choose --zero-output drop or as-one"
            )
        return table.keep(~zero, "zero_output") if self.zero_output == "drop" else table


def _check_unit(table: TraceTable) -> None:
    """Refuse a rate that only a wrong unit explains; a handful of rows implies no rate."""
    rate = workload_figures(table.arrival_ns, table.input_tokens, table.output_tokens)["rate_per_s"]
    if rate is not None and len(table) >= 100 and not MIN_RATE_PER_S <= rate <= MAX_RATE_PER_S:
        raise WorkloadError(
            f"{table.path}: read as {table.format.name} (times in {table.format.unit}) it has {rate:.3g} "
            "requests/s; give the right unit with --time-unit"
        )


def _facts(table: TraceTable) -> dict[str, Any]:
    """Say what was read, with the figures of the kept rows as recorded, before speed and scale."""
    return {
        "path": str(table.path),
        "format": table.format.name,
        "unit": table.format.unit,
        "rows": {"read": table.num_read, "kept": len(table), "dropped": table.dropped},
        "notes": list(table.notes),
        **workload_figures(table.arrival_ns, table.input_tokens, table.output_tokens),
    }


def _reasons(table: TraceTable) -> str:
    dropped = ", ".join(f"{count} {reason}" for reason, count in table.dropped.items())
    return f"{table.num_read} read" + (f", {dropped}" if dropped else "")
