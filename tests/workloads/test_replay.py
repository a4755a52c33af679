"""Replaying a recording: thinning, copies, speed and ticks, each by its own effect; lengths from rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads import Plan, Workload, WorkloadError
from workloads.replay import find_tick_ns

EXAMPLE = Path(__file__).parents[2] / "examples" / "trace_synthetic.csv"
Write = Callable[[str], Path]


def mooncake_rows(times_ms: list[int], sessions: bool = False) -> str:
    session = [f'"session_id": "s{i % 20}", ' if sessions else "" for i in range(len(times_ms))]
    lengths = [f'"input_length": {100 + i}, "output_length": 5' for i in range(len(times_ms))]
    return "\n".join(
        f'{{{session[i]}"timestamp": {at}, {lengths[i]}, "hash_ids": [0, {i + 1}]}}'
        for i, at in enumerate(times_ms)
    )


def ticking(rng: np.random.Generator, n: int = 3000) -> list[int]:
    times = np.cumsum(rng.exponential(300, n))
    return [int(at) for at in times // 3000 * 3000]


def cv(plan: Plan) -> float:
    gaps = np.diff(plan.arrival_ns)
    return float(gaps.std() / gaps.mean())


def rows(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = plan.source["trace"]["rows"]
    assert found["read"] == found["kept"] + sum(found["dropped"].values())
    return found


def test_ticks_are_told_and_spread_only_on_request(write: Write) -> None:
    path = write(mooncake_rows(ticking(np.random.default_rng(1))))
    raw = Workload(trace=path).plan(1)
    assert raw.source["trace"]["tick_s"] == 3
    assert raw.source["trace"]["dequantized"] is False
    assert cv(raw) > 2.5
    spread = Workload(trace=path, dequantize=True).plan(1)
    assert cv(spread) == pytest.approx(1, abs=0.06)
    assert spread.source["trace"]["dequantized"] is True
    np.testing.assert_array_equal(raw.prompt_tokens, spread.prompt_tokens)


def test_ticks_are_found_only_where_there_are_some() -> None:
    rng = np.random.default_rng(1)
    fine = np.cumsum(rng.exponential(1e9, 1000)).astype(np.int64)
    assert find_tick_ns(fine) is None
    assert find_tick_ns(fine // 10**9 * 10**9) == 10**9
    assert find_tick_ns(np.arange(1000) * 10**9) is None, "a constant rate is no coarse clock"
    assert find_tick_ns(fine[:10]) is None


def test_golden_mooncake_is_poisson_once_spread(traces: Path) -> None:
    path = traces / "mooncake_fast25_conversation.jsonl.gz"
    assert cv(Workload(trace=path, dequantize=True).plan(1)) == pytest.approx(1.01, abs=0.02)


def test_thinning_keeps_the_time_structure_and_counts() -> None:
    whole, thin = Workload(trace=EXAMPLE).plan(1), Workload(trace=EXAMPLE, trace_thin=0.5).plan(1)
    kept = rows(thin)["kept"]
    assert kept + rows(thin)["dropped"]["thinned"] == 321
    assert kept == pytest.approx(160, abs=45)
    assert np.isin(thin.prompt_tokens, whole.prompt_tokens).all()
    assert thin.span_s == pytest.approx(whole.span_s, rel=0.1)


def test_thinning_keeps_sessions_whole(write: Write) -> None:
    path = write(mooncake_rows(list(range(0, 400_000, 2000)), sessions=True))
    plan = Workload(trace=path, trace_thin=0.5).plan(1)
    assert {int((plan.session == s).sum()) for s in np.unique(plan.session)} == {10}
    assert 0 < rows(plan)["dropped"]["thinned"] < 200


def test_copies_raise_the_rate_and_share_nothing(write: Write) -> None:
    path = write(mooncake_rows(sorted(np.random.default_rng(2).integers(0, 100_000, 500).tolist())))
    one, three = Workload(trace=path).plan(1), Workload(trace=path, trace_copies=3).plan(1)
    assert len(three) == 3 * len(one)
    assert three.span_s == pytest.approx(one.span_s, rel=0.02)
    assert len(np.unique(three.prefix_blocks)) == 3 * len(np.unique(one.prefix_blocks))
    rates = [plan.source["realised"]["ideal_hit_rate"] for plan in (one, three)]
    assert rates[1] == pytest.approx(rates[0], abs=0.01)


def test_copies_shift_sessions_as_a_whole(write: Write) -> None:
    path = write(mooncake_rows(list(range(0, 400_000, 2000)), sessions=True))
    plan = Workload(trace=path, trace_copies=2).plan(1)
    for session in np.unique(plan.session):
        mine = np.flatnonzero(plan.session == session)
        assert np.diff(plan.arrival_ns[mine]).tolist() == [40_000_000_000] * 9
        assert plan.turn[mine].tolist() == list(range(10))


def test_speed_shortens_think_times_too(write: Write) -> None:
    first = '{"session_id": "a", "timestamp": 0, "input_length": 9, "output_length": 9}\n'
    path = write(first + '{"session_id": "a", "delay": 3000, "input_length": 20, "output_length": 9}\n')
    assert Workload(trace=path).plan(1).think_ns.tolist() == [-1, 3_000_000_000]
    assert Workload(trace=path, trace_speed=2).plan(1).think_ns.tolist() == [-1, 1_500_000_000]


def test_scaled_prompts_share_as_much_as_the_recorded(write: Write) -> None:
    times = list(range(0, 60_000, 1000))
    text = "\n".join(
        f'{{"timestamp": {at}, "input_length": 1536, "output_length": 5, "hash_ids": [0, 1, {at}]}}'
        for at in times
    )
    path = write(text)
    plan = Workload(trace=path, length_scale=0.125).plan(1)
    assert plan.block_tokens == 64
    assert plan.source["realised"]["ideal_hit_rate"] == pytest.approx(2 / 3 * 59 / 60)
    assert plan.source["trace"]["prefix"]["ideal_hit_rate"] == pytest.approx(2 / 3 * 59 / 60)


def test_lengths_raised_to_one_token_are_counted() -> None:
    assert Workload(trace=EXAMPLE).plan(1).source["limits"] == {}
    plan = Workload(trace=EXAMPLE, length_scale=0.005).plan(1)
    whole = Workload(trace=EXAMPLE).plan(1)
    below = int((whole.output_tokens < 100).sum() + (whole.prompt_tokens < 100).sum())
    assert plan.source["limits"] == {"raised_to_1_token": below}


def test_lengths_from_a_file_keep_their_pairs() -> None:
    recorded = Workload(trace=EXAMPLE).plan(1)
    pairs = set(zip(recorded.prompt_tokens.tolist(), recorded.output_tokens.tolist(), strict=True))
    plan = Workload(rate_per_s=50, lengths_from=EXAMPLE).plan(1)
    assert set(zip(plan.prompt_tokens.tolist(), plan.output_tokens.tolist(), strict=True)) <= pairs
    assert plan.prompt_tokens.mean() == pytest.approx(recorded.prompt_tokens.mean(), rel=0.1)
    with pytest.raises(WorkloadError, match="by law or from a file"):
        Workload(rate_per_s=50, lengths_from=EXAMPLE, input_tokens="9").plan(1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trace_thin": 2.0}, "at most 1"),
        ({"trace_thin": 0.0}, "thinning must be above 0"),
        ({"trace_copies": 0}, "copies must be above 0"),
        ({"sessions": "open(turns=2, gap=1s)"}, "brings its own"),
        ({"block_tokens": 0}, "block size must be above 0"),
    ],
)
def test_bad_replays_are_told(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        Workload(trace=EXAMPLE, **changes).plan(1)
