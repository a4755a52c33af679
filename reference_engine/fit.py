"""A cost model from what a live engine's steps really took.

Non-negative least squares on relative errors, twice: the second time without the steps that something else on
the machine disturbed; then scaled, so that half of the rest took longer and half less. Every other block of
steps is left out of the fit, and the error on those is part of the profile. A profile for simulation is
fitted to the time from one step's start to the next, so that what lies between two steps is in it; an account
of a request is fitted to the steps alone.
"""

from __future__ import annotations

import platform
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from reference_engine.config import ConfigError, EngineConfig
from reference_engine.cost import PS_PER_NS, CostModel, Loads, Profile, Weights, features_of
from reference_engine.step import Load
from reference_engine.steplog import REQUESTS_FILE, STEP_COLUMNS, STEPS_FILE

MIN_STEPS = 200
BLOCK_STEPS = 25  # steps that follow each other are alike: whole blocks are held out, not single steps
OUTLIER_SIGMAS = 4.0
NAMES = tuple(item.name for item in fields(Weights))

CLIENT_COLUMNS = ("server_request_id", "sent_ns", "first_token_ns")
ENGINE_COLUMNS = ("arrived_ns", "first_token_ns")

Floats = NDArray[np.float64]


def fit_weights(loads: Loads, took_ns: NDArray[np.int64]) -> Weights:
    """Return the coefficients that explain the times of these steps best."""
    rows, took = features_of(loads)[:, : len(NAMES)].astype(np.float64), took_ns.astype(np.float64)
    solution = _solve(rows, took)
    error = rows @ solution / took - 1
    centre = np.median(error)
    sigma = 1.4826 * np.median(np.abs(error - centre))
    kept = np.abs(error - centre) <= OUTLIER_SIGMAS * max(sigma, 1e-9)
    if kept.sum() >= rows.shape[1]:
        rows, took = rows[kept], took[kept]
        solution = _solve(rows, took)
    # Least squares on relative errors are pulled towards the short steps: half must take longer, half less.
    solution *= np.median(took / (rows @ solution))
    return Weights(**dict(zip(NAMES, np.rint(solution * PS_PER_NS).astype(int).tolist(), strict=True)))


def _solve(rows: Floats, took: Floats) -> Floats:
    from scipy.optimize import nnls

    relative = rows / took[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
    solution, _ = nnls(relative / scale, np.ones(len(took)), maxiter=1000)
    return np.asarray(solution / scale, np.float64)


def held_out_error(loads: Loads, took_ns: NDArray[np.int64]) -> dict[str, float]:
    """Fit on every other block of steps and return the relative error on the rest."""
    is_fitted = np.arange(len(took_ns)) // BLOCK_STEPS % 2 == 0
    fitted = {name: column[is_fitted] for name, column in loads.items()}
    rest = {name: column[~is_fitted] for name, column in loads.items()}
    cost = CostModel(work=fit_weights(fitted, took_ns[is_fitted]))
    predicted, took = cost.costs_ps(rest) / PS_PER_NS, took_ns[~is_fitted]
    error = predicted / took - 1
    return {
        "num_steps": len(took),
        "total_error": float(predicted.sum() / took.sum() - 1),
        "abs_error_p50": float(np.quantile(np.abs(error), 0.5)),
        "abs_error_p90": float(np.quantile(np.abs(error), 0.9)),
    }


def usable(steps: NDArray[np.int64]) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]]:
    """Return the loads of the steps that computed something and copied nothing, and all their columns."""
    columns = {name: steps[:, i] for i, name in enumerate(STEP_COLUMNS)}
    is_plain = (columns["decode_seqs"] + columns["prefill_seqs"] > 0) & (columns["swap_blocks"] == 0)
    columns = {name: column[is_plain] for name, column in columns.items()}
    return {name: columns[name] for name in Load._fields}, columns


def fit_account(steps: NDArray[np.int64]) -> Weights | None:
    """Return the cost of the steps alone; None where there are too few to tell."""
    loads, columns = usable(steps)
    took_ns = columns["end_ns"] - columns["start_ns"]
    return fit_weights(loads, took_ns) if len(took_ns) >= MIN_STEPS else None


def fit_profile(steps: NDArray[np.int64], config: EngineConfig, name: str) -> Profile:
    """Return a profile for simulation; ConfigError where the log holds too few steps."""
    loads, columns = usable(steps)
    if len(columns["step"]) < MIN_STEPS:
        raise ConfigError(f"{len(columns['step'])} steps are too few for a profile; run {MIN_STEPS} or more")
    starts, ends = columns["start_ns"], columns["end_ns"]
    is_followed = np.append((np.diff(columns["step"]) == 1) & (columns["running"][:-1] > 0), False)
    took_ns = np.where(is_followed, np.append(starts[1:], 0) - starts, ends - starts)
    return Profile(
        name=name,
        origin="fitted to the step log of a live engine, from the start of a step to the start of the next",
        work=fit_weights(loads, took_ns),
        device=describe_device(),
        model=config.model,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        engine={
            item: getattr(config, item)
            for item in ("kv_tokens", "max_batch", "chunk_tokens", "max_model_len", "block_tokens")
        },
        held_out=held_out_error(loads, took_ns),
    )


def fit_folder(folder: Path) -> Profile:
    """Return the profile of the engine that a run folder was measured on."""
    import pyarrow.parquet as pq

    path = folder / STEPS_FILE
    if not path.exists():
        raise ConfigError(f"{folder} holds no {STEPS_FILE}: only runs on the reference engine can be fitted")
    table = pq.read_table(path)
    if missing := set(STEP_COLUMNS) - set(table.column_names):
        raise ConfigError(f"{path} is of an older version: it has no {min(missing)}")
    steps = np.column_stack([table.column(name).to_numpy() for name in STEP_COLUMNS])
    config = msgspec.json.decode(table.schema.metadata[b"config"], type=EngineConfig)
    return msgspec.structs.replace(fit_profile(steps, config, folder.name), **fit_delays(folder))


def fit_delays(folder: Path) -> dict[str, int]:
    """Return the median nanoseconds from send to engine and back, of requests that were answered."""
    import pyarrow.parquet as pq

    if not (folder / "requests.parquet").exists() or not (folder / REQUESTS_FILE).exists():
        return {}
    client = pq.read_table(folder / "requests.parquet", columns=list(CLIENT_COLUMNS))
    engine = pq.read_table(folder / REQUESTS_FILE, columns=["server_request_id", *ENGINE_COLUMNS])
    both = client.join(engine, "server_request_id", join_type="inner", right_suffix="_engine").drop_null()
    if not len(both):
        return {}
    at = {
        name: both.column(name).to_numpy() for name in both.column_names if name.endswith(("_ns", "_engine"))
    }
    inbound = np.median(at["arrived_ns"] - at["sent_ns"])
    outbound = np.median(at["first_token_ns"] - at["first_token_ns_engine"])
    return {"inbound_ns": max(0, int(inbound)), "outbound_ns": max(0, int(outbound))}


def describe_device() -> str:
    """Name the processor as the system does, and how many of them there are."""
    import os

    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {os.cpu_count()} logical processors"
