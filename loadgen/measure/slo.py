"""Service-level objectives: `--slo METRIC[.STAT]=VALUE`, read and evaluated.

Without a statistic the limit holds for each request (goodput); with one it holds for the aggregate. A request
that failed meets nothing and stays in the denominator. What is unknown is not met.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.errors import UsageError
from loadgen.measure.columns import Bools, Floats
from loadgen.measure.metrics import UNITS, Sample
from loadgen.units import parse_duration

PER_REQUEST = (
    "ttft_s",
    "ttft_from_send_s",
    "first_answer_s",
    "e2e_s",
    "e2e_from_send_s",
    "send_lag_s",
    "normalized_latency_s",
    "tpot_s",
    "itl_s",
    "max_gap_s",
)
_SLO = re.compile(r"\s*(?P<metric>\w+)(?:\.(?P<statistic>[a-z]+[0-9.]*))?\s*=\s*(?P<value>\S.*?)\s*")
_PERCENTILE = re.compile(r"p(?P<percent>\d{1,2}(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """metric: a name of summary.json; statistic: None for a limit on each request; limit: in the metric's
    unit.
    """

    metric: str
    statistic: str | None
    limit: float

    @property
    def label(self) -> str:
        """`ttft` or `ttft.p99`, as the user writes it."""
        name = self.metric.removesuffix("_s")
        return name if self.statistic is None else f"{name}.{self.statistic}"

    @property
    def percentile(self) -> float | None:
        """The share of values below, where the statistic is a percentile."""
        return None if self.statistic is None else parse_percentile(self.statistic)


def parse_slo(text: str) -> Objective:
    """Read one objective; UsageError says what is wrong with it."""
    match = _SLO.fullmatch(text)
    if match is None:
        raise UsageError(f"not an objective: {text!r}; write METRIC[.STAT]=VALUE, such as ttft.p99=500ms")
    metric, statistic = parse_metric(match["metric"]), match["statistic"]
    if statistic is not None:
        check_statistic(statistic)
    elif metric not in PER_REQUEST:
        raise UsageError(
            f"{match['metric']} has no value per request; name a statistic: {match['metric']}.p99=..."
        )
    return Objective(metric=metric, statistic=statistic, limit=parse_limit(metric, match["value"]))


def parse_metric(name: str, others: Sequence[str] = ()) -> str:
    """Turn `ttft` (or `ttft_s`) into its name in summary.json; UsageError lists those and `others`."""
    for known in UNITS:
        if name in (known, known.removesuffix("_s")):
            return known
    names = ", ".join((*others, *(known.removesuffix("_s") for known in UNITS)))
    raise UsageError(f"unknown metric {name!r}; known: {names}")


def check_statistic(statistic: str) -> None:
    """Raise UsageError for anything but mean, std, min, max or a percentile."""
    if statistic not in ("mean", "std", "min", "max") and parse_percentile(statistic) is None:
        raise UsageError(
            f"unknown statistic {statistic!r}; known: mean, std, min, max and p50, p99, p99.9 ..."
        )


def parse_percentile(statistic: str) -> float | None:
    """`p99.9` as 0.999; None for what is no percentile."""
    match = _PERCENTILE.fullmatch(statistic)
    share = round(float(match["percent"]) / 100, 12) if match else 0.0
    return share if share > 0 else None


def parse_limit(metric: str, text: str) -> float:
    """Read a value in the metric's unit: a duration for times, else a plain number."""
    if UNITS[metric] in ("s", "s/token"):
        return parse_duration(text)
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"not a number: {text!r}; {metric} counts {UNITS[metric]}") from None


def statistic_of(sample: Sample, statistic: str) -> float | None:
    """Any statistic of a metric's values; None where there are none, or where it falls on a failure."""
    if sample.num_values == 0:
        return None
    share = parse_percentile(statistic)
    value: float | None
    if share is not None:
        (value,) = sample.quantiles([share])
    elif statistic in ("mean", "std"):
        value = sample.moments()[statistic == "std"]
    else:
        value = sample.ends()[statistic == "max"]
    return value if value is not None and np.isfinite(value) else None


def met_objectives(slo: Mapping[str, Any]) -> dict[str, bool | None]:
    """Which objectives of a summary on an aggregate, `ttft.p99`, held; None without samples."""
    return {
        f"{target['metric'].removesuffix('_s')}.{target['statistic']}": target["is_met"]
        for target in slo["targets"]
        if target["statistic"]
    }


def met_by_request(objectives: Sequence[Objective], values: Mapping[str, Floats]) -> Bools:
    """Which of the counted requests meet every limit on a request.

    values: as of metrics.request_values. The ITL of one request is its mean gap, hence its TPOT. A single
    token has no gap and meets every limit on gaps; a value that is unknown for another reason meets none.
    """
    tokens, ttft = values["output_tokens_per_request"], values["ttft_s"]
    met = np.ones(len(tokens), np.bool_)
    for objective in objectives:
        if objective.statistic is not None:
            continue
        name = "tpot_s" if objective.metric == "itl_s" else objective.metric
        is_within = values[name] <= objective.limit
        if name == "tpot_s":
            is_within |= tokens <= 1
        elif name == "max_gap_s":
            is_within |= np.isnan(values[name]) & ~np.isnan(ttft)
        met &= is_within
    return met
