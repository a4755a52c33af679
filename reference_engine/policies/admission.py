"""Who becomes resident: the answers that look at memory."""

from __future__ import annotations

from dataclasses import dataclass

from reference_engine.policies.base import Constraint, State
from reference_engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Paged:
    """Take blocks for the first chunk only; further ones are taken as the request grows.

    is_whole_prompt: admit only where the whole prompt fits now (vLLM's `scheduler_reserve_full_isl`);
    otherwise where the first chunk does. watermark: the share of all blocks that an admission must leave
    free, waived where nothing else is resident.
    """

    is_whole_prompt: bool = True
    watermark: float = 0.0

    def refusal(self, sequence: Sequence, chunk: int, state: State) -> Constraint | None:
        num_tokens = len(sequence.tokens) if self.is_whole_prompt else sequence.num_computed + chunk
        spare = int(self.watermark * state.config.num_blocks) if state.running else 0
        if state.config.blocks_for(num_tokens) > state.num_free_blocks - spare:
            return Constraint.MEMORY
        return None

    def reserved_tokens(self, sequence: Sequence, chunk: int, state: State) -> int:  # noqa: ARG002
        return sequence.num_computed + chunk
