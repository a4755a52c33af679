"""Where keys and values lie: blocks of every layer on the device, and room for evicted ones on the host.

A block holds [page, k|v, kv_heads, head_dim] of a layer, so that one read fetches both. Decides the layout,
and copies blocks when told to; which block is whose is the scheduler's business.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_engine.config import ModelShape


class Pages:
    """blocks: [layers, blocks, page * 2 * kv_heads * head_dim]. page: tokens in a block."""

    def __init__(
        self,
        shape: ModelShape,
        num_blocks: int,
        page: int,
        num_host_blocks: int = 0,
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.page = page
        token_width = 2 * shape.kv_heads * shape.head_dim
        self.blocks = torch.zeros(shape.layers, num_blocks, page * token_width, dtype=dtype, device=device)
        self.layers = list(self.blocks.unbind(0))
        self._tokens = list(self.blocks.view(shape.layers, num_blocks * page, token_width).unbind(0))
        # By block, so that one copy moves all of its layers; pinned, so that the GPU copies by itself.
        self._host = torch.empty(
            num_host_blocks, shape.layers, page * token_width, dtype=dtype, pin_memory=device != "cpu"
        )

    def store(self, layer: int, at: Tensor, key_value: Tensor) -> None:
        """Put down the keys and values of tokens; at: int64 [tokens], block * page + place in it."""
        self._tokens[layer].index_copy_(0, at, key_value)

    def swap_out(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks to the host; pairs of (block, host block). Nobody waits: the device keeps the order."""
        blocks = self.blocks.index_select(1, self._index([block for block, _ in pairs]))
        for source, (_, host_block) in zip(blocks.transpose(0, 1).contiguous(), pairs, strict=True):
            self._host[host_block].copy_(source, non_blocking=True)

    def swap_in(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks back; pairs of (host block, block)."""
        blocks = torch.empty_like(self._host[: len(pairs)], device=self.blocks.device)
        for target, (host_block, _) in zip(blocks, pairs, strict=True):
            target.copy_(self._host[host_block], non_blocking=True)
        self.blocks.index_copy_(1, self._index([block for _, block in pairs]), blocks.transpose(0, 1))

    def _index(self, ids: list[int]) -> Tensor:
        pinned = torch.tensor(ids, pin_memory=self._host.is_pinned())
        return pinned.to(self.blocks.device, non_blocking=True)
