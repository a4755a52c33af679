"""How the tokens of a step are split between prefill and decode: four shapes that real schedulers have."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from reference_engine.policies.base import Phase, State
from reference_engine.sequence import Sequence


def whole_or_nothing(sequence: Sequence, budget: int) -> int:
    return sequence.num_missing if sequence.num_missing <= budget else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBudget:
    """No phases: residents in order of admission, then newcomers, all from one budget.

    long_prefill_tokens: the most that one prompt may take of a step; 0 is no limit.
    """

    long_prefill_tokens: int = 0

    def attempts(self, state: State) -> Seq[tuple[Phase, ...]]:
        return ((Phase.RUNNING, Phase.SWAP_IN if state.swapped else Phase.ADMIT),)

    def chunk(self, sequence: Sequence, budget: int, state: State) -> int:  # noqa: ARG002
        chunk = min(sequence.num_missing, budget)
        return min(chunk, self.long_prefill_tokens) if self.long_prefill_tokens else chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFirst:
    """Mixed steps, decodes before prompts: a prompt waits for a gap in the budget, a decode never does."""

    is_chunked: bool = True

    def attempts(self, state: State) -> Seq[tuple[Phase, ...]]:
        if state.swapped:  # what was swapped out comes back before anyone new
            return ((Phase.DECODES, Phase.PREFILLS, Phase.SWAP_IN),)
        return ((Phase.DECODES, Phase.PREFILLS, Phase.ADMIT),)

    def chunk(self, sequence: Sequence, budget: int, state: State) -> int:  # noqa: ARG002
        return min(sequence.num_missing, budget) if self.is_chunked else whole_or_nothing(sequence, budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFirst:
    """Steps of one kind: a prompt that can be computed jumps the queue, and decodes wait.

    decode_interval: after a prompt, let this many decode steps run before the next.
    """

    is_chunked: bool = False
    decode_interval: int = 0

    def attempts(self, state: State) -> Seq[tuple[Phase, ...]]:
        decode = (Phase.DECODES, Phase.SWAP_IN)
        has_decodes = any(sequence.is_decoding for sequence in state.running)
        if state.swapped or (has_decodes and state.decodes_since_prefill < self.decode_interval):
            return (decode, (Phase.PREFILLS,))
        return ((Phase.PREFILLS, Phase.ADMIT), decode)

    def chunk(self, sequence: Sequence, budget: int, state: State) -> int:  # noqa: ARG002
        return min(sequence.num_missing, budget) if self.is_chunked else whole_or_nothing(sequence, budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeBatches:
    """Request-level batching: a batch is admitted when the one before it has ended, and runs to its end."""

    def attempts(self, state: State) -> Seq[tuple[Phase, ...]]:
        return ((Phase.RUNNING,),) if state.running else ((Phase.ADMIT,),)

    def chunk(self, sequence: Sequence, budget: int, state: State) -> int:  # noqa: ARG002
        return whole_or_nothing(sequence, budget)
