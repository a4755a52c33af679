"""Cost models from step logs: known coefficients come back, disturbances do not, and the error is told."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from reference_engine.config import ConfigError, EngineConfig
from reference_engine.cost import Weights, load_profile, parse_cost
from reference_engine.fit import fit_account, fit_folder, fit_profile
from reference_engine.steplog import BUCKET_COLUMNS, STEP_COLUMNS, STEPS_FILE, steps_table, write_logs
from tests.reference_engine.simulated import make_plan, simulate
from tests.reference_engine.stub import make_sequence, stub_engine

CONFIG = EngineConfig(kv_tokens=16_000, max_batch=32, chunk_tokens=128, max_model_len=2048)
COST = "affine(base=3ms,per_seq=90us,per_token=25us,per_context=60ns,per_pair=20ns,mixed=0.4ms,cold=0.7ms)"
TRUTH = parse_cost(COST).work


def log_of_a_run(seed: int = 0) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    n = 150
    plan = make_plan(np.cumsum(rng.exponential(0.08, n)), rng.integers(1, 700, n), rng.integers(1, 80, n))
    steps = simulate(CONFIG, plan, COST, has_steps=True).steps
    assert steps is not None
    return np.hstack([steps[:, : len(STEP_COLUMNS)], np.zeros((len(steps), 1), np.int64)])


def relative_errors(found: Weights) -> dict[str, float]:
    return {
        item.name: abs(getattr(found, item.name) / getattr(TRUTH, item.name) - 1) for item in fields(Weights)
    }


def test_the_coefficients_of_a_known_model_come_back() -> None:
    weights = fit_account(log_of_a_run())
    assert weights is not None
    assert max(relative_errors(weights).values()) < 0.01


def test_disturbed_steps_do_not_pull_the_fit() -> None:
    steps, rng = log_of_a_run(), np.random.default_rng(3)
    start, end = STEP_COLUMNS.index("start_ns"), STEP_COLUMNS.index("end_ns")
    took = steps[:, end] - steps[:, start]
    noise = rng.normal(1, 0.02, len(steps))
    noise[rng.random(len(steps)) < 0.03] *= 8
    steps[:, end] = steps[:, start] + (took * noise).astype(np.int64)
    weights = fit_account(steps)
    assert weights is not None
    errors = relative_errors(weights)
    assert errors["base"] < 0.03
    assert errors["per_token"] < 0.05


def test_a_profile_tells_its_error_on_steps_it_did_not_see() -> None:
    steps = log_of_a_run()
    profile = fit_profile(steps, CONFIG, "known")
    assert profile.held_out["abs_error_p90"] < 0.001
    assert profile.engine["kv_tokens"] == CONFIG.kv_tokens
    late_ns = np.cumsum(np.random.default_rng(1).integers(0, 3_000_000, len(steps)))
    steps[1:, STEP_COLUMNS.index("start_ns")] += late_ns[:-1]
    steps[:, STEP_COLUMNS.index("end_ns")] += late_ns
    assert fit_profile(steps, CONFIG, "noisy").held_out["abs_error_p50"] > 0.02


def test_too_few_steps_make_no_profile() -> None:
    assert fit_account(log_of_a_run()[:50]) is None
    with pytest.raises(ConfigError, match="50 steps are too few"):
        fit_profile(log_of_a_run()[:50], CONFIG, "short")


def test_a_run_folder_is_a_cost_model(tmp_path: Path) -> None:
    metadata = {"config": msgspec.json.encode(CONFIG).decode()}
    pq.write_table(steps_table(log_of_a_run(), metadata), tmp_path / STEPS_FILE)
    profile = parse_cost(str(tmp_path))
    assert profile == fit_folder(tmp_path)
    plan = make_plan([0, 0.1], [300, 20], [40, 60])
    live, again = (simulate(CONFIG, plan, cost).latencies(plan) for cost in (COST, str(tmp_path)))
    np.testing.assert_allclose(live, again, rtol=0.01)
    with pytest.raises(ConfigError, match=r"holds no engine_steps\.parquet"):
        parse_cost(str(tmp_path.parent))


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = fit_profile(log_of_a_run(), CONFIG, "known")
    path = tmp_path / "known.json"
    path.write_bytes(msgspec.json.encode(profile))
    assert load_profile(str(path)) == profile
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(profile, schema_version=99)))
    with pytest.raises(ConfigError, match="schema version 99"):
        load_profile(str(path))
    path.write_text('{"name": "x"}')
    with pytest.raises(ConfigError, match="is not a profile"):
        load_profile(str(path))


def test_the_live_engine_keeps_the_same_account(tmp_path: Path) -> None:
    """On a model whose steps are linear in their tokens, nothing is left over."""
    engine = stub_engine(replace(CONFIG, kv_tokens=480, max_model_len=400, check_invariants=True))
    rng = np.random.default_rng(4)
    for _ in range(60):
        arrived_ns = engine.clock_ns()
        engine.add(
            make_sequence(
                range(1, int(rng.integers(2, 120))), int(rng.integers(1, 60)), arrived_ns=arrived_ns
            )
        )
        for _ in range(int(rng.integers(0, 12))):
            if engine.has_work:
                engine.step()
    while engine.has_work:
        engine.step()
    weights = fit_account(engine.log.steps())
    assert weights is not None
    write_logs(engine.log, tmp_path, {}, weights)
    rows = pq.read_table(tmp_path / "engine_requests.parquet").to_pylist()
    assert len(rows) == 60
    half = len(BUCKET_COLUMNS) // 2
    assert sum(row["preemptions"] for row in rows) > 0
    for row in rows:
        whole, first = (
            [row[name] for name in names] for names in (BUCKET_COLUMNS[:half], BUCKET_COLUMNS[half:])
        )
        assert sum(whole) == row["finished_ns"] - row["arrived_ns"]
        assert sum(first) == row["first_token_ns"] - row["arrived_ns"]
    residual = sum(abs(row["residual_ns"]) for row in rows)
    assert residual < 0.001 * sum(row["finished_ns"] - row["arrived_ns"] for row in rows)
    steps = pq.read_table(tmp_path / STEPS_FILE)
    took = steps.column("end_ns").to_numpy() - steps.column("start_ns").to_numpy()
    np.testing.assert_allclose(steps.column("work_ns").to_numpy(), took, rtol=0.001)
