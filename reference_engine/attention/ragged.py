"""The plan by which a GPU reads the pages of one step: tiles of rows, and how often tokens are split.

Flat arrays only, made in numpy and copied to the device together; no row is as wide as the widest. A launch
that was captured keeps its grid and the places of its arrays, and finds other lengths and blocks in them: so
the grid depends on the number of rows alone, never on a context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reference_engine.attention.pages import Pages
from reference_engine.config import ModelShape

Ints = NDArray[np.int64]

FOLDED_ROWS = 64  # rows of a tile of a chunk, times the query heads that share a KV head
NUM_PROGRAMS = 256  # fewer at a time leave processors of a large GPU idle
MAX_SPLITS = 32
MIN_ROW_SPLITS = 4  # so that one long sequence among many short ones is not read by one program
MIN_SPLIT_TOKENS = 256  # a part costs a write and a read of its sum: a few per cent at this length


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Rows [first, end) of the flat batch, cut into tiles that are read in one launch.

    spans: int64 [tiles, 4]: where in the flat tables the blocks of its sequence begin, its first row (from
    `first`), the position of that row, and its number of rows. rows: the most that a tile has. num_splits:
    programs among which the tokens of a tile are split.
    """

    first: int
    end: int
    spans: Tensor
    rows: int
    num_splits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPlan:
    """One step on the device. store_at: int64 [rows], where each row's keys and values go."""

    tables: Tensor
    store_at: Tensor
    tiles: tuple[Tiles, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What the kernel must know of a layer. page: tokens in a block. window: that a query sees, 0 for all."""

    heads: int
    kv_heads: int
    head_dim: int
    page: int
    window: int


class AttendTiles(Protocol):
    """Reads for the rows of some tiles and writes what they see."""

    def __call__(
        self, query: Tensor, pages: Tensor, tables: Tensor, tiles: Tiles, out: Tensor, geometry: Geometry
    ) -> None:
        """query, out: [rows, heads * head_dim], out contiguous; pages: of one layer; tables: int64, flat."""
        ...


class RaggedAttention:
    """The attention of one step: its plan is fixed, so that what a graph captures is all that it reads."""

    def __init__(
        self, pages: Pages, geometries: list[Geometry], plan: ReadingPlan, attend_tiles: AttendTiles
    ) -> None:
        """geometries: of each layer."""
        self._pages = pages
        self._geometries = geometries
        self._plan = plan
        self._attend_tiles = attend_tiles

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """Store this step's keys and values, then read through the block tables."""
        plan, pages = self._plan, self._pages
        pages.store(layer, plan.store_at, key_value)
        mixed = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for tiles in plan.tiles:
            rows = slice(tiles.first, tiles.end)
            self._attend_tiles(
                query[rows], pages.layers[layer], plan.tables, tiles, mixed[rows], self._geometries[layer]
            )
        return mixed


def geometries_of(shape: ModelShape, page: int) -> list[Geometry]:
    """Return what the kernel must know of each layer."""
    return [
        Geometry(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            page=page,
            window=shape.window_tokens if layer in shape.windowed_layers else 0,
        )
        for layer in range(shape.layers)
    ]


def step_spans(tables: Ints, starts: Ints, counts: Ints, page: int, rows: int) -> tuple[Ints, Ints]:
    """Return the tiles of a step, [tiles, 4] as in `Tiles`, and the flat tables that they point into.

    Single-token rows come first, each a tile; then the chunks, one after the other in the flat batch, in
    tiles of at most `rows` rows. A row with start -1 is padding and reads nothing.
    """
    num_pages = -(-(starts + counts) // page)
    offsets = num_pages.cumsum() - num_pages
    is_used = np.arange(tables.shape[1]) < num_pages[:, None]
    is_chunk = counts > 1
    first_rows = counts.cumsum() - counts - np.count_nonzero(~is_chunk) * is_chunk
    num_tiles = -(-counts // rows)
    of_tile = np.repeat(np.arange(len(counts)), num_tiles)
    done = (np.arange(len(of_tile)) - np.repeat(num_tiles.cumsum() - num_tiles, num_tiles)) * rows
    spans = np.column_stack(
        (
            offsets[of_tile],
            first_rows[of_tile] + done,
            starts[of_tile] + done,
            np.minimum(counts[of_tile] - done, rows),
        )
    )
    return spans, tables[is_used]


def make_tiles(shape: ModelShape, spans: Tensor, num_rows: int, num_tokens: int) -> tuple[Tiles, ...]:
    """Divide the tiles of a step into the launches that read for them: single-token rows, then chunks."""
    rows = Tiles(
        first=0,
        end=num_rows,
        spans=spans[:num_rows],
        rows=1,
        num_splits=num_splits(num_rows, shape.kv_heads, MIN_ROW_SPLITS),
    )
    chunks = Tiles(
        first=num_rows,
        end=num_tokens,
        spans=spans[num_rows:],
        rows=rows_of_tile(shape),
        num_splits=num_splits(len(spans) - num_rows, shape.kv_heads, 1),
    )
    return tuple(tiles for tiles in (rows, chunks) if len(tiles.spans))


def rows_of_tile(shape: ModelShape) -> int:
    """Return how many rows a tile of a chunk has."""
    return max(1, FOLDED_ROWS // (shape.heads // shape.kv_heads))


def num_splits(num_tiles: int, kv_heads: int, at_least: int) -> int:
    """Return a power of two that makes enough programs of these tiles."""
    wanted = -(-NUM_PROGRAMS // max(1, num_tiles * kv_heads))
    return min(MAX_SPLITS, max(at_least, 1 << (wanted - 1).bit_length()))
