"""Does the text flow? Fluidity index and playback lag of each request, against deadlines for its tokens.

A reader takes the first token at D_p after the request was due and one more every D_d. The index follows the
code of Etalon (not its paper's formula): time won by early tokens is slack for later ones; a token that is
late beyond the slack misses one deadline for every D_d that it is late, and the slack starts again at 0. It
forgives lag that lasts, so that the playback lag stands beside it: how far behind the plan of that reader the
stream ever was. The deadlines are the objectives on a request: `--slo ttft=D_p` and `--slo itl=D_d` (or
tpot).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Floats
from loadgen.measure.gaps import Gaps
from loadgen.measure.slo import Objective
from loadgen.stats.quantile import quantiles

FLUID = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """first_s: D_p, from the scheduled instant to the first token; gap_s: D_d, from token to token."""

    first_s: float
    gap_s: float


def deadlines_of(objectives: Sequence[Objective]) -> Deadlines | None:
    """The deadlines that the objectives set; None where one of the two is missing."""
    limits = {objective.metric: objective.limit for objective in objectives if objective.statistic is None}
    first, gap = limits.get("ttft_s"), limits.get("itl_s", limits.get("tpot_s"))
    return Deadlines(first_s=first, gap_s=gap) if first and gap else None


def fluidity_index(ttft_s: Floats, gap_s: Floats, offsets: NDArray[np.int64], deadlines: Deadlines) -> Floats:
    """One index a request, 1 where no deadline was missed; request i owns the gaps from offsets[i] on."""
    allowed = deadlines.gap_s
    is_late = ttft_s > deadlines.first_s
    missed = np.where(is_late, 1 + np.floor((ttft_s - deadlines.first_s) / allowed), 0.0)
    total = np.where(is_late, missed, 1.0)
    slack = np.where(is_late, 0.0, deadlines.first_s - ttft_s)
    lengths = np.diff(offsets)
    for position in range(int(lengths.max(initial=0))):
        at = np.flatnonzero(lengths > position)
        gap, own_slack = gap_s[offsets[at] + position], slack[at]
        is_late = gap > allowed + own_slack
        misses = np.where(is_late, np.floor((gap - own_slack) / allowed), 0.0)
        missed[at] += misses
        total[at] += np.where(is_late, misses, 1.0)
        slack[at] = np.where(is_late, 0.0, own_slack + allowed - gap)
    return np.asarray(1 - missed / total)


def playback_lag(ttft_s: Floats, gap_s: Floats, offsets: NDArray[np.int64], deadlines: Deadlines) -> Floats:
    """The most that a token of each request came after its place in the plan; below 0 if never late."""
    first_lag = ttft_s - deadlines.first_s
    drift = np.concatenate([[0.0], np.cumsum(gap_s - deadlines.gap_s)])
    lag = np.array(first_lag)
    has_gaps = np.diff(offsets) > 0
    if has_gaps.any():
        starts = offsets[:-1][has_gaps]
        worst = np.maximum.reduceat(drift[1:], starts) - drift[starts]
        lag[has_gaps] += np.maximum(worst, 0.0)
    return lag


def describe_fluidity(ttft_s: Floats, gaps: Gaps, deadlines: Deadlines) -> dict[str, Any]:
    """Both figures over the counted requests that have a first token and whose tokens are known."""
    gap_s, offsets = gaps.ns / 1e9, gaps.offsets
    if gaps.tokens is not None:
        tokens = np.maximum(gaps.tokens, 1)
        gap_s = np.repeat(gap_s / tokens, tokens)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens, dtype=np.int64)])[offsets]
    has_first = ~np.isnan(ttft_s)
    if not has_first.any():
        return {"n": 0, "index": None, "fluid_fraction": None, "playback_lag_s": None}
    index = fluidity_index(ttft_s, gap_s, offsets, deadlines)[has_first]
    lag = playback_lag(ttft_s, gap_s, offsets, deadlines)[has_first]
    low, middle = quantiles(index.copy(), (0.01, 0.5))
    p50, p99 = quantiles(lag.copy(), (0.5, 0.99))
    return {
        "n": len(index),
        "index": {"mean": float(index.mean()), "p1": low, "p50": middle},
        "fluid_fraction": float((index >= FLUID).mean()),
        "playback_lag_s": {"p50": p50, "p99": p99, "max": float(lag.max())},
    }
