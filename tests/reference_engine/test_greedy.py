"""Greedy answers do not depend on who shares the batch, how prompts are cut, or who is preempted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reference_engine import tokenizer
from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.engine_process import build_engine
from reference_engine.model_info import describe_model
from reference_engine.policies import POLICIES
from reference_engine.weights import random_weights
from tests.reference_engine.dense import dense_logits
from tests.reference_engine.stub import answer_of, make_sequence, run_to_end

CONFIG = EngineConfig(model="nano", kv_tokens=8192, max_model_len=256, max_batch=32, check_invariants=True)
NEAR_TIE = 1e-4  # logits have unit scale; float32 sums in another order differ by about 1e-6

Request = tuple[list[int], int]


def draw_requests(seed: int, number: int) -> list[Request]:
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(1, tokenizer.BOS_ID, size=rng.integers(1, 90)).tolist(), int(rng.integers(1, 40)))
        for _ in range(number)
    ]


def run(engine: Engine, requests: list[Request], stagger: int = 0) -> tuple[list[list[int]], int]:
    """Return the answers, and how often a request was preempted; a new request each `stagger` steps."""
    sequences = [make_sequence(prompt, max_tokens) for prompt, max_tokens in requests]
    for sequence in sequences:
        engine.add(sequence)
        for _ in range(stagger):
            engine.step()
    run_to_end(engine)
    return [answer_of(s) for s in sequences], sum(s.num_preemptions for s in sequences)


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return draw_requests(seed=5, number=20)


@pytest.fixture(scope="module")
def alone(requests: list[Request]) -> list[list[int]]:
    engine = build_engine(CONFIG)
    return [run(engine, [request])[0][0] for request in requests]


def dense_after(prompt: list[int]) -> np.ndarray:
    shape = describe_model(CONFIG.model).shape
    weights = random_weights(shape, tokenizer.NUM_IDS, tokenizer.NUM_OUTPUT_IDS, CONFIG.seed)
    last: np.ndarray = dense_logits(shape, weights, prompt)[-1]
    return last


def assert_same(requests: list[Request], got: list[list[int]], expected: list[list[int]]) -> None:
    """Answers are equal, up to a token where the dense model itself sees a tie."""
    for (prompt, max_tokens), mine, other in zip(requests, got, expected, strict=True):
        assert len(mine) == len(other) == max_tokens
        if mine == other:
            continue
        first = next(i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
        logits = dense_after(prompt + mine[:first])
        assert abs(logits[mine[first]] - logits[other[first]]) < NEAR_TIE, "answers differ"


def test_answers_are_those_of_the_dense_model(requests: list[Request], alone: list[list[int]]) -> None:
    for (prompt, _), answer in list(zip(requests, alone, strict=True))[:3]:
        logits = dense_after(prompt)
        assert logits[answer[0]] >= logits[1:].max() - NEAR_TIE
        logits = dense_after(prompt + answer[:-1])
        assert logits[answer[-1]] >= logits[1:].max() - NEAR_TIE


def test_answers_depend_on_the_whole_prompt(requests: list[Request], alone: list[list[int]]) -> None:
    changed = [([1, *prompt[1:]], max_tokens) for prompt, max_tokens in requests]
    got, _ = run(build_engine(CONFIG), changed)
    assert sum(a != b for a, b in zip(got, alone, strict=True)) > len(alone) / 2


@pytest.mark.parametrize("chunk_tokens", [1, 7, 64, 512])
@pytest.mark.parametrize("stagger", [0, 3])
def test_batch_equals_alone_whatever_the_chunking(
    requests: list[Request], alone: list[list[int]], chunk_tokens: int, stagger: int
) -> None:
    got, _ = run(build_engine(replace(CONFIG, chunk_tokens=chunk_tokens)), requests, stagger)
    assert_same(requests, got, alone)


@pytest.mark.parametrize("block_tokens", [1, 16])
def test_preempted_requests_say_the_same(
    requests: list[Request], alone: list[list[int]], block_tokens: int
) -> None:
    config = replace(CONFIG, kv_tokens=160, block_tokens=block_tokens, chunk_tokens=48)
    got, num_preemptions = run(build_engine(config), requests)
    assert num_preemptions >= 3
    assert_same(requests, got, alone)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_swap", [False, True], ids=["recompute", "swap"])
def test_every_policy_says_the_same_with_shared_prefixes_and_tiny_memory(
    requests: list[Request], alone: list[list[int]], policy: str, is_swap: bool
) -> None:
    config = replace(
        CONFIG,
        policy=policy,
        kv_tokens=256,
        chunk_tokens=48,
        is_prefix_shared=True,
        swap_tokens=512 if is_swap else 0,
        knobs={"swap": is_swap},
    )
    engine = build_engine(config)
    got, _ = run(engine, requests)
    assert_same(requests, got, alone)
    again, _ = run(engine, requests[::-1])
    assert_same(requests, again[::-1], alone)
    assert engine.counters.cached_tokens > 0


def test_one_long_among_short_takes_the_split_path(requests: list[Request], alone: list[list[int]]) -> None:
    long = draw_requests(seed=9, number=1)[0][0] * 3
    mixed = [*requests, (long[:200], 40)]
    got, _ = run(build_engine(CONFIG), mixed)
    assert_same(requests, got[:-1], alone)
