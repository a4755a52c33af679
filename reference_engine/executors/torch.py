"""Runs a step on torch: turns the plan into flat tensors, runs the decoder, draws the next tokens.

The only module that the engine needs torch through. Tensors of a step are made from numpy arrays, never row
by row: with a small model, building inputs from lists would cost as much as a layer.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reference_engine.attention.paged import PagedAttention
from reference_engine.config import EngineConfig
from reference_engine.kv_cache import BlockTables
from reference_engine.model import Decoder
from reference_engine.model_info import describe_model
from reference_engine.sampling import draw
from reference_engine.sequence import Sequence
from reference_engine.step import Scheduled, StepPlan
from reference_engine.weights import choose_dtype, load_weights

MAX_POSITION = 1 << 62


class TorchExecutor:
    """One model, one paged cache, one thread pool."""

    def __init__(self, config: EngineConfig, tables: BlockTables) -> None:
        torch.set_num_threads(config.threads)
        info = describe_model(config.model)
        self.dtype = choose_dtype(config.dtype, info)
        weights = load_weights(info, config.seed, self.dtype)
        self.num_params = weights.num_params
        self._is_eos_enabled = config.is_eos_enabled
        self._eos_ids = torch.tensor(sorted(info.eos_ids), dtype=torch.int64)
        self._decoder = Decoder(info.shape, weights, config.max_model_len)
        self._attention = PagedAttention(
            info.shape, tables.pool.num_blocks, config.block_tokens, config.num_swap_blocks, self.dtype
        )
        self._tables = tables

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Touch every kernel at both ends of the batch and with a chunk, so that no request pays for it."""
        for batch in {1, len(self._tables.tables)}:
            zeros, ones = np.zeros(batch, np.int64), np.ones(batch, np.int64)
            self._forward(zeros, zeros, zeros, ones, np.arange(batch))
        count = min(64, self._tables.tables.shape[1] * self._tables.block_tokens)
        zero = np.zeros(1, np.int64)
        self._forward(np.zeros(count, np.int64), zero, zero, np.array([count]), np.array([count - 1]))

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[int]:
        """Compute the scheduled tokens; return the next token of each entry, -1 where it is not due yet."""
        if plan.swap_out:
            self._attention.swap_out(plan.swap_out)
        if plan.swap_in:
            self._attention.swap_in(plan.swap_in)
        next_ids = self._compute(plan.scheduled + plan.padding)
        return next_ids[: len(plan.scheduled)]

    def _compute(self, scheduled: list[Scheduled]) -> list[int]:
        # Single tokens first and by length: the attention groups neighbours.
        order = sorted(range(len(scheduled)), key=lambda i: _row_order(scheduled[i]))
        rows = [scheduled[i] for i in order]
        counts = np.array([count for _, count in rows], np.int64)
        token_ids: list[int] = []
        for sequence, count in rows:
            token_ids += sequence.tokens[sequence.num_computed : sequence.num_computed + count]
        is_due = np.array([sequence.num_missing == count for sequence, count in rows])
        emit_rows = (counts.cumsum() - 1)[is_due]
        logits = self._forward(
            np.array(token_ids, np.int64),
            np.array([sequence.slot for sequence, _ in rows], np.int64),
            np.array([sequence.num_computed for sequence, _ in rows], np.int64),
            counts,
            emit_rows,
        )
        due = [i for i, is_row_due in zip(order, is_due.tolist(), strict=True) if is_row_due]
        next_ids = [-1] * len(scheduled)
        for i, token_id in zip(due, self._draw(logits, [scheduled[i].sequence for i in due]), strict=True):
            next_ids[i] = token_id
        return next_ids

    def _forward(
        self,
        token_ids: NDArray[np.int64],
        slots: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        emit_rows: NDArray[np.int64],
    ) -> Tensor:
        page, tables = self._tables.block_tokens, self._tables.tables
        positions, token_slots = starts, slots
        if len(token_ids) > len(slots):
            first_rows = counts.cumsum() - counts
            positions = np.arange(len(token_ids)) + np.repeat(starts - first_rows, counts)
            token_slots = np.repeat(slots, counts)
        store_at = tables[token_slots, positions // page] * page + positions % page
        num_pages = int((starts + counts).max() - 1) // page + 1
        self._attention.prepare(tables[slots, :num_pages], starts, counts, store_at)
        return self._decoder.forward(
            torch.from_numpy(token_ids),
            torch.from_numpy(positions),
            torch.from_numpy(emit_rows),
            self._attention,
        )

    def _draw(self, logits: Tensor, sequences: list[Sequence]) -> list[int]:
        if not self._is_eos_enabled:
            logits.index_fill_(1, self._eos_ids, -torch.inf)
        else:
            for row, sequence in enumerate(sequences):
                if sequence.ignore_eos or sequence.num_emitted < sequence.min_tokens:
                    logits[row, self._eos_ids] = -torch.inf
        if all(sequence.sampling.temperature == 0 for sequence in sequences):
            greedy: list[int] = logits.argmax(1).tolist()
            return greedy
        return draw(logits.float(), sequences)


def _row_order(entry: Scheduled) -> int:
    return entry.sequence.num_computed if entry.num_tokens == 1 else MAX_POSITION
