"""Draws a synthetic plan: arrivals, lengths, sessions, prefixes, and clients laid over each other.

Rows are drawn in the order in which their causes come (session by session, client by client) and then
sorted by arrival, stably. The context limit is applied to whole prompts: prefix, history and the turn's own
text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workloads.arrivals import Extent, Rng, parse_arrival
from workloads.errors import WorkloadError
from workloads.laws import to_tokens
from workloads.lengths import parse_law, sample_pairs
from workloads.limits import fit
from workloads.plan import ROW_COLUMNS, Plan, take_ragged
from workloads.prefixes import BLOCK_TOKENS, no_prefix, parse_prefixes
from workloads.replay import read_rows
from workloads.sessions import SessionRows, parse_sessions
from workloads.streams import Streams
from workloads.texts import ESTIMATE, read_texts

if TYPE_CHECKING:
    from workloads.spec import Workload

MAX_REQUESTS = 100_000_000
Ints = NDArray[np.int64]
Lengths = tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]


def draw(workload: Workload, streams: Streams) -> Plan:
    """Draw the plan of one client; its arrivals are requests, or the starts of its sessions."""
    rows, num_starts = _rows(workload, streams)
    num_rows = len(rows.session)
    sample = _sampler(workload, streams)
    text_id = np.full(num_rows, -1)
    source: dict[str, Any] = {}
    raised = 0
    if workload.has_texts:
        text_id, inputs, outputs = _texts(workload, streams, num_rows)
        source["texts"] = {"prompt_tokens": ESTIMATE}
    else:
        rngs = streams.generator("lengths/input"), streams.generator("lengths/output")
        lengths = sample(rngs, num_rows)
        raised = sum(int(np.sum(side < 0.5)) for side in lengths)
        inputs, outputs = map(to_tokens, lengths)
    prefix = no_prefix(num_starts)
    if workload.prefixes is not None:
        prefix = parse_prefixes(workload.prefixes, workload.length_scale).draw(streams, num_starts)
    prefix = prefix.take(rows.session)
    extra = prefix.num_blocks * BLOCK_TOKENS
    if workload.sessions is not None:
        extra = extra + rows.histories(inputs, outputs)
    again = streams.generator("lengths/resample")

    def redraw(over: Ints) -> tuple[Ints, Ints]:
        more, answers = map(to_tokens, sample((again, again), len(over)))
        return more + extra[over], answers

    limit = workload.context_tokens, workload.over_context
    fitted = fit((inputs + extra, outputs), *limit, redraw, lambda i: f"{workload.name}: request {i}")
    if workload.sessions is not None:
        prefix = rows.own_blocks(prefix, fitted.input_tokens)
    kept = _kept(workload, rows, fitted.kept)
    blocks, offsets = prefix.take(kept).blocks()
    return Plan(
        arrival_ns=rows.arrival_ns[kept],
        prompt_tokens=to_tokens(fitted.input_tokens[kept].astype(np.float64)).astype(np.int32),
        output_tokens=fitted.output_tokens[kept].astype(np.int32),
        session=np.where(workload.sessions is not None, rows.session[kept], -1),
        turn=rows.turn[kept],
        think_ns=rows.think_ns[kept],
        text_id=text_id[kept],
        class_id=np.zeros(len(kept), np.int32),
        classes=(workload.name,),
        prefix_blocks=blocks,
        prefix_offsets=offsets,
        block_tokens=BLOCK_TOKENS if len(blocks) else 0,
        source=source | {"limits": fitted.counts | ({"raised_to_1_token": raised} if raised else {})},
    )


def _rows(workload: Workload, streams: Streams) -> tuple[SessionRows, int]:
    """Draw the arrivals; without sessions, every request stands as a session of one turn."""
    sessions = None if workload.sessions is None else parse_sessions(workload.sessions)
    extent = Extent(
        rate_per_s=workload.rate_per_s,
        duration_s=workload.duration_s or 30.0,
        num_requests=workload.num_requests,
        exact_count=workload.exact_count,
        requests_per_arrival=1.0 if sessions is None else sessions.turns.mean,
    )
    if extent.num_expected > MAX_REQUESTS:
        raise WorkloadError(f"this plan has more than {MAX_REQUESTS:,} requests; shorten it")
    arrival_ns = parse_arrival(workload.arrival).sample(streams, extent)
    n = len(arrival_ns)
    if sessions is not None:
        return sessions.draw(streams, arrival_ns), n
    each, none = np.arange(n), np.full(n, -1, np.int64)
    return SessionRows(session=each, turn=none, arrival_ns=arrival_ns, think_ns=none, firsts=each), n


def _sampler(workload: Workload, streams: Streams) -> Callable[[tuple[Rng, Rng], int], Lengths]:
    """What draws prompt and output lengths, scaled: from two laws, or recorded rows with the pair kept."""
    scale = workload.length_scale
    if workload.lengths_from is not None:
        whole = replace(workload, trace=workload.lengths_from, num_requests=None)
        table = read_rows(whole, streams)
        recorded = np.stack([table.input_tokens, table.output_tokens]) * scale

        def from_rows(rngs: tuple[Rng, Rng], n: int) -> Lengths:
            inputs, outputs = recorded[:, rngs[0].integers(0, len(table), n)]
            return inputs, outputs

        return from_rows
    laws = parse_law(workload.input_tokens, workload.dist), parse_law(workload.output_tokens, workload.dist)

    def from_laws(rngs: tuple[Rng, Rng], n: int) -> Lengths:
        inputs, outputs = sample_pairs(laws, workload.rank_correlation, rngs, n)
        return inputs * scale, outputs * scale

    return from_laws


def _texts(workload: Workload, streams: Streams, n: int) -> tuple[Ints, Ints, Ints]:
    """Choose texts; their answers are as long as those recorded with them, or by law where one is given."""
    texts = read_texts(Path(workload.prompts))
    chosen = texts.choose(streams.generator("texts"), n)
    law = parse_law(workload.output_tokens, workload.dist)
    outputs = to_tokens(law.ppf(streams.generator("lengths/output").random(n)) * workload.length_scale)
    if workload.output_tokens is None:
        recorded = texts.output_tokens[chosen]
        outputs = np.where(recorded > 0, recorded, outputs)
    return chosen, texts.input_tokens[chosen], outputs


def _kept(workload: Workload, rows: SessionRows, fits: NDArray[np.bool_]) -> Ints:
    """The rows that are sent, in the order of arrival."""
    if workload.num_requests is None and workload.sessions is not None:
        fits = fits & (rows.arrival_ns < round((workload.duration_s or 30.0) * 1e9))
    kept = np.flatnonzero(fits)
    if parse_arrival(workload.arrival).renewal is None:
        kept = kept[: workload.num_requests]  # all at once: whole sessions, not the first turn of many
    return kept[np.argsort(rows.arrival_ns[kept], kind="stable")][: workload.num_requests]


def superpose(plans: list[Plan], num_requests: int | None) -> Plan:
    """Lay the plans of several clients over each other; sessions and blocks of one are never another's."""
    parts: list[dict[str, Any]] = []
    next_session = next_block = 0
    for number, plan in enumerate(plans):
        parts.append({name: getattr(plan, name) for name in ROW_COLUMNS})
        parts[-1] |= {
            "session": np.where(plan.session >= 0, plan.session + next_session, -1),
            "class_id": np.full(len(plan), number, np.int32),
            "widths": np.diff(plan.prefix_offsets),
            "blocks": plan.prefix_blocks + next_block,
        }
        next_session += int(plan.session.max(initial=-1)) + 1
        next_block += int(plan.prefix_blocks.max(initial=-1)) + 1
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(joined["arrival_ns"], kind="stable")[:num_requests]
    offsets = np.append(0, np.cumsum(joined.pop("widths")))
    blocks, block_offsets = take_ragged(joined.pop("blocks"), offsets, order)
    return Plan(
        **{name: column[order] for name, column in joined.items()},
        classes=tuple(plan.classes[0] for plan in plans),
        prefix_blocks=blocks,
        prefix_offsets=block_offsets,
        block_tokens=BLOCK_TOKENS if len(blocks) else 0,
        source={"limits": dict(sum((Counter(plan.source["limits"]) for plan in plans), Counter()))},
    )
