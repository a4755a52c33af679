"""The schedulers of real systems, each four answers with that system's own defaults.

The parameters of each function are its policy's knobs; docs/ says which cause of tail latency each policy
helps and which it worsens.
"""

from __future__ import annotations

from reference_engine.config import ConfigError, EngineConfig
from reference_engine.policies.admission import (
    NewTokenRatio,
    Paged,
    PeakMemory,
    Reservation,
    Reserving,
)
from reference_engine.policies.base import Eviction, Policy, Requeue
from reference_engine.policies.budget import DecodeFirst, OneBudget, PrefillFirst, WholeBatches
from reference_engine.policies.eviction import fewest_emitted, latest_admitted, latest_arrived
from reference_engine.policies.order import make_order

NEVER_EVICTS = Eviction(victim=latest_admitted)  # memory is reserved: the answer is never asked for


def whole_prompt_tokens(config: EngineConfig) -> int:
    """The least step budget that lets every prompt be computed in one step."""
    return max(config.chunk_tokens, config.max_model_len)


def reserving(reserve: Reservation, config: EngineConfig) -> Reserving:
    if reserve == "context" and config.blocks_for(config.max_model_len) > config.num_blocks:
        raise ConfigError(
            f"a KV cache of {config.kv_tokens} tokens cannot reserve a context of {config.max_model_len};"
            " raise kv_tokens, lower max_model_len, or use reserve=declared"
        )
    return Reserving(reserve=reserve)


def static(config: EngineConfig, *, padded: bool = True, reserve: Reservation = "declared") -> Policy:
    """FasterTransformer: a batch starts when the one before it has ended, and ends with its longest member.

    padded: rows of finished members are computed to the end; without, only their memory is held.
    """
    return Policy(
        name="static",
        order=make_order("fcfs", config),
        admission=reserving(reserve, config),
        budget=WholeBatches(),
        eviction=NEVER_EVICTS,
        step_tokens=config.max_batch * config.max_model_len,
        is_batch_held=True,
        is_padded=padded,
    )


def orca(config: EngineConfig, *, reserve: Reservation = "declared") -> Policy:
    """Orca: decides each step; prompts run whole beside the decodes; memory is reserved, never preempted."""
    return Policy(
        name="orca",
        order=make_order("fcfs", config),
        admission=reserving(reserve, config),
        budget=DecodeFirst(is_chunked=False),
        eviction=NEVER_EVICTS,
        step_tokens=whole_prompt_tokens(config) + config.max_batch,
    )


def vllm_v0(
    config: EngineConfig, *, chunked: bool = False, decode_interval: int = 0, watermark: float = 0.01
) -> Policy:
    """vLLM v0: prompts jump the queue in steps of their own; with chunked, they wait for a gap instead.

    The latest arrival goes first when memory runs out. Swapped requests come back before anyone new.
    """
    return Policy(
        name="vllm-v0",
        order=make_order("fcfs", config),
        admission=Paged(watermark=watermark),
        budget=DecodeFirst() if chunked else PrefillFirst(decode_interval=decode_interval),
        eviction=Eviction(victim=latest_arrived),
        step_tokens=config.chunk_tokens if chunked else whole_prompt_tokens(config),
    )


def vllm_v1(
    config: EngineConfig,
    *,
    long_prefill_tokens: int = 0,
    whole_prompt: bool = True,
    watermark: float = 0.0,
) -> Policy:
    """vLLM v1: one token budget, no phases; a prompt in progress keeps its place among the decodes.

    It takes what is left of the budget, so one long prompt advances at a time. The last admitted goes first
    when memory runs out, is recomputed, and waits ahead of all others.
    """
    return Policy(
        name="vllm-v1",
        order=make_order("fcfs", config),
        admission=Paged(is_whole_prompt=whole_prompt, is_taken_at_once=False, watermark=watermark),
        budget=OneBudget(long_prefill_tokens=long_prefill_tokens),
        eviction=Eviction(victim=latest_admitted),
        step_tokens=config.chunk_tokens,
    )


def sarathi(config: EngineConfig, *, watermark: float = 0.01) -> Policy:
    """Sarathi-Serve: every decode in every step, prompts in chunks of what is left: no decode ever stalls."""
    return Policy(
        name="sarathi",
        order=make_order("fcfs", config),
        admission=Paged(watermark=watermark),
        budget=DecodeFirst(),
        eviction=Eviction(victim=latest_admitted),
        step_tokens=config.chunk_tokens,
    )


def sglang(config: EngineConfig, *, decode_interval: int = 0, conservativeness: float = 1.0) -> Policy:
    """SGLang: prompts first, in chunks; admits on a guess of the output lengths that decays while it holds.

    When memory runs out, whoever has emitted least is retracted to the back of the queue.
    """
    admission = NewTokenRatio(conservativeness)
    return Policy(
        name="sglang",
        order=make_order("fcfs", config),
        admission=admission,
        budget=PrefillFirst(is_chunked=True, decode_interval=decode_interval),
        eviction=Eviction(victim=fewest_emitted, requeue=Requeue.BACK),
        step_tokens=config.chunk_tokens,
        observers=(admission,),
    )


def no_evict(config: EngineConfig, *, decode_interval: int = 6) -> Policy:
    """LightLLM: admits where the peak of memory still to come fits; a prompt runs each few decode steps."""
    return Policy(
        name="no-evict",
        order=make_order("fcfs", config),
        admission=PeakMemory(),
        budget=PrefillFirst(decode_interval=decode_interval),
        eviction=NEVER_EVICTS,
        step_tokens=whole_prompt_tokens(config),
    )
