"""Shared prompt prefixes: who begins with which blocks, and what an ideal cache would make of it.

A prompt's leading blocks are named by ids that stand for their content and all before it, as in Mooncake's
hash ids. A pool holds prefixes of drawn lengths, chosen by Zipf popularity, all after a common beginning (a
system prompt).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError
from workloads.expression import Expression, parse
from workloads.laws import Law, to_tokens
from workloads.lengths import law_of_value
from workloads.plan import write_out
from workloads.streams import Streams

BLOCK_TOKENS = 16
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPool:
    """size prefixes; number k is chosen in proportion to k^-zipf. common_tokens stand before each of them.

    scale multiplies all lengths.
    """

    size: int
    tokens: Law | None
    zipf: float
    common_tokens: int
    scale: float = 1.0

    def draw(self, streams: Streams, n: int) -> Drawn:
        """Choose a prefix for each of n requests (or sessions)."""
        widths = np.zeros(self.size, np.int64)
        if self.tokens is not None:
            levels = streams.generator("prefixes/tokens").random(self.size)
            widths = -(-to_tokens(self.tokens.ppf(levels) * self.scale) // BLOCK_TOKENS)
        popularity = np.cumsum(np.arange(1, self.size + 1, dtype=np.float64) ** -self.zipf)
        levels = streams.generator("prefixes/choice").random(n) * popularity[-1]
        choice = np.minimum(np.searchsorted(popularity, levels, "right"), self.size - 1)
        common = math.ceil(self.common_tokens * self.scale / BLOCK_TOKENS)
        firsts = common + np.append(0, np.cumsum(widths))
        starts = np.stack([np.zeros(n, np.int64), firsts[choice]], axis=1)
        counts = np.stack([np.full(n, common), widths[choice]], axis=1)
        return Drawn(starts=starts, counts=counts, next_id=int(firsts[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Runs of block ids, two or more a row: starts[i, j] and the counts[i, j] ids that follow it."""

    starts: Ints
    counts: Ints
    next_id: int

    @property
    def num_blocks(self) -> Ints:
        return np.asarray(self.counts.sum(axis=1))

    def followed_by(self, starts: Ints, counts: Ints) -> Drawn:
        """Append one more run to each row."""
        more = np.column_stack([self.starts, starts]), np.column_stack([self.counts, counts])
        next_id = max(self.next_id, int((starts + counts).max(initial=0)))
        return Drawn(starts=more[0], counts=more[1], next_id=next_id)

    def take(self, rows: Ints) -> Drawn:
        return Drawn(starts=self.starts[rows], counts=self.counts[rows], next_id=self.next_id)

    def blocks(self) -> tuple[Ints, Ints]:
        """Write the runs out: all ids, one row after the other, and the offsets of the rows."""
        offsets = np.append(0, np.cumsum(self.num_blocks))
        return write_out(self.starts.ravel(), self.counts.ravel()), offsets


def no_prefix(n: int) -> Drawn:
    return Drawn(starts=np.zeros((n, 0), np.int64), counts=np.zeros((n, 0), np.int64), next_id=0)


def parse_prefixes(text: str, scale: float = 1.0) -> PrefixPool:
    """Read `pool(size=50, tokens=512, zipf=1.1, common=128)`; tokens is a number or a law in full."""
    expression = parse(text)
    if expression.name != "pool" or expression.plain or expression.pairs:
        raise WorkloadError(f"prefixes {text!r}: write pool(size=50, tokens=512, zipf=1.1, common=128)")
    named = dict(expression.named)
    tokens = named.pop("tokens", None)
    rest = Expression(text=text, name="pool", named=named).numbers(("size", "zipf", "common"))
    size, zipf, common = int(rest.get("size", 1)), rest.get("zipf", 1.0), int(rest.get("common", 0))
    if not 1 <= size <= 10_000_000 or zipf < 0 or common < 0 or (tokens is None and not common):
        raise WorkloadError(
            f"prefixes {text!r}: give tokens= or common=; size must be 1 or more, zipf not below 0"
        )
    law = None if tokens is None else law_of_value(tokens, text)
    return PrefixPool(size=size, tokens=law, zipf=zipf, common_tokens=common, scale=scale)


def hit_tokens(
    blocks: Ints, offsets: Ints, block_tokens: int, prompt_tokens: NDArray[np.int32] | Ints
) -> Ints:
    """Count, for each row, the prompt tokens that an unlimited cache has seen in the rows before it.

    Only whole leading blocks count, up to the first one that is new.
    """
    n = len(prompt_tokens)
    if not len(blocks):
        return np.zeros(n, np.int64)
    if blocks.min() < 0 or blocks.max() > 8 * len(blocks):
        blocks = np.unique(blocks, return_inverse=True)[1]
    rows = np.repeat(np.arange(n, dtype=np.int32), np.diff(offsets))
    first = np.empty(int(blocks.max()) + 1, np.int32)
    first[blocks[::-1]] = rows[::-1]  # of several writes the last one stays: the first row that has the block
    # A row's run of hits ends at its first block that is new, or with its last.
    is_new = np.append(np.flatnonzero(first[blocks] == rows), len(blocks))
    ends = is_new[np.searchsorted(is_new, offsets[:-1])]
    run = np.minimum(ends, offsets[1:]) - offsets[:-1]
    return np.asarray(np.minimum(run * block_tokens, prompt_tokens), np.int64)
