"""Runs a step on torch: turns the plan into flat tensors, runs the decoder, draws the next tokens.

The only module that the engine needs torch through. Tensors of a step are made from numpy arrays, never row by
row: with a small model, building inputs from lists would cost as much as a layer.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reference_engine import tokenizer
from reference_engine.attention.paged import PagedAttention
from reference_engine.config import EngineConfig
from reference_engine.kv_cache import BlockTables
from reference_engine.model import Decoder, random_weights
from reference_engine.sampling import draw
from reference_engine.scheduler import Scheduled
from reference_engine.sequence import Sequence


class TorchExecutor:
    """One model, one paged cache, one thread pool."""

    def __init__(self, config: EngineConfig, tables: BlockTables) -> None:
        torch.set_num_threads(config.threads)
        num_outputs = tokenizer.NUM_WORDS + config.is_eos_enabled  # EOS is the id after the words
        weights = random_weights(config.shape, tokenizer.NUM_IDS, num_outputs, config.seed)
        self._decoder = Decoder(config.shape, weights, config.max_model_len)
        self._attention = PagedAttention(config.shape, tables.pool.num_blocks, config.block_tokens)
        self._tables = tables
        self._is_eos_enabled = config.is_eos_enabled

    def warm_up(self, max_batch: int) -> None:
        """Touch every kernel once at both ends of the batch, so that no request pays for it."""
        for batch in {1, min(8, max_batch), max_batch}:
            zeros = np.zeros(batch, np.int64)
            self._forward(zeros, zeros, zeros, zeros, np.ones(batch, np.int64), np.arange(batch))
        count = 64
        self._forward(
            np.zeros(count, np.int64),
            np.arange(count),
            np.zeros(1, np.int64),
            np.zeros(1, np.int64),
            np.full(1, count),
            np.array([count - 1]),
        )

    def execute(self, scheduled: list[Scheduled]) -> list[int]:
        """Compute the scheduled tokens; return the next token of each entry, -1 where it is not due yet."""
        single = [i for i, (_, count) in enumerate(scheduled) if count == 1]
        single.sort(key=lambda i: scheduled[i].sequence.num_computed)
        order = single + [i for i, (_, count) in enumerate(scheduled) if count > 1]
        rows = [scheduled[i] for i in order]
        slots = np.array([sequence.slot for sequence, _ in rows], np.int64)
        starts = np.array([sequence.num_computed for sequence, _ in rows], np.int64)
        counts = np.array([count for _, count in rows], np.int64)
        token_ids: list[int] = []
        for sequence, count in rows:
            if count == 1:
                token_ids.append(sequence.tokens[sequence.num_computed])
            else:
                token_ids += sequence.tokens[sequence.num_computed : sequence.num_computed + count]
        positions = starts
        if len(single) < len(rows):
            ends = np.cumsum(counts)
            positions = np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)
        is_due = [sequence.num_missing == count for sequence, count in rows]
        emit_rows = (np.cumsum(counts) - 1)[is_due]
        next_ids = [-1] * len(scheduled)
        if not len(emit_rows):
            self._forward(np.array(token_ids), positions, slots, starts, counts, emit_rows)
            return next_ids
        logits = self._forward(np.array(token_ids), positions, slots, starts, counts, emit_rows)
        due = [i for i, is_row_due in zip(order, is_due, strict=True) if is_row_due]
        for i, token_id in zip(due, self._draw(logits, [scheduled[i].sequence for i in due]), strict=True):
            next_ids[i] = token_id
        return next_ids

    @torch.inference_mode()
    def _forward(
        self,
        token_ids: np.ndarray,
        positions: np.ndarray,
        slots: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        emit_rows: np.ndarray,
    ) -> Tensor:
        page = self._tables.block_tokens
        tables = self._tables.tables[slots]
        token_rows = slots if len(token_ids) == len(slots) else np.repeat(slots, counts)
        store_at = self._tables.tables[token_rows, positions // page] * page + positions % page
        self._attention.prepare(tables, starts, counts, store_at)
        return self._decoder.forward(
            torch.from_numpy(token_ids),
            torch.from_numpy(positions),
            torch.from_numpy(emit_rows),
            self._attention,
        )

    def _draw(self, logits: Tensor, sequences: list[Sequence]) -> list[int]:
        if self._is_eos_enabled:
            for row, sequence in enumerate(sequences):
                if sequence.ignore_eos or sequence.num_emitted < sequence.min_tokens:
                    logits[row, tokenizer.EOS_ID] = -torch.inf
        if all(sequence.sampling.temperature == 0 for sequence in sequences):
            return logits.argmax(1).tolist()
        return draw(logits, sequences)
