"""Arms side by side: the figures of each over its valid runs, how its engine was used, where its time went.

Nothing is decided here: whether a difference is one is the comparison's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from loadgen.measure.replicates import Replicate
from loadgen.stats.replicates import over_runs

LATENCIES = ("ttft.p50", "ttft.p99", "itl.p50", "itl.p99", "e2e.mean")
RATES = ("ok", "output_tokens", "goodput")


def describe_side(name: str, replicates: Sequence[Replicate]) -> dict[str, Any]:
    """Return one of the `sides` of compare.json: figures in SI units that every valid run of the arm has.

    Latencies are geometric means over the runs, all else is a mean.
    """
    valid = [replicate for replicate in replicates if not replicate.reasons]
    figures = _means([{n: r.figures[n] for n in RATES if n in r.figures} for r in valid])
    for figure in LATENCIES:
        if all(figure in replicate.figures for replicate in valid):
            over = over_runs([replicate.figures[figure] for replicate in valid])
            figures |= {} if over is None else {figure: over.value}
    return {
        "name": name,
        "num_runs": len(valid),
        "figures": figures,
        "engine": _means([replicate.engine for replicate in valid]),
        "causes_s": _means([replicate.causes_s for replicate in valid]),
    }


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in (runs[0] if runs else ()) if all(name in run for run in runs)]
    return {name: fmean(run[name] for run in runs) for name in names}
