"""Runs a step on torch: turns the plan into flat arrays, runs the decoder, draws the next tokens.

Arrays of a step are made by numpy, never row by row: with a small model, building inputs from lists would
cost as much as a layer. How they come to the device and back is the forward pass's business, one for the CPU
and one for CUDA; the host waits for the device once a step, in `execute`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from reference_engine.attention.paged import PagedAttention
from reference_engine.attention.pages import Pages
from reference_engine.config import ConfigError, EngineConfig
from reference_engine.executors.batch import Batch, blank_batch
from reference_engine.executors.device import DeviceForward, GraphCapture
from reference_engine.kv_cache import BlockTables
from reference_engine.model import Decoder
from reference_engine.model_info import describe_model
from reference_engine.sampling import draw
from reference_engine.sequence import Sequence
from reference_engine.step import Scheduled, StepPlan
from reference_engine.weights import choose_dtype, load_weights

MAX_POSITION = 1 << 62
KV_SHARE = 0.9  # of the memory that the weights leave: the rest is for activations and graphs


class Forward(Protocol):
    """A decoder over pages on some device."""

    pages: Pages

    def warm_up(self) -> None:
        """Touch every kernel, so that no request pays for it."""
        ...

    def forward(self, batch: Batch) -> Tensor:
        """Return logits [len(emit_rows), output ids], which the device may still be computing."""
        ...


class HostForward:
    """The CPU: nothing is copied."""

    def __init__(self, decoder: Decoder, pages: Pages, max_batch: int) -> None:
        self.pages = pages
        self._decoder = decoder
        self._attention = PagedAttention(decoder.shape, pages)
        self._max_batch = max_batch

    def warm_up(self) -> None:
        for num_sequences, count in ((1, 1), (self._max_batch, 1), (1, min(64, self._decoder.max_positions))):
            self.forward(blank_batch(num_sequences, count, 0))

    def forward(self, batch: Batch) -> Tensor:
        self._attention.prepare(batch.tables, batch.starts, batch.counts, batch.store_at)
        arrays = (batch.token_ids, batch.positions, batch.emit_rows)
        token_ids, positions, emit_rows = map(torch.from_numpy, arrays)
        return self._decoder.forward(token_ids, positions, emit_rows, self._attention)


def load_decoder(config: EngineConfig) -> Decoder:
    """Read or draw the weights, on the device and in the type that they are used in."""
    info = describe_model(config.model)
    dtype = choose_dtype(config.dtype, info, config.device)
    weights = load_weights(info, config.seed, dtype, torch.device(config.device))
    return Decoder(info.shape, weights, config.max_model_len)


def tokens_that_fit(decoder: Decoder, block_tokens: int) -> int:
    """Return how many tokens' keys and values a GPU has room for beside the weights; raises ConfigError."""
    shape = decoder.shape
    token_bytes = shape.layers * 2 * shape.kv_heads * shape.head_dim * decoder.weights.norm.element_size()
    torch.cuda.empty_cache()
    num_free_bytes, _ = torch.cuda.mem_get_info()
    # One block less: padding writes to a block of its own.
    num_tokens = int(KV_SHARE * num_free_bytes) // token_bytes - block_tokens
    if num_tokens < block_tokens:
        raise ConfigError(f"the weights leave {num_free_bytes / 1e6:.0f} MB of the GPU: take a smaller model")
    return num_tokens


class TorchExecutor:
    """One model, one paged cache, one device."""

    def __init__(self, config: EngineConfig, decoder: Decoder, tables: BlockTables) -> None:
        torch.set_num_threads(config.threads)
        self.device_name = torch.cuda.get_device_name() if config.device == "cuda" else "cpu"
        self.dtype_name = str(decoder.weights.norm.dtype).removeprefix("torch.")
        self._tables = tables
        self._device = torch.device(config.device)
        self._is_eos_enabled = config.is_eos_enabled
        eos_ids = sorted(describe_model(config.model).eos_ids)
        self._eos_ids = torch.tensor(eos_ids, dtype=torch.int64, device=self._device)
        self._never = torch.tensor(-torch.inf, dtype=decoder.weights.norm.dtype, device=self._device)
        self._forward = make_forward(config, decoder, tables)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Touch every kernel, so that no request pays for it."""
        self._forward.warm_up()

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[int]:
        """Compute the scheduled tokens; return the next token of each entry, -1 where it is not due yet."""
        if plan.swap_out:
            self._forward.pages.swap_out(plan.swap_out)
        if plan.swap_in:
            self._forward.pages.swap_in(plan.swap_in)
        scheduled = plan.scheduled + plan.padding
        # Single tokens first and by length: the attention groups neighbours.
        order = sorted(range(len(scheduled)), key=lambda i: _row_order(scheduled[i]))
        rows = [scheduled[i] for i in order]
        is_due = [sequence.num_missing == count for sequence, count in rows]
        logits = self._forward.forward(self._batch(rows, np.array(is_due)))
        due = [i for i, is_row_due in zip(order, is_due, strict=True) if is_row_due]
        drawn = self._draw(logits, [scheduled[i].sequence for i in due])
        next_ids = [-1] * len(scheduled)
        # The one wait of a step. Without a token to wait for, the step still is over when it is computed.
        if not due and self._device.type == "cuda":
            torch.cuda.synchronize()
        for i, token_id in zip(due, drawn.tolist(), strict=True):
            next_ids[i] = token_id
        return next_ids[: len(plan.scheduled)]

    def _batch(self, rows: list[Scheduled], is_due: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Batch:
        token_ids: list[int] = []
        for sequence, count in rows:
            token_ids += sequence.tokens[sequence.num_computed : sequence.num_computed + count]
        counts = np.array([count for _, count in rows], np.int64)
        starts = np.array([sequence.num_computed for sequence, _ in rows], np.int64)
        slots = np.array([sequence.slot for sequence, _ in rows], np.int64)
        page, tables = self._tables.block_tokens, self._tables.tables
        positions, token_slots = starts, slots
        if len(token_ids) > len(rows):
            first_rows = counts.cumsum() - counts
            positions = np.arange(len(token_ids)) + np.repeat(starts - first_rows, counts)
            token_slots = np.repeat(slots, counts)
        num_pages = int((starts + counts).max() - 1) // page + 1
        return Batch(
            token_ids=np.array(token_ids, np.int64),
            positions=positions,
            store_at=tables[token_slots, positions // page] * page + positions % page,
            tables=tables[slots, :num_pages],
            starts=starts,
            counts=counts,
            emit_rows=(counts.cumsum() - 1)[is_due],
        )

    def _draw(self, logits: Tensor, sequences: list[Sequence]) -> Tensor:
        if not self._is_eos_enabled:
            logits.index_fill_(1, self._eos_ids, -torch.inf)
        elif endless := [
            row
            for row, sequence in enumerate(sequences)
            if sequence.ignore_eos or sequence.num_emitted < sequence.min_tokens
        ]:
            rows = torch.tensor(endless, pin_memory=logits.is_cuda).to(logits.device, non_blocking=True)
            logits.index_put_((rows[:, None], self._eos_ids), self._never)
        return draw(logits, sequences)


def make_forward(config: EngineConfig, decoder: Decoder, tables: BlockTables) -> Forward:
    is_cuda = config.device == "cuda"
    pages = Pages(
        decoder.shape,
        tables.pool.num_blocks + is_cuda,  # one more, for padding to write to
        config.block_tokens,
        config.num_swap_blocks,
        dtype=decoder.weights.norm.dtype,
        device=config.device,
    )
    max_batch, max_blocks = tables.tables.shape
    if not is_cuda:
        return HostForward(decoder, pages, max_batch)
    from reference_engine.attention.kernels import attend_tiles

    return DeviceForward(
        decoder,
        pages,
        max_batch=max_batch,
        max_blocks=max_blocks,
        attend_tiles=attend_tiles,
        capture=GraphCapture(),
    )


def _row_order(entry: Scheduled) -> int:
    return entry.sequence.num_computed if entry.num_tokens == 1 else MAX_POSITION
