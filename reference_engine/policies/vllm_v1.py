"""vLLM v1: one token budget, no phases. Residents in order of admission, then newcomers, prompts in chunks.

A prompt in progress keeps its place among the decodes and takes what is left of the budget, so one long
prompt advances at a time. Whoever was admitted last goes first when memory runs out, is recomputed, and waits
ahead of all others. Source: vllm/v1/core/sched/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from reference_engine.config import EngineConfig
from reference_engine.policies.admission import Paged
from reference_engine.policies.base import Eviction, Phase, Policy, Requeue, State
from reference_engine.policies.eviction import latest_admitted
from reference_engine.policies.order import KeyedQueue
from reference_engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBudget:
    """long_prefill_tokens: the most that one prompt may take of a step; 0 is no limit."""

    long_prefill_tokens: int = 0

    def attempts(self, state: State) -> Seq[tuple[Phase, ...]]:  # noqa: ARG002
        return ((Phase.RUNNING, Phase.ADMIT),)

    def chunk(self, sequence: Sequence, budget: int, state: State) -> int:  # noqa: ARG002
        chunk = min(sequence.num_missing, budget)
        return min(chunk, self.long_prefill_tokens) if self.long_prefill_tokens else chunk


def vllm_v1(config: EngineConfig) -> Policy:  # noqa: ARG001
    return Policy(
        name="vllm-v1",
        order=KeyedQueue(),
        admission=Paged(),
        budget=OneBudget(),
        eviction=Eviction(victim=latest_admitted, requeue=Requeue.FRONT),
    )
