"""Folders of several runs with documents that are made up: what the pages of a series are checked with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CAPACITY_PER_S = 40.0
METRICS = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
STATISTICS = ("mean", "p50", "p90", "p99")


def sweep_point(
    rate: float, *, is_stable: bool | None = True, reasons: tuple[str, ...] = ()
) -> dict[str, Any]:
    """One rate at a server whose latency grows as 1 / (1 - load)."""
    wait_s = 0.02 / max(1 - rate / CAPACITY_PER_S, 0.02)
    latency = {"p50": wait_s, "p90": 2.5 * wait_s, "p99": 5 * wait_s}
    intervals = {"p50": [0.9 * wait_s, 1.1 * wait_s], "p99": None}
    return {
        "rate_per_s": rate,
        "folder": f"20260131T120000Z-rate-{rate:g}",
        "status": "invalid" if reasons else "valid",
        "reasons": list(reasons),
        "is_stable": is_stable,
        "offered_per_s": rate,
        "ok_per_s": min(rate, CAPACITY_PER_S),
        "output_tokens_per_s": 38 * min(rate, CAPACITY_PER_S),
        "goodput_per_s": 5.0 if is_stable is False else min(rate, 30.0),
        "failed": 12 if is_stable is False else 0,
        "latency": dict.fromkeys(METRICS, latency),
        "intervals": dict.fromkeys(METRICS, intervals),
    }


def sweep_of(
    points: list[dict[str, Any]], low: float | None, high: float | None, sentence: str
) -> dict[str, Any]:
    saturation = {"stable_per_s": low, "unstable_per_s": high, "sentence": sentence}
    knee = {"rate_per_s": points[-2 if len(points) > 1 else 0]["rate_per_s"], "is_at_end": False}
    knee["sentence"] = f"knee at {knee['rate_per_s']:g} requests/s"
    return {"schema_version": 1, "saturation": saturation, "knee": knee, "points": points}


def write_sweep(folder: Path) -> None:
    points = [sweep_point(rate) for rate in (5.0, 10.0, 20.0, 30.0)]
    points += [sweep_point(35.0, reasons=("client_late",)), sweep_point(45.0, is_stable=False)]
    sweep = sweep_of(points, 30.0, 45.0, "saturation lies between 30 requests/s and 45 requests/s")
    (folder / "sweep.json").write_text(json.dumps(sweep))
    report = folder / points[0]["folder"] / "report.html"
    report.parent.mkdir()
    report.write_text("<p>report</p>")


def capacity_point(
    rate: float, replicate: int, margin: float | None, *, is_probe: bool = False
) -> dict[str, Any]:
    return {
        "rate_per_s": rate,
        "replicate": replicate,
        "is_probe": is_probe,
        "seed": replicate,
        "folder": f"rate-{rate:g}",
        "reasons": [],
        "is_stable": margin is not None,
        "failed": 0,
        "requests": 300,
        "figures": {"ttft.p99": None if margin is None else 0.5 * 2.718**margin},
        "margin": margin,
        "passes": margin is not None and margin <= 0,
    }


def write_capacity(folder: Path) -> None:
    points = [capacity_point(rate, 0, -2 + rate / 10, is_probe=True) for rate in (2.0, 4.0, 8.0, 16.0, 32.0)]
    points += [capacity_point(18.0 + r, r, -0.1 + 0.05 * r) for r in range(5)]
    points.append(capacity_point(40.0, 0, None))
    document = {
        "schema_version": 1,
        "sentence": "ttft.p99 <= 500ms holds up to a rate between 18.2 and 20.1 requests/s",
        "answer": "interval",
        "capacity": {"low_per_s": 18.2, "high_per_s": 20.1},
        "limits": {"ttft.p99": {"limit": 0.5, "unit": "s"}},
        "num_requests": 3300,
        "points": points,
    }
    (folder / "capacity.json").write_text(json.dumps(document))


def compared(name: str, change: str, ratio: float, *, is_primary: bool) -> dict[str, Any]:
    return {
        "name": name,
        "is_primary": is_primary,
        "change": change,
        "base": 0.2,
        "other": 0.2 * ratio,
        "ratio": ratio,
        "interval": [ratio * 0.97, ratio * 1.03],
        "p": 0.008,
        "p_adjusted": 0.016,
        "ratios": [ratio * (0.94 + 0.02 * i) for i in range(7)],
        "num_planned": 9,
    }


def side(name: str, wait_s: float) -> dict[str, Any]:
    figures = {f"{m}.{s}": wait_s for m in ("ttft", "itl") for s in ("p50", "p99")}
    causes = {"client": 0.001, "own": 0.2, "wait_slot": wait_s, "batch": 0.05, "interference": 0.02}
    figures["ttft.p99"] = 4 * wait_s
    return {"name": name, "num_runs": 5, "figures": figures, "engine": {}, "causes_s": causes}


def write_comparison(folder: Path) -> None:
    run = {"folder": "run-a", "seed": 3, "plan_digest": "abc", "reasons": ["client_late"]}
    document = {
        "schema_version": 1,
        "rule": {"margin": 0.02, "detect": 0.05},
        "comparisons": [
            {
                "base": "base",
                "arm": "<new>",
                "num_pairs": 7,
                "is_paired": True,
                "figures": [
                    compared("ttft.p99", "worse", 1.12, is_primary=True),
                    compared("itl.p99", "equivalent", 1.0, is_primary=True),
                    compared("e2e.p50", "better", 0.9, is_primary=False),
                ],
                "left_out": ["run-a: client_late"],
                "notes": [],
            },
            {"base": "base", "arm": "none", "num_pairs": 0, "figures": [], "left_out": [], "notes": []},
        ],
        "arms": [{"name": "base", "replicates": [run]}, {"name": "<new>", "replicates": [run]}],
        "sides": [side("base", 0.05), side("<new>", 0.06)],
    }
    (folder / "compare.json").write_text(json.dumps(document))


def write_repeat(folder: Path, num_runs: int = 5) -> None:
    names = [f"{metric.removesuffix('_s')}.{statistic}" for metric in METRICS for statistic in STATISTICS]
    runs = [
        {
            "folder": f"seed-{seed}",
            "seed": seed,
            "plan_digest": "abc",
            "reasons": ["client_late"] if seed == 3 else [],
            "figures": dict.fromkeys(names, 0.1 * (1 + 0.05 * seed)) | {"ok": 20.0 + seed},
        }
        for seed in range(num_runs)
    ]
    interval = [0.09, 0.13] if num_runs > 1 else None
    figure = {"value": 0.11, "interval": interval, "spread": 0.08, "num_runs": num_runs - 1}
    figures = {**dict.fromkeys(names, figure), "ok": {**figure, "value": 21.5, "interval": None}}
    slo = [{"objective": "ttft.p99 <= 200 ms", "num_met": num_runs - 1, "num_runs": num_runs - 1}]
    document = {"schema_version": 1, "figures": figures, "runs": runs, "slo": slo}
    (folder / "repeat.json").write_text(json.dumps(document))
