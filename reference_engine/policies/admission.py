"""Who becomes resident: the answers that look at memory."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import ClassVar, Literal, assert_never

from reference_engine.policies.base import State
from reference_engine.sequence import Sequence
from reference_engine.step import Constraint, Emission, StepPlan

Reservation = Literal["context", "pow2", "declared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paged:
    """Take blocks as they are needed; memory may run out later.

    is_whole_prompt: admit only where the whole prompt fits now; otherwise where the first chunk does.
    is_taken_at_once: and take the blocks of the whole prompt, or those of the first chunk. watermark: the
    share of all blocks that an admission must leave free, waived where nothing else is resident.
    """

    is_whole_prompt: bool = True
    is_taken_at_once: bool = True
    watermark: float = 0.0
    is_refusal_lasting: ClassVar[bool] = True

    def refusal(self, sequence: Sequence, chunk: int, state: State) -> Constraint | None:
        num_tokens = len(sequence.tokens) if self.is_whole_prompt else sequence.num_computed + chunk
        missing = state.tables.blocks_missing(sequence.slot, num_tokens)
        return Constraint.MEMORY if missing > self.room_blocks(state) else None

    def need_blocks(self, sequence: Sequence, state: State) -> int:
        num_tokens = len(sequence.tokens)
        if not self.is_whole_prompt:
            num_tokens = min(num_tokens, state.config.chunk_tokens)
        return state.config.blocks_for(num_tokens)

    def room_blocks(self, state: State) -> int:
        spare = int(self.watermark * state.config.num_blocks) if state.running else 0
        return state.num_free_blocks - spare

    def reserved_tokens(self, sequence: Sequence, chunk: int, state: State) -> int:  # noqa: ARG002
        is_whole = self.is_whole_prompt and self.is_taken_at_once
        return len(sequence.tokens) if is_whole else sequence.num_computed + chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserving:
    """Take blocks for the longest answer at once, so that memory never runs out later.

    reserve: `context` takes the model's whole context; `declared` the prompt and max_tokens; `pow2` the
    prompt and max_tokens rounded up to a power of two.
    """

    reserve: Reservation
    is_refusal_lasting: ClassVar[bool] = True

    def need_blocks(self, sequence: Sequence, state: State) -> int:
        return state.config.blocks_for(self.reserved_tokens(sequence, 0, state))

    def room_blocks(self, state: State) -> int:
        return state.num_free_blocks

    def refusal(self, sequence: Sequence, chunk: int, state: State) -> Constraint | None:
        missing = state.tables.blocks_missing(sequence.slot, self.reserved_tokens(sequence, chunk, state))
        return Constraint.MEMORY if missing > state.num_free_blocks else None

    def reserved_tokens(self, sequence: Sequence, chunk: int, state: State) -> int:  # noqa: ARG002
        match self.reserve:
            case "context":
                return state.config.max_model_len
            case "declared":
                return sequence.max_total
            case "pow2":
                longest = min(state.config.max_model_len, state.config.pool_tokens)
                return min(longest, sequence.num_prompt + (1 << (sequence.max_tokens - 1).bit_length()))
        assert_never(self.reserve)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Admit where the highest use of memory still to come fits, if every answer runs to max_tokens.

    With requests by remaining length, the use peaks when one of them ends: at request i, everything held so
    far by it and those longer plus what they add meanwhile. Source: LightLLM's router.
    """

    is_refusal_lasting: ClassVar[bool] = False  # the peak falls while residents decode

    def need_blocks(self, sequence: Sequence, state: State) -> int:
        return state.config.blocks_for(sequence.max_total) + 1

    def room_blocks(self, state: State) -> int:
        spare = (state.config.block_tokens - 1) * len(state.running)
        return (state.config.pool_tokens - peak_tokens(state.running) - spare) // state.config.block_tokens

    def refusal(self, sequence: Sequence, chunk: int, state: State) -> Constraint | None:  # noqa: ARG002
        if not state.running:
            return None
        residents = [*state.running, sequence]
        # A partly filled block costs a whole one, for each resident.
        peak = peak_tokens(residents) + (state.config.block_tokens - 1) * len(residents)
        return Constraint.MEMORY if peak > state.config.pool_tokens else None

    def reserved_tokens(self, sequence: Sequence, chunk: int, state: State) -> int:  # noqa: ARG002
        return len(sequence.tokens)


def peak_tokens(residents: Seq[Sequence]) -> int:
    """Return the most KV tokens that the residents will hold at once, if all run to max_tokens."""
    by_remaining = sorted(
        ((r.max_tokens - r.num_emitted, len(r.tokens)) for r in residents), key=lambda pair: -pair[0]
    )
    peak = held = 0
    for i, (remaining, tokens) in enumerate(by_remaining, 1):
        held += tokens
        peak = max(peak, held + remaining * i)
    return peak


INITIAL_RATIO = 0.7
FLOOR_SHARE = 0.14
DECAY_STEPS = 600
MAX_ESTIMATE_TOKENS = 4096


class NewTokenRatio:
    """Admit on the guess that answers run to a share of max_tokens; the share falls while the guess holds.

    It starts at 0.7, falls to 0.14 of that over 600 decode steps, returns to the start when nothing runs, and
    is raised by what is known of the residents when one had to be evicted. Source: SGLang's PrefillAdder.
    """

    is_refusal_lasting = False  # the ratio falls

    def __init__(self, conservativeness: float = 1.0) -> None:
        self._initial = min(1.0, INITIAL_RATIO * conservativeness)
        self._floor = FLOOR_SHARE * self._initial
        self.ratio = self._initial

    def refusal(self, sequence: Sequence, chunk: int, state: State) -> Constraint | None:  # noqa: ARG002
        need = sequence.num_missing + self._remaining(sequence) * self.ratio + state.config.block_tokens
        free = self._free_tokens(state)
        missing = state.tables.blocks_missing(sequence.slot, len(sequence.tokens))
        fits = missing <= state.num_free_blocks
        if fits and (need <= free or not state.running):
            return None
        return Constraint.MEMORY

    def _free_tokens(self, state: State) -> float:
        estimate = sum(self._remaining(r) * self.ratio for r in state.running)
        unfinished = sum(r.num_missing for r in state.running if not r.is_decoding)
        return state.num_free_blocks * state.config.block_tokens - estimate - unfinished

    def need_blocks(self, sequence: Sequence, state: State) -> int:
        need = len(sequence.tokens) + self._remaining(sequence) * self.ratio
        return state.config.blocks_for(int(need)) + 1

    def room_blocks(self, state: State) -> int:
        return int(self._free_tokens(state)) // state.config.block_tokens

    def _remaining(self, sequence: Sequence) -> int:
        return min(sequence.max_tokens - sequence.num_emitted, MAX_ESTIMATE_TOKENS)

    def reserved_tokens(self, sequence: Sequence, chunk: int, state: State) -> int:  # noqa: ARG002
        return len(sequence.tokens)

    def observe(self, plan: StepPlan, emissions: Seq[Emission], state: State) -> None:  # noqa: ARG002
        if plan.preempted and state.running:
            emitted = sum(r.num_emitted for r in state.running)
            declared = sum(r.max_tokens for r in state.running)
            self.ratio = min(1.0, (emitted + 20 * len(state.running)) / (declared + 1))
        elif not state.running:
            self.ratio = self._initial
        elif state.decodes_since_prefill:
            self.ratio = max(self._floor, self.ratio - (self._initial - self._floor) / DECAY_STEPS)
