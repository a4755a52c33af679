"""Attention on a CPU over paged keys and values: gather whole pages, then one fused kernel per group of rows.

The query heads that share a KV head are folded into the query axis: the kernel then reads each key once.
Single-token rows of like length go together; where padding to the longest would waste much, they are split by
powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from reference_engine.attention.pages import Pages
from reference_engine.config import ModelShape

MIN_TOKENS_SAVED = 512  # reading fewer padded tokens than this costs less than one more kernel call


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of equal query length that attend in one call.

    pages: int64 [batch * pages per row], the padded block tables. masks: of layers that see all and of layers
    that see a window; additive, broadcastable to [batch, kv_heads, group * query_len, pages per row * page].
    """

    first: int
    end: int
    batch: int
    query_len: int
    pages: Tensor
    masks: tuple[Tensor, Tensor]


def split_by_length(lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Cut ascending `lengths` into runs [first, end) at powers of two, where a cut saves enough padding."""
    if (int(lengths[-1]) - int(lengths[0])) * (len(lengths) - 1) < MIN_TOKENS_SAVED:
        return [(0, len(lengths))]
    bucket = np.ceil(np.log2(lengths))
    ends = [*(np.flatnonzero(np.diff(bucket)) + 1).tolist(), len(lengths)]
    runs, first = [], 0
    for end, next_end in pairwise(ends):
        if (end - first) * int(lengths[next_end - 1] - lengths[end - 1]) >= MIN_TOKENS_SAVED:
            runs.append((first, end))
            first = end
    return [*runs, (first, len(lengths))]


class PagedAttention:
    """The way through the pages of the step in progress."""

    def __init__(self, shape: ModelShape, pages: Pages) -> None:
        self._shape = shape
        self._page = pages.page
        self._pages = pages
        self._store_at = torch.zeros(0, dtype=torch.int64)
        self._groups: list[Rows] = []

    def prepare(
        self,
        tables: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        store_at: NDArray[np.int64],
    ) -> None:
        """Plan one step.

        One entry a sequence, single-token ones first and those in ascending order of length: its row of the
        block tables, tokens computed before this step, tokens in this step. store_at: the cache position of
        each token of the flat batch.
        """
        self._store_at = torch.from_numpy(store_at)
        num_single = int(np.count_nonzero(counts == 1))
        self._groups = []
        if num_single:
            lengths = starts[:num_single] + 1
            for first, end in split_by_length(lengths):
                self._groups.append(self._plan_single(first, tables[first:end], lengths[first:end]))
        row = num_single
        for i in range(num_single, len(counts)):
            count = int(counts[i])
            self._groups.append(self._plan_chunk(row, tables[i], int(starts[i]), count))
            row += count

    def _plan_single(self, first: int, tables: NDArray[np.int64], lengths: NDArray[np.int64]) -> Rows:
        batch, num_pages = len(lengths), -(-int(lengths[-1]) // self._page)
        full, windowed = self._masks(lengths - 1, num_pages)
        return Rows(
            first=first,
            end=first + batch,
            batch=batch,
            query_len=1,
            pages=torch.from_numpy(tables[:, :num_pages].ravel()),
            masks=(full.view(batch, 1, 1, -1), windowed.view(batch, 1, 1, -1)),
        )

    def _plan_chunk(self, first: int, table: NDArray[np.int64], start: int, count: int) -> Rows:
        num_pages = -(-(start + count) // self._page)
        full, windowed = self._masks(np.arange(start, start + count), num_pages)
        group = self._shape.heads // self._shape.kv_heads
        return Rows(
            first=first,
            end=first + count,
            batch=1,
            query_len=count,
            pages=torch.from_numpy(table[:num_pages].copy()),
            masks=(full.repeat(group, 1), windowed.repeat(group, 1)),
        )

    def _masks(self, positions: NDArray[np.int64], num_pages: int) -> tuple[Tensor, Tensor]:
        """Return what queries at `positions` may not read, in layers without and with a window."""
        keys, own = np.arange(num_pages * self._page), positions[:, None]
        full, window = self._additive(keys > own), self._shape.window_tokens
        return full, self._additive((keys > own) | (keys <= own - window)) if window else full

    def _additive(self, hidden: NDArray[np.bool_]) -> Tensor:
        mask = torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0)))
        return mask.to(self._pages.blocks.dtype)

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """Store this step's keys and values, then read through the block tables."""
        self._pages.store(layer, self._store_at, key_value)
        if len(self._groups) == 1:
            return self._attend_rows(layer, query, self._groups[0])
        return torch.cat([self._attend_rows(layer, query[g.first : g.end], g) for g in self._groups])

    def _attend_rows(self, layer: int, query: Tensor, rows: Rows) -> Tensor:
        shape = self._shape
        group = shape.heads // shape.kv_heads
        mask = rows.masks[layer in shape.windowed_layers]
        pages = self._pages.layers[layer].index_select(0, rows.pages)
        key_value = pages.view(rows.batch, -1, 2, shape.kv_heads, shape.head_dim).permute(2, 0, 3, 1, 4)
        if rows.query_len == 1:
            folded = query.view(rows.batch, shape.kv_heads, group, shape.head_dim)
            mixed = F.scaled_dot_product_attention(folded, key_value[0], key_value[1], attn_mask=mask)
            return mixed.reshape(rows.batch, -1)
        by_head = query.view(rows.query_len, shape.kv_heads, group, shape.head_dim).permute(1, 2, 0, 3)
        folded = by_head.reshape(1, shape.kv_heads, group * rows.query_len, shape.head_dim)
        mixed = F.scaled_dot_product_attention(folded, key_value[0], key_value[1], attn_mask=mask)
        by_row = mixed.view(shape.kv_heads, group, rows.query_len, shape.head_dim).permute(2, 0, 1, 3)
        return by_row.reshape(rows.query_len, -1)
