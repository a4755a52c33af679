"""Draws a synthetic plan: arrivals, lengths, sessions, prefixes, and clients laid over each other.

Rows are drawn in the order in which their causes come (session by session, client by client) and then
sorted by arrival, stably. The context limit is applied to whole prompts: prefix, history and the turn's own
text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.arrivals import ArrivalProcess, Extent
from workloads.errors import WorkloadError
from workloads.laws import Law, to_tokens
from workloads.lengths import sample_pairs
from workloads.limits import ContextLimit
from workloads.plan import Plan
from workloads.prefixes import BLOCK_TOKENS, Drawn, PrefixPool, no_prefix
from workloads.sessions import SessionModel, SessionRows
from workloads.streams import Streams
from workloads.texts import ESTIMATE, Texts

Ints = NDArray[np.int64]
Pairs = Callable[[tuple[np.random.Generator, np.random.Generator], int], tuple[Ints, Ints]]


def pairs_of_laws(laws: tuple[Law, Law], rank_correlation: float, scale: float) -> Pairs:
    """Make the source of prompt and output lengths that draws from two laws."""

    def draw(rngs: tuple[np.random.Generator, np.random.Generator], n: int) -> tuple[Ints, Ints]:
        inputs, outputs = sample_pairs(laws, rank_correlation, rngs, n)
        return to_tokens(inputs * scale), to_tokens(outputs * scale)

    return draw


def pairs_of_rows(inputs: Ints, outputs: Ints, scale: float) -> Pairs:
    """Make the source that draws recorded rows, prompt and output together."""

    def draw(rngs: tuple[np.random.Generator, np.random.Generator], n: int) -> tuple[Ints, Ints]:
        rows = rngs[0].integers(0, len(inputs), n)
        return to_tokens(inputs[rows] * scale), to_tokens(outputs[rows] * scale)

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """One client, ready to be drawn: its arrivals are requests, or the starts of its sessions."""

    name: str
    process: ArrivalProcess
    extent: Extent
    pairs: Pairs
    texts: Texts | None
    sessions: SessionModel | None
    prefixes: PrefixPool | None
    limit: ContextLimit

    def draw(self, streams: Streams) -> Plan:
        rows, starts = self._rows(streams)
        num_rows = len(rows.session)
        rngs = streams.generator("lengths/input"), streams.generator("lengths/output")
        inputs, outputs = self.pairs(rngs, num_rows)
        text_id = np.full(num_rows, -1)
        source: dict[str, Any] = {}
        if self.texts is not None:
            text_id = self.texts.choose(streams.generator("texts"), num_rows)
            inputs, recorded = self.texts.input_tokens[text_id], self.texts.output_tokens[text_id]
            outputs = np.where(recorded > 0, recorded, outputs)
            source["texts"] = {"count": len(self.texts.prompts), "prompt_tokens": ESTIMATE}
        prefix = no_prefix(starts) if self.prefixes is None else self.prefixes.draw(streams, starts)
        prefix = prefix.take(rows.session)
        extra = prefix.num_blocks * BLOCK_TOKENS
        if self.sessions is not None:
            extra = extra + rows.histories(inputs, outputs)
        again = streams.generator("lengths/resample")

        def redraw(over: Ints) -> tuple[Ints, Ints]:
            more, answers = self.pairs((again, again), len(over))
            return more + extra[over], answers

        fitted = self.limit.fit(inputs + extra, outputs, redraw, lambda i: f"{self.name}: request {i}")
        if self.sessions is not None:
            prefix = rows.own_blocks(prefix, fitted.input_tokens)
        kept = np.flatnonzero(fitted.kept & self._in_time(rows.arrival_ns))
        kept = kept[np.argsort(rows.arrival_ns[kept], kind="stable")][: self.extent.num_requests]
        plan = self._plan(rows, prefix, kept)
        return replace(
            plan,
            prompt_tokens=to_tokens(fitted.input_tokens[kept].astype(np.float64)).astype(np.int32),
            output_tokens=fitted.output_tokens[kept].astype(np.int32),
            text_id=text_id[kept],
            source=source | {"limits": fitted.counts},
        )

    def _rows(self, streams: Streams) -> tuple[SessionRows, int]:
        """Draw the arrivals; without sessions, every request stands as a session of one turn."""
        arrival_ns = self.process.sample(streams, self.extent)
        n = len(arrival_ns)
        if self.sessions is not None:
            return self.sessions.draw(streams, arrival_ns), n
        each = np.arange(n)
        none = np.full(n, -1, np.int64)
        return SessionRows(session=each, turn=none, arrival_ns=arrival_ns, think_ns=none, firsts=each), n

    def _in_time(self, arrival_ns: Ints) -> NDArray[np.bool_]:
        if self.extent.num_requests is not None or self.sessions is None:
            return np.ones(len(arrival_ns), bool)
        return arrival_ns < round(self.extent.duration_s * 1e9)

    def _plan(self, rows: SessionRows, prefix: Drawn, kept: Ints) -> Plan:
        blocks, offsets = prefix.take(kept).blocks()
        ones = np.ones(len(kept), np.int32)
        return Plan(
            arrival_ns=rows.arrival_ns[kept],
            prompt_tokens=ones,
            output_tokens=ones,
            session=rows.session[kept] if self.sessions is not None else np.full(len(kept), -1, np.int64),
            turn=rows.turn[kept],
            think_ns=rows.think_ns[kept],
            class_id=np.zeros(len(kept), np.int32),
            classes=(self.name,),
            prefix_blocks=blocks,
            prefix_offsets=offsets,
            block_tokens=BLOCK_TOKENS if len(blocks) else 0,
        )


def superpose(plans: list[Plan], num_requests: int | None) -> Plan:
    """Lay the plans of several clients over each other; sessions and blocks of one are never another's."""
    sizes = {plan.block_tokens for plan in plans if plan.block_tokens}
    if len(sizes) > 1:
        raise WorkloadError(f"clients with prefix blocks of different sizes ({sizes}) cannot share a plan")
    joined: dict[str, list[Any]] = {
        name: [] for name in (*_JOINED, "session", "class_id", "widths", "blocks")
    }
    next_session = next_block = 0
    for number, plan in enumerate(plans):
        for name in _JOINED:
            joined[name].append(getattr(plan, name))
        joined["session"].append(np.where(plan.session >= 0, plan.session + next_session, -1))
        joined["class_id"].append(np.full(len(plan), number, np.int32))
        joined["widths"].append(np.diff(plan.prefix_offsets))
        joined["blocks"].append(plan.prefix_blocks + next_block)
        next_session += int(plan.session.max(initial=-1)) + 1
        next_block += int(plan.prefix_blocks.max(initial=-1)) + 1
    columns = {name: np.concatenate(parts) for name, parts in joined.items()}
    order = np.argsort(columns["arrival_ns"], kind="stable")[:num_requests]
    widths, blocks = columns.pop("widths"), columns.pop("blocks")
    firsts = np.cumsum(widths) - widths
    drawn = Drawn(starts=firsts[order, None], counts=widths[order, None], next_id=0)
    positions, offsets = drawn.blocks()
    return Plan(
        **{name: column[order] for name, column in columns.items()},
        classes=tuple(plan.classes[0] for plan in plans),
        prefix_blocks=blocks[positions],
        prefix_offsets=offsets,
        block_tokens=max(sizes, default=0),
        source={"limits": dict(sum((Counter(plan.source["limits"]) for plan in plans), Counter()))},
    )


_JOINED = ("arrival_ns", "prompt_tokens", "output_tokens", "turn", "think_ns")
_NUMBERED = ("session", "class_id", "widths", "blocks")
