"""Engines and requests of the tests of policies: steps of 1 ms plus a price a token, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.sequence import Sequence
from tests.reference_engine.stub import make_sequence, stub_engine

MS = 1_000_000
STEP_NS, TOKEN_NS = 1 * MS, 50_000
CONFIG = EngineConfig(
    block_tokens=4,
    kv_tokens=8192,
    max_batch=16,
    chunk_tokens=32,
    max_model_len=1024,
    check_invariants=True,
)
LONG_PROMPT = 800


def engine_for(
    policy: str, *, per_token_ns: int = TOKEN_NS, config: EngineConfig = CONFIG, **knobs: Any
) -> Engine:
    return stub_engine(replace(config, policy=policy, knobs=knobs), STEP_NS, per_token_ns)


def request(prompt: int = 4, output: int = 8, at_ms: float = 0, **fields: Any) -> Sequence:
    return make_sequence([1] * prompt, output, arrived_ns=int(at_ms * MS), **fields)
