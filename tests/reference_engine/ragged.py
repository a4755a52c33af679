"""What the kernel of ragged attention must do, written for reading: row by row, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_engine.attention.ragged import Geometry, Tiles


def attend_row_by_row(
    query: Tensor, pages: Tensor, tables: Tensor, tiles: Tiles, out: Tensor, geometry: Geometry
) -> None:
    """See `AttendTiles`."""
    group, page = geometry.heads // geometry.kv_heads, geometry.page
    tokens = pages.view(-1, 2, geometry.kv_heads, geometry.head_dim)
    for table_at, first_row, first_position, num_rows in tiles.spans.tolist():
        assert num_rows <= tiles.rows
        for row, position in enumerate(range(first_position, first_position + num_rows), first_row):
            first = max(0, position - geometry.window + 1) if geometry.window else 0
            seen = torch.arange(first, position + 1)
            at = tables[table_at + seen // page] * page + seen % page
            keys, values = tokens[at].double().unbind(1)
            by_group = query[row].double().view(geometry.kv_heads, group, geometry.head_dim)
            scores = torch.einsum("hgd,thd->hgt", by_group, keys) / geometry.head_dim**0.5
            mixed = torch.einsum("hgt,thd->hgd", scores.softmax(2), values)
            out[row] = mixed.flatten().to(out.dtype)
