"""The server's own figures beside the client's, from server.parquet: what differs, and where it comes from.

Both sides are taken over the whole run, warm-up included, for a server's histogram cannot be asked for a
window. A histogram states a quantile only as a bucket: [lower, upper], null where that has no upper end.
Counters that fell were reset; what they had before the reset counts too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.columns import Columns, Floats
from loadgen.stats.quantile import quantile
from loadgen.store import Run
from loadgen.telemetry import IS_GAUGE
from loadgen.units import format_seconds

MAX_SLACK = 0.05
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p99": 0.99}
Series = dict[str, NDArray[np.float64]]

WHY: Mapping[str, str] = {
    "ttft_s": "ours begins when the client acts and ends when the first token has arrived; connecting, the "
    "way there and back, and HTTP around the server's own clock are ours alone",
    "e2e_s": "ours begins when the client acts and ends when the last token has arrived; the way there and "
    "back, and HTTP, are ours alone",
    "itl_s": "the server counts gaps where tokens are made, we where they arrive: means agree unless tokens "
    "are held back, tails differ by what the network and the server's HTTP side add or smooth",
}


def describe_server(run: Run, columns: Columns) -> dict[str, Any]:
    """What the target said of itself during the run; nothing where it was not watched."""
    series = _read(run)
    if not series:
        return {}
    gauges = {name: values for name, values in series.items() if IS_GAUGE.fullmatch(name)}
    counters = {n: v for n, v in series.items() if n not in gauges and "." not in n}
    histograms = sorted({name.partition(".")[0] for name in series if "." in name})
    slack_s = _first_token_slack_s(run) if "ttft_s" in histograms else 0.0
    increases = {name: increase(values) for name, values in series.items() if name not in gauges}
    return {
        "num_samples": max(map(len, series.values())),
        "num_resets": max((num_resets(values) for values in counters.values()), default=0),
        "gauges": {n: {"mean": float(v.mean()), "max": float(v.max())} for n, v in gauges.items()},
        "counters": {name: increases[name] for name in counters},
        "histograms": {name: _beside(name, increases, columns, slack_s) for name in histograms},
        "tokens_per_joule": _tokens_per_joule(increases),
    }


def increase(values: NDArray[np.float64]) -> float:
    """How much a counter rose between its first and last value; one that falls has begun again at 0."""
    steps = np.diff(values)
    return float(np.where(steps < 0, values[1:], steps).sum())


def num_resets(values: NDArray[np.float64]) -> int:
    return int((np.diff(values) < 0).sum())


def bucket_of(
    q: float, bounds: NDArray[np.float64], counts: NDArray[np.float64], n: float
) -> list[float | None]:
    """The bucket that holds quantile q: [lower, upper]. counts: cumulative, at each bound; of n in all."""
    at = int(np.searchsorted(counts, np.ceil(q * n)))
    lower = float(bounds[at - 1]) if at > 0 else 0.0
    return [lower, float(bounds[at]) if at < len(bounds) else None]


def _read(run: Run) -> Series:
    table = run.server_rows()
    if table is None:
        return {}
    names = np.asarray(table.column("name").to_numpy())
    values = table.column("value").to_numpy()
    return {str(name): values[names == name] for name in dict.fromkeys(names)}


def _first_token_slack_s(run: Run) -> float:
    """By how much first tokens can have come before their stamps, on average: where several events shared a
    read of a client that was late, only the last has a stamp of its own.
    """
    import pyarrow.compute as pc

    table = run.rows.read(("chunk_ns", "chunk_lower_ns"))
    stamps, lowers = (
        pc.list_flatten(pc.list_slice(table.column(name), 0, 1)).to_numpy() for name in table.column_names
    )
    return float((stamps - lowers).mean()) / 1e9 if len(stamps) else 0.0


def _beside(name: str, increases: Mapping[str, float], columns: Columns, slack_s: float) -> dict[str, Any]:
    """One histogram: the server's view, ours, and the difference of the means in words."""
    n, total = increases[f"{name}.count"], increases[f"{name}.sum"]
    prefix = f"{name}.le="
    buckets = sorted(
        (float(key.removeprefix(prefix)), v) for key, v in increases.items() if key.startswith(prefix)
    )
    bounds, counts = (np.array([bucket[i] for bucket in buckets]) for i in (0, 1))
    view: dict[str, Any] = {"n": int(n), "mean": total / n if n else None}
    view |= {label: bucket_of(q, bounds, counts, n) if n else None for label, q in QUANTILES.items()}
    ours = _client_values(name, columns)
    if ours is None:
        return view
    values, weights = ours
    if not len(values) or not n or not weights.sum():
        return view | {"client": None, "difference_s": None, "explanation": None}
    mean = float(np.average(values, weights=weights))
    client: dict[str, Any] = {"n": int(weights.sum()), "mean": mean}
    if name != "itl_s":
        client |= {label: quantile(values, q) for label, q in QUANTILES.items()}
    if name == "ttft_s":
        client["mean_lower"] = mean - slack_s
    difference_s = mean - total / n
    return view | {
        "client": client,
        "difference_s": difference_s,
        "explanation": _explain(name, difference_s, int(n), client, increases),
    }


def _client_values(name: str, columns: Columns) -> tuple[Floats, Floats] | None:
    """Our values and their weights; gaps as the mean gap of each request, weighted by its gaps."""
    ends = {"ttft_s": columns.first_token_ns, "e2e_s": columns.last_token_ns}
    if name in ends:
        values = (ends[name] - columns.sent_ns)[columns.is_ok] / 1e9
        values = values[~np.isnan(values)]
        return values, np.ones(len(values))
    if name == "itl_s":
        gaps = columns.output_tokens - 1
        spans = columns.last_token_ns - columns.first_token_ns
        counted = columns.is_ok & (gaps > 0) & ~np.isnan(spans)
        return spans[counted] / gaps[counted] / 1e9, gaps[counted]
    return None


def _explain(
    name: str, difference_s: float, n: int, client: Mapping[str, Any], increases: Mapping[str, float]
) -> str:
    side = "above" if difference_s >= 0 else "below"
    words = f"our mean is {format_seconds(abs(difference_s))} {side} the server's: {WHY[name]}"
    slack_s = client["mean"] - client.get("mean_lower", client["mean"])
    if slack_s > MAX_SLACK * client["mean"]:
        words += (
            f"; {format_seconds(slack_s)} of ours may be our own late reading (events that shared a read)"
        )
    queued = increases.get("queue_s.count", 0.0)
    if name == "ttft_s" and queued:
        mean_s = increases["queue_s.sum"] / queued
        words += f"; {format_seconds(mean_s)} of the server's was queueing"
    ours = client["n"]
    if n != ours and name != "itl_s":
        words += f"; the server counted {n} requests, we {ours} ok ones: failed ones, or other clients"
    return words


def _tokens_per_joule(increases: Mapping[str, float]) -> float | None:
    joules = sum(v for name, v in increases.items() if name.endswith("_energy_j"))
    tokens = increases.get("output_tokens")
    return tokens / joules if joules and tokens is not None else None
