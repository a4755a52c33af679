"""Attention on a GPU through block tables, in Triton: any mix of lengths, nothing padded to the longest.

One program reads for one tile: some rows of one sequence, with the query heads of one KV head folded into
them, so that a key is read once for the whole group. Where there are too few tiles for the device (decoding),
the tokens are split among several programs and a second kernel adds up their parts (flash-decoding; the
online softmax is FlashAttention's). How far to read comes from the device, the grid from the host: a launch
can be replayed for other lengths. torch's own varlen_attn takes block tables too, but the kernels that it
brings want pages of 256 tokens. Decides no plan, see `ragged`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_engine.attention.ragged import MIN_SPLIT_TOKENS, Geometry, Tiles

LOG2_E = 1.4426950408889634
OPTIONS = {"num_warps": 4, "num_stages": 2}  # of keys and values; fits the shared memory of small GPUs
MIN_DOT = 16  # a side of a matrix product on tensor cores is no shorter


@triton.jit
def _attend(
    query,
    pages,
    tables,
    spans,
    out,
    parts,
    weights,
    query_stride,
    scale,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_kv_heads, num_splits = tl.num_programs(1), tl.num_programs(2)
    table = tables + tl.load(spans + tile * 4)
    first_row = tl.load(spans + tile * 4 + 1).to(tl.int32)
    first_position = tl.load(spans + tile * 4 + 2).to(tl.int32)
    num_rows = tl.load(spans + tile * 4 + 3).to(tl.int32)

    folded = tl.arange(0, BLOCK_ROWS)
    row, head = folded // GROUP, kv_head * GROUP + folded % GROUP
    dim = tl.arange(0, BLOCK_DIM)
    is_row, is_dim = row < num_rows, dim < HEAD_DIM
    position = first_position + row
    flat_head = (first_row + row) * (num_kv_heads * GROUP) + head
    query_at = (first_row + row) * query_stride + head * HEAD_DIM
    is_part = is_row[:, None] & is_dim[None, :]
    q = tl.load(query + query_at[:, None] + dim[None, :], mask=is_part, other=0.0)

    begin, end = first_position * 0, first_position + num_rows
    if WINDOW:
        begin = tl.maximum(first_position - WINDOW + 1, 0)
    share = tl.cdiv(end - begin, num_splits * BLOCK_TOKENS) * BLOCK_TOKENS
    share = tl.maximum(share, MIN_SPLIT)
    first = begin + split * share
    last = tl.minimum(first + share, end)

    top = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    mixed = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    kv_width = num_kv_heads * HEAD_DIM
    for at in range(first, last, BLOCK_TOKENS):
        token = at + tl.arange(0, BLOCK_TOKENS)
        is_token = token < last
        block = tl.load(table + token // PAGE, mask=is_token, other=0)
        # `block` has 64 bits: the pages of a layer may hold more than 2^31 numbers.
        key_at = (block * PAGE + token % PAGE) * (2 * kv_width) + kv_head * HEAD_DIM
        is_read = is_token[:, None] & is_dim[None, :]
        k = tl.load(pages + key_at[:, None] + dim[None, :], mask=is_read, other=0.0)
        v = tl.load(pages + key_at[:, None] + kv_width + dim[None, :], mask=is_read, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        is_seen = is_token[None, :] & (token[None, :] <= position[:, None])
        if WINDOW:
            is_seen = is_seen & (token[None, :] > position[:, None] - WINDOW)
        scores = tl.where(is_seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen nothing yet: -inf less -inf would be no number.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        fade, p = tl.exp2(top - base), tl.exp2(scores - base[:, None])
        total = total * fade + tl.sum(p, 1)
        mixed = mixed * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = new_top
    has_seen = total > 0
    total = tl.where(has_seen, total, 1.0)
    mixed = mixed / total[:, None]
    if IS_SPLIT:
        part_at = flat_head * num_splits + split
        weight = tl.where(has_seen, top + tl.log2(total), float("-inf"))
        tl.store(weights + part_at, weight, mask=is_row)
        is_part = is_part & (first < last)
        tl.store(parts + part_at[:, None] * HEAD_DIM + dim[None, :], mixed, mask=is_part)
    else:
        out_at = flat_head[:, None] * HEAD_DIM + dim[None, :]
        tl.store(out + out_at, mixed.to(out.dtype.element_ty), mask=is_part)


@triton.jit
def _combine(parts, weights, out, HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr, BLOCK_DIM: tl.constexpr):
    flat_head = tl.program_id(0)
    part_at, dim = flat_head * NUM_SPLITS + tl.arange(0, NUM_SPLITS), tl.arange(0, BLOCK_DIM)
    weight = tl.load(weights + part_at)
    top = tl.max(weight, 0)
    weight = tl.exp2(weight - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weight, 0)
    # A part without weight was never written.
    is_read = (weight > 0)[:, None] & (dim < HEAD_DIM)[None, :]
    part = tl.load(parts + part_at[:, None] * HEAD_DIM + dim[None, :], mask=is_read, other=0.0)
    mixed = tl.sum(part * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + flat_head * HEAD_DIM + dim, mixed.to(out.dtype.element_ty), mask=dim < HEAD_DIM)


def constants_of(geometry: Geometry, tiles: Tiles, dtype: torch.dtype) -> dict[str, int]:
    """Return what `_attend` is compiled for."""
    group = geometry.heads // geometry.kv_heads
    return {
        "HEAD_DIM": geometry.head_dim,
        "GROUP": group,
        "PAGE": geometry.page,
        "WINDOW": geometry.window,
        "IS_SPLIT": tiles.num_splits > 1,
        "MIN_SPLIT": MIN_SPLIT_TOKENS,
        "BLOCK_ROWS": max(MIN_DOT, triton.next_power_of_2(tiles.rows * group)),
        "BLOCK_TOKENS": 32 if dtype == torch.float32 else 64,
        "BLOCK_DIM": max(MIN_DOT, triton.next_power_of_2(geometry.head_dim)),
    }


def attend_tiles(
    query: Tensor, pages: Tensor, tables: Tensor, tiles: Tiles, out: Tensor, geometry: Geometry
) -> None:
    """See `AttendTiles`."""
    head_dim, num_splits = geometry.head_dim, tiles.num_splits
    num_heads = len(query) * geometry.heads
    num_parts = num_heads * num_splits if num_splits > 1 else 0
    parts = torch.empty(num_parts, head_dim, dtype=torch.float32, device=query.device)
    weights = torch.empty(num_parts, dtype=torch.float32, device=query.device)
    constants = constants_of(geometry, tiles, query.dtype)
    _attend[len(tiles.spans), geometry.kv_heads, num_splits](
        query,
        pages,
        tables,
        tiles.spans,
        out,
        parts,
        weights,
        query.stride(0),
        LOG2_E / head_dim**0.5,
        **constants,
        **OPTIONS,
    )
    if num_splits > 1:
        _combine[(num_heads,)](
            parts,
            weights,
            out,
            HEAD_DIM=head_dim,
            NUM_SPLITS=num_splits,
            BLOCK_DIM=constants["BLOCK_DIM"],
        )
