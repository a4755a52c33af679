"""What each policy is for, and what it costs: static against continuous, prompts against decodes, knobs.

Times are those of a step of 1 ms plus a price a token, so that a long prompt in one step is a long step.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import pytest

from reference_engine.config import ConfigError
from reference_engine.policies import POLICIES, all_knobs, make_policy
from reference_engine.sequence import FinishReason, Sequence
from reference_engine.step import Constraint
from reference_engine.steplog import STEP_COLUMNS
from tests.reference_engine.policy_runs import CONFIG, LONG_PROMPT, MS, STEP_NS, TOKEN_NS, engine_for, request
from tests.reference_engine.stub import run_to_end, simulate


def decodes_and_one_long_prompt() -> list[Sequence]:
    return [request(output=100) for _ in range(4)] + [request(LONG_PROMPT, 4, at_ms=20)]


# Static batching against deciding each step (A.1, A.2; check 1).


def saturated_ratio(lengths: list[int], batch: int, *, padded: bool) -> float:
    """Throughput of vllm-v1 over static, everybody there from the start, every step of the same cost."""
    config = replace(CONFIG, max_batch=batch, kv_tokens=1 << 20, check_invariants=False)
    spans = []
    for policy, knobs in (("static", {"padded": padded}), ("vllm-v1", {})):
        engine = engine_for(policy, per_token_ns=0, config=config, **knobs)
        spans.append(simulate(engine, [request(1, n) for n in lengths]).span_ns)
    return spans[0] / spans[1]


def test_static_loses_nothing_when_all_answers_are_equally_long() -> None:
    assert saturated_ratio([40] * 320, batch=16, padded=True) == pytest.approx(1, abs=0.02)


def test_static_loses_the_harmonic_number_when_lengths_are_geometric() -> None:
    lengths = np.random.default_rng(1).geometric(1 / 60, size=1600).clip(1, 900).tolist()
    expected = sum(1 / k for k in range(1, 9))  # E[longest of 8] / E[length]
    assert saturated_ratio(lengths, batch=8, padded=True) == pytest.approx(expected, rel=0.12)


def test_padding_costs_time_where_rows_cost_time() -> None:
    lengths = [5, 5, 5, 200] * 4
    spans = {
        padded: simulate(engine_for("static", padded=padded), [request(1, n) for n in lengths]).span_ns
        for padded in (True, False)
    }
    assert spans[True] > 1.05 * spans[False]


def test_a_newcomer_waits_for_the_whole_batch_only_under_static() -> None:
    ttft = {}
    for policy in ("static", "orca"):
        load = [request(output=300), request(output=8), request(output=8, at_ms=5)]
        result = simulate(engine_for(policy), load)
        ttft[policy] = result.ttft_ns(load[2])
    assert ttft["static"] > 250 * MS
    assert ttft["orca"] < 3 * MS


def test_static_holds_memory_until_the_batch_ends() -> None:
    engine = engine_for("static")
    run_to_end_of_short = [request(output=2), request(output=50)]
    for sequence in run_to_end_of_short:
        engine.add(sequence)
    used = []
    for _ in range(10):
        engine.step()
        used.append(engine.scheduler.tables.pool.num_used)
    assert run_to_end_of_short[0].finish_reason is FinishReason.LENGTH
    assert len(set(used)) == 1
    run_to_end(engine)
    assert engine.scheduler.tables.pool.num_used == 0


def flapping(policy: str) -> tuple[float, float]:
    """Return how the number of decodes changes from step to step, and how it is spread, over its mean."""
    rng = np.random.default_rng(5)
    load = [request(30, int(n), at_ms=4 * i) for i, n in enumerate(rng.geometric(1 / 40, 200))]
    engine = engine_for(policy)
    simulate(engine, load)
    decodes = engine.log.steps()[20:-200, STEP_COLUMNS.index("decode_seqs")]
    return float(np.abs(np.diff(decodes)).mean() / decodes.mean()), float(decodes.std() / decodes.mean())


def test_the_batch_flaps_where_it_drains_or_prompts_have_steps_of_their_own() -> None:
    change, spread = ({p: flapping(p)[i] for p in ("static", "orca", "vllm-v0", "vllm-v1")} for i in (0, 1))
    assert change["vllm-v0"] > 5 * max(change["orca"], change["vllm-v1"])
    assert spread["static"] > 1.5 * max(spread["orca"], spread["vllm-v1"])


# Prompts against decodes (A.2 to A.6; check 6, G4).


def test_a_whole_prompt_stalls_every_decode_for_its_whole_length() -> None:
    whole_ns = STEP_NS + LONG_PROMPT * TOKEN_NS
    for policy in ("orca", "vllm-v0"):
        load = decodes_and_one_long_prompt()
        result = simulate(engine_for(policy), load)
        for resident in load[:4]:
            assert result.max_gap_ns(resident) == pytest.approx(whole_ns, rel=0.1), policy


@pytest.mark.parametrize(
    ("policy", "knobs"), [("sarathi", {}), ("vllm-v0", {"chunked": True}), ("vllm-v1", {})]
)
def test_chunks_bound_the_gap_by_one_step_and_cost_the_prompt_time(
    policy: str, knobs: dict[str, Any]
) -> None:
    load, whole = decodes_and_one_long_prompt(), decodes_and_one_long_prompt()
    result = simulate(engine_for(policy, **knobs), load)
    prefill_first = simulate(engine_for("vllm-v0"), whole)
    longest_step_ns = STEP_NS + CONFIG.chunk_tokens * TOKEN_NS
    for resident in load[:4]:
        assert result.max_gap_ns(resident) <= longest_step_ns
    assert result.ttft_ns(load[4]) > prefill_first.ttft_ns(whole[4])


def test_sarathi_never_skips_a_resident_decode() -> None:
    engine = engine_for("sarathi")
    for sequence in decodes_and_one_long_prompt():
        engine.add(sequence)
    while engine.has_work:
        decoding = {s.handle for s in engine.scheduler.state.running if s.is_decoding}
        plan = engine.scheduler.schedule()
        assert decoding <= {s.handle for s, _ in plan.scheduled}
        engine.scheduler.postprocess(plan, [1 if s.num_missing == n else -1 for s, n in plan.scheduled])


def test_prefill_first_gives_newcomers_the_shorter_wait() -> None:
    ttft = {}
    for policy in ("vllm-v0", "vllm-v1"):
        load = [request(30, 60, at_ms=3 * i) for i in range(14)]
        result = simulate(engine_for(policy), load)
        ttft[policy] = mean(result.ttft_ns(r) for r in load)
    assert ttft["vllm-v0"] < ttft["vllm-v1"]


def test_one_long_prompt_at_a_time_unless_a_threshold_shares_the_step() -> None:
    waits = {}
    for threshold in (0, 16):
        load = [request(LONG_PROMPT, 4), request(8, 4, at_ms=1)]
        result = simulate(engine_for("vllm-v1", long_prefill_tokens=threshold), load)
        waits[threshold] = result.ttft_ns(load[1])
    assert waits[0] > 50 * MS
    assert waits[16] < 10 * MS


def test_the_interval_gives_decodes_their_turn_under_prefill_first() -> None:
    gaps = {}
    for interval in (0, 4):
        load = [request(output=60)] + [request(64, 2, at_ms=5 + i) for i in range(12)]
        config = replace(CONFIG, chunk_tokens=64)
        result = simulate(engine_for("sglang", config=config, decode_interval=interval), load)
        gaps[interval] = result.max_gap_ns(load[0])
    assert gaps[4] < gaps[0] / 3


# The batch cap (A.14), and knobs.


def test_a_batch_cap_trades_the_wait_for_the_gap() -> None:
    results = {}
    for cap in (4, 16):
        load = [request(4, 50, at_ms=2 * i) for i in range(40)]
        results[cap] = simulate(
            engine_for("vllm-v1", per_token_ns=500_000, config=replace(CONFIG, max_batch=cap)), load
        )
    gap = {cap: max(result.max_gap_ns(r) for r in result.requests) for cap, result in results.items()}
    wait = {cap: max(result.ttft_ns(r) for r in result.requests) for cap, result in results.items()}
    assert gap[4] < gap[16]
    assert wait[4] > wait[16]


@pytest.mark.parametrize(
    ("policy", "knobs", "words"),
    [
        ("magic", {}, "unknown policy 'magic'; known policies: static"),
        ("orca", {"watermark": 0.1}, "policy orca has no knob 'watermark'; its knobs: "),
        ("vllm-v1", {"watermark": "much"}, "knob watermark must be float, not 'much'"),
        ("vllm-v1", {"watermark": -0.1}, "must not be negative"),
        ("vllm-v1", {"whole_prompt": 1}, "knob whole_prompt must be bool"),
        ("vllm-v1", {"victim": "me"}, "unknown victim 'me'; known victims: latest-admitted"),
        ("vllm-v1", {"requeue": "middle"}, "must be one of front, order, back"),
        ("vllm-v1", {"order": "luck"}, "unknown order 'luck'; known orders: fcfs"),
        ("vllm-v1", {"displace": True}, "displace needs one of the orders"),
        ("vllm-v1", {"swap": True}, "swap needs swap_tokens"),
        ("orca", {"reserve": "context"}, "cannot reserve a context of 1024"),
    ],
)
def test_knobs_that_do_not_fit_are_refused(policy: str, knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_policy(replace(CONFIG, policy=policy, knobs=knobs, kv_tokens=512))


def test_every_knob_says_whose_it_is_and_its_default() -> None:
    knobs = all_knobs()
    assert knobs["decode_interval"].defaults == {"vllm-v0": 0, "sglang": 0, "no-evict": 6}
    assert set(knobs["order"].defaults) == set(POLICIES)
    assert knobs["requeue"].choices == ("front", "order", "back")


def test_what_blocks_the_head_is_named() -> None:
    engine = engine_for("vllm-v0", decode_interval=4)
    run = [request(output=20), request()]
    engine.add(run[0])
    engine.step()
    engine.step()
    engine.add(run[1])
    assert engine.scheduler.schedule().blocked is Constraint.POLICY
