"""Sessions, prefix pools and clients: what a plan promises of them, and that their draws are their own."""

from dataclasses import replace

import numpy as np
import pytest

from workloads import Plan, PromptMaker, Workload, WorkloadError
from workloads.lengths import parse_law
from workloads.prefixes import hit_tokens, parse_prefixes
from workloads.streams import Streams

BASE = Workload(rate_per_s=20, duration_s=100)
CLOSED = replace(BASE, sessions="closed(turns=4, think=2s)")
POOL = "pool(size=20, tokens=lognormal(median=100,p99=400), zipf=1.1, common=60)"


def blocks_of(plan: Plan, i: int) -> list[int]:
    ids: list[int] = plan.prefix_blocks[plan.prefix_offsets[i] : plan.prefix_offsets[i + 1]].tolist()
    return ids


def test_sessions_grow_by_all_that_was_said() -> None:
    plan = CLOSED.plan(1)
    for session in range(0, 400, 40):
        rows = np.flatnonzero(plan.session == session)
        assert plan.turn[rows].tolist() == list(range(len(rows)))
        said = plan.prompt_tokens[rows] + plan.output_tokens[rows]
        assert (plan.prompt_tokens[rows[1:]] > said[:-1]).all()
        # Earliest instants: each turn waits at least its think time after the one before.
        assert (np.diff(plan.arrival_ns[rows]) == plan.think_ns[rows[1:]]).all()


def test_turns_think_times_and_the_rate_of_requests_are_as_asked() -> None:
    plans = [replace(CLOSED, duration_s=400).plan(seed) for seed in range(10)]
    turns = np.concatenate([np.unique(plan.session, return_counts=True)[1] for plan in plans])
    assert turns.mean() == pytest.approx(4, rel=0.05)
    thinks = np.concatenate([plan.think_ns[plan.think_ns >= 0] for plan in plans]) / 1e9
    assert thinks.mean() == pytest.approx(2, rel=0.05)
    assert thinks.std() == pytest.approx(2, rel=0.15)
    assert np.mean([len(plan) for plan in plans]) / 400 == pytest.approx(20, rel=0.06)


def test_rates_of_a_process_count_requests_too() -> None:
    steps = replace(CLOSED, arrival="steps(0s:30)", rate_per_s=None, duration_s=400)
    assert len(steps.plan(1)) / 400 == pytest.approx(30, rel=0.12)


def test_open_sessions_have_times_of_their_own() -> None:
    plan = replace(BASE, sessions="open(turns=fixed(3), gap=fixed(5))").plan(1)
    assert set(plan.think_ns.tolist()) == {-1}
    rows = np.flatnonzero(plan.session == 0)
    assert np.diff(plan.arrival_ns[rows]).tolist() == [5_000_000_000] * 2
    facts = plan.source["realised"]["sessions"]
    assert facts["closed_turns"] == 0
    assert facts["open_turns"] == len(plan)


def test_a_turns_text_begins_with_the_prompt_before() -> None:
    plan, maker = CLOSED.plan(1), PromptMaker(1, 7)
    first, second = np.flatnonzero(plan.session == np.bincount(plan.session).argmax())[:2].tolist()
    texts = [
        maker.text(i, int(plan.prompt_tokens[i]), np.array(blocks_of(plan, i)), plan.block_tokens).split()
        for i in (first, second)
    ]
    assert [len(text) for text in texts] == plan.prompt_tokens[[first, second]].tolist()
    whole = len(texts[0]) // 16 * 16
    assert texts[1][:whole] == texts[0][:whole]


def test_sessions_end_where_the_context_is_full() -> None:
    plan = replace(CLOSED, context_tokens=200, over_context="drop").plan(1)
    assert plan.source["limits"]["dropped"] > 0
    for session in np.unique(plan.session)[:50]:
        rows = np.flatnonzero(plan.session == session)
        assert plan.turn[rows].tolist() == list(range(len(rows)))
    with pytest.raises(WorkloadError, match="cannot be drawn again"):
        replace(CLOSED, context_tokens=200, over_context="resample").plan(1)


def test_resampling_keeps_the_prefix() -> None:
    limited = replace(BASE, prefixes="pool(tokens=96)", context_tokens=200, over_context="resample").plan(1)
    assert limited.source["limits"]["resampled"] > 0
    assert int(limited.prompt_tokens.min()) > 96
    assert int((limited.prompt_tokens + limited.output_tokens).max()) <= 200


def test_prefixes_are_popular_by_zipf_and_begin_alike() -> None:
    plan = replace(BASE, duration_s=1000, prefixes=POOL).plan(1)
    starts = [blocks_of(plan, i) for i in range(len(plan))]
    assert {tuple(ids[:4]) for ids in starts} == {(0, 1, 2, 3)}
    counts = np.sort(np.unique([ids[4] for ids in starts], return_counts=True)[1])[::-1]
    assert len(counts) == 20
    expected = np.arange(1, 21) ** -1.1
    np.testing.assert_allclose(counts / counts.sum(), expected / expected.sum(), atol=0.012)


def test_a_prefix_comes_on_top_of_the_drawn_length() -> None:
    plain, with_prefix = BASE.plan(1), replace(BASE, prefixes=POOL).plan(1)
    np.testing.assert_array_equal(plain.arrival_ns, with_prefix.arrival_ns)
    extra = with_prefix.prompt_tokens - plain.prompt_tokens
    np.testing.assert_array_equal(extra, 16 * np.diff(with_prefix.prefix_offsets))


def test_the_ideal_hit_rate_is_that_of_a_cache_without_end() -> None:
    plan = replace(CLOSED, duration_s=20, prefixes=POOL).plan(1)
    hits = hit_tokens(plan.prefix_blocks, plan.prefix_offsets, plan.block_tokens, plan.prompt_tokens)
    seen: set[int] = set()
    for i in range(len(plan)):
        run = 0
        for block in blocks_of(plan, i):
            if block not in seen:
                break
            run += 1
        seen.update(blocks_of(plan, i))
        assert hits[i] == min(16 * run, plan.prompt_tokens[i])
    assert plan.source["realised"]["ideal_hit_rate"] == pytest.approx(hits.sum() / plan.prompt_tokens.sum())


def test_nothing_shared_is_no_hit() -> None:
    assert BASE.plan(1).source["realised"]["ideal_hit_rate"] == 0
    none = np.zeros(0, np.int64)
    assert hit_tokens(none, np.zeros(3, np.int64), 0, np.array([5, 5])).tolist() == [0, 0]
    blocks = np.array([1, 2, 1, 2, 3, 9, 2, 1, 9], np.int64)
    offsets = np.array([0, 2, 5, 7, 7, 9], np.int64)
    # request 0: new; 1: blocks 1 and 2; 2: starts with a new block; 3: none; 4: 1 then 9, both seen
    assert hit_tokens(blocks, offsets, 16, np.full(5, 40)).tolist() == [0, 32, 0, 0, 32]


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("sessions", "loop(turns=3)", r"closed\(turns=4, think=8s\)"),
        ("sessions", "closed(turns=3, gap=2s)", r"closed\(turns=4"),
        ("sessions", "closed(turns=0, think=2s)", "above 0"),
        ("sessions", "closed(turns=geom(3), think=2s)", "unknown distribution 'geom'"),
        ("prefixes", "trie(size=3)", r"pool\(size=50"),
        ("prefixes", "pool(size=3)", "give tokens= or common="),
        ("prefixes", "pool(size=0, tokens=9)", "size must be 1 or more"),
        ("prefixes", "pool(depth=3, tokens=9)", "unknown argument 'depth'"),
    ],
)
def test_bad_sessions_and_prefixes_are_told(field: str, text: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        replace(BASE, **{field: text}).plan(1)  # type: ignore[arg-type]


CHAT = Workload(name="chat", share=3, sessions="open(turns=3, gap=2s)", prefixes=POOL)
BATCH = Workload(name="batch", arrival="gamma(cv=3)", prefixes="pool(common=100)", input_tokens="500")


def test_clients_share_the_rate_and_nothing_else() -> None:
    plan = replace(BASE, clients=(CHAT, BATCH), duration_s=400).plan(1)
    assert plan.classes == ("chat", "batch")
    counts = np.bincount(plan.class_id)
    assert counts[0] / 400 == pytest.approx(15, rel=0.1)
    assert counts[1] / 400 == pytest.approx(5, rel=0.25)
    shared = [
        {block for i in np.flatnonzero(plan.class_id == c).tolist() for block in blocks_of(plan, i)}
        for c in (0, 1)
    ]
    assert not shared[0] & shared[1]
    assert set(plan.session[plan.class_id == 1].tolist()) == {-1}
    assert (np.diff(plan.arrival_ns) >= 0).all()


def test_a_new_client_leaves_the_draws_of_the_others() -> None:
    two = replace(BASE, clients=(CHAT, BATCH)).plan(1)
    third = Workload(name="late", rate_per_s=3)
    three = replace(BASE, clients=(third, CHAT, BATCH)).plan(1)
    for name in ("chat", "batch"):
        old, new = two.class_id == two.classes.index(name), three.class_id == three.classes.index(name)
        for column in ("arrival_ns", "prompt_tokens", "output_tokens", "turn"):
            np.testing.assert_array_equal(getattr(two, column)[old], getattr(three, column)[new])


def test_limits_of_clients_are_added_up() -> None:
    limited = replace(BASE, clients=(CHAT, BATCH), context_tokens=300, over_context="drop").plan(1)
    assert limited.source["limits"]["dropped"] > 0
    assert int((limited.prompt_tokens + limited.output_tokens).max()) <= 300


@pytest.mark.parametrize(
    ("clients", "says"),
    [
        ((CHAT, CHAT), "a name of its own"),
        ((replace(CHAT, clients=(BATCH,)),), "no clients, trace or prompts"),
        ((replace(BATCH, arrival="what"),), "unknown arrival process"),
    ],
)
def test_bad_clients_are_told(clients: tuple[Workload, ...], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        replace(BASE, clients=clients).plan(1)


def test_the_length_scale_reaches_prefixes_too() -> None:
    fixed = replace(BASE, dist="fixed", input_tokens="400", prefixes="pool(tokens=800, common=160)")
    assert set(fixed.plan(1).prompt_tokens.tolist()) == {1360}
    scaled = replace(fixed, length_scale=0.2).plan(1)
    assert set(scaled.prompt_tokens.tolist()) == {80 + 160 + 32}


def test_pool_parses_a_law() -> None:
    pool = parse_prefixes("pool(size=5, tokens=gamma(mean=300, cv=0.5))")
    assert pool.tokens == parse_law("gamma(mean=300, cv=0.5)", "fixed")
    widths = pool.draw(Streams(1), 50).num_blocks
    assert len(set(widths.tolist())) > 1


def test_sessions_that_start_at_once_are_whole() -> None:
    plan = Workload(arrival="at-once", num_requests=60, sessions="closed(turns=fixed(4), think=1s)").plan(1)
    assert (len(plan), len(np.unique(plan.session))) == (60, 15)
    assert sorted(np.unique(plan.turn, return_counts=True)[1].tolist()) == [15] * 4


def test_clients_are_drawn_for_as_long_as_the_requests_counted_need() -> None:
    bursty = Workload(name="b", arrival="gamma(cv=4)", sessions="closed(turns=3, think=2s)")
    both = (Workload(name="a"), bursty)
    plan = Workload(rate_per_s=10, num_requests=400, clients=both).plan(1)
    longer = Workload(rate_per_s=10, num_requests=800, clients=both).plan(1)
    assert (len(plan), len(longer)) == (400, 800)
    assert plan.arrival_ns.tolist() == longer.arrival_ns[:400].tolist()
    at_once = Workload(num_requests=20, clients=tuple(replace(c, arrival="at-once") for c in both)).plan(1)
    assert len(at_once) == 20


def test_lengths_that_a_scale_brings_below_one_token_are_counted() -> None:
    small = Workload(rate_per_s=10, input_tokens="fixed(10)", output_tokens="fixed(40)", length_scale=0.04)
    plan = small.plan(1)
    assert set(plan.prompt_tokens.tolist()) == {1}
    assert plan.source["limits"] == {"raised_to_1_token": len(plan)}
    assert replace(small, length_scale=1.0).plan(1).source["limits"] == {}
