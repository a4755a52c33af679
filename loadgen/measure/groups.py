"""The metrics again for parts of a run: per class, session turn, prompt length and slice of time.

A part that is slow hides in the whole; here it has its own line. Figures per request only, over the same
counted requests and by the same rule as everywhere; attained fractions have the failures of their part in the
denominator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Bools, Floats
from loadgen.measure.measured import Measured
from loadgen.measure.slo import Objective, met_by_request
from loadgen.measure.verdict import TEMPLATE_TOKENS
from loadgen.stats.quantile import quantiles
from loadgen.store import Run

GROUP_METRICS = ("ttft_s", "tpot_s", "e2e_s", "max_gap_s")
NUM_TIME_SLICES = 10
MAX_GROUPS = 50
LAST_TURN = 10  # later turns stand with this one

Labels = NDArray[np.int64]


def describe_groups(run: Run, measured: Measured, objectives: Sequence[Objective]) -> dict[str, Any]:
    """Figures of each part, by what it was parted by; parts that a run does not have are left out."""
    met = np.zeros(len(measured.columns), np.bool_)
    per_request = [objective for objective in objectives if objective.statistic is None]
    met[measured.counted] = met_by_request(per_request, measured.values)
    described = {}
    for name, (keys, labels) in partings(run, measured).items():
        if 1 < len(keys) <= MAX_GROUPS:
            length_s = measured.rated_s / (NUM_TIME_SLICES if name == "from_s" else 1)
            described[name] = [
                {"key": key, **describe_part(measured, labels == i, met if per_request else None, length_s)}
                for i, key in enumerate(keys)
            ]
    return described


def partings(run: Run, measured: Measured) -> Mapping[str, tuple[list[Any], Labels]]:
    """Per parting its keys and, per row, the number of its key; -1 for a row that belongs to none."""
    columns = measured.columns
    table = run.rows.read(["class", "turn"])
    classes, class_of = np.unique(table.column("class").to_numpy().astype(str), return_inverse=True)
    turn_of = np.minimum(table.column("turn").to_numpy(), LAST_TURN)
    # A chat template is the same in every request, and found cached in all of them but the first.
    is_warm = np.where(np.isnan(columns.cached_tokens), -1, columns.cached_tokens > TEMPLATE_TOKENS)
    powers, power_of = np.unique(
        np.ceil(np.log2(np.maximum(columns.prompt_tokens_planned, 1))), return_inverse=True
    )
    window = measured.window
    edges = np.linspace(window.start_ns, window.end_ns, NUM_TIME_SLICES + 1)
    slices = np.searchsorted(edges, columns.scheduled_ns, side="right") - 1
    slices[(slices < 0) | (slices >= NUM_TIME_SLICES)] = -1
    return {
        "class": (classes.tolist(), class_of),
        "turn": (list(range(int(turn_of.max(initial=-1)) + 1)), turn_of),
        "prefix": (["cold", "warm"] if (is_warm == 1).any() else [], is_warm.astype(np.int64)),
        "prompt_tokens_up_to": ([int(2**power) for power in powers], power_of),
        "from_s": ([float(edge) / 1e9 for edge in edges[:-1]] if window.length_s > 0 else [], slices),
    }


def describe_part(measured: Measured, part: Bools, met: Bools | None, length_s: float) -> dict[str, Any]:
    """Counts and percentiles of the rows of one part that were scheduled inside the window.

    met: which rows meet every limit on a request, None without limits; length_s: how long the part lasted.
    """
    inside = part & measured.window.holds(measured.columns.scheduled_ns)
    of_counted = part[measured.counted]
    num_scheduled = int(inside.sum())
    return {
        "scheduled": num_scheduled,
        "ok": int(of_counted.sum()),
        "attained_fraction": None if met is None or not num_scheduled else float(met[inside].mean()),
        "goodput_per_s": None if met is None or not length_s > 0 else float(met[inside].sum()) / length_s,
        **{name: _percentiles(measured.values[name][of_counted]) for name in GROUP_METRICS},
    }


def _percentiles(values: Floats) -> dict[str, Any]:
    known = values[~np.isnan(values)]
    p50, p99 = quantiles(known, (0.5, 0.99)) if len(known) else (None, None)
    return {"n": len(known), "p50": p50, "p99": p99}
