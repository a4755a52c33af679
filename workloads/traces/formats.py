"""The public formats: which column of each holds what. Told apart by columns and keys, never by file name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from workloads.traces.conversations import OPENAI_MESSAGES, SHAREGPT
from workloads.traces.source import Head
from workloads.traces.table import Format


def _has(*names: str, hash_ids: type = object) -> Callable[[Head], bool]:
    """Tell a format by columns that it must have, and by what its hash ids are."""
    return lambda head: set(names) <= set(head.columns) and isinstance(head.first.get("hash_ids"), hash_ids)


def _join(parts: dict[str, Any]) -> list[int]:
    names = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
    return [block for name in names for block in parts.get(name) or ()]


# Azure 2023, 2024 and 2025 (github.com/Azure/AzurePublicDataset, CC-BY-4.0): dates with 6 or 7 digits of
# fraction, with or without an offset; in 2025 with NumImages between.
AZURE = Format(
    name="azure",
    unit="datetime",
    matches=_has("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    arrival="TIMESTAMP",
    input_tokens="ContextTokens",
    output_tokens="GeneratedTokens",
)
# BurstGPT 1 and 2 (github.com/HPMLL/BurstGPT, CC-BY-4.0): whole seconds; version 2 adds sessions (none for
# API calls); a failed request is a row with zero response tokens.
BURSTGPT = Format(
    name="burstgpt",
    unit="s",
    matches=_has("Timestamp", "Request tokens", "Response tokens"),
    arrival="Timestamp",
    input_tokens="Request tokens",
    output_tokens="Response tokens",
    session="Session ID",
)
# Mooncake (github.com/kvcache-ai/Mooncake, Apache-2.0): ms; a hash id names a block and all before it. AIPerf
# adds sessions and, in place of a time, the delay after the answer before. vLLM's timed traces have these
# keys in seconds with blocks of 16.
MOONCAKE = Format(
    name="mooncake",
    unit="ms",
    matches=_has("timestamp", "input_length", "output_length"),
    arrival="timestamp",
    input_tokens="input_length",
    output_tokens="output_length",
    delay="delay",
    session="session_id",
    blocks="hash_ids",
    block_tokens=512,
)
MOONCAKE_DELAYS = replace(MOONCAKE, matches=_has("delay", "session_id", "input_length", "output_length"))
# RAGPulse (github.com/flashserve/RAGPulse, MIT): seconds as text; five lists of ids. Their tokens are not
# stated, so that they count as blocks only where the user gives a size.
RAGPULSE = replace(
    MOONCAKE,
    name="ragpulse",
    unit="s",
    matches=_has("timestamp", "input_length", hash_ids=dict),
    delay=None,
    block_tokens=0,
    to_blocks=_join,
)
# Qwen-Bailian (github.com/alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0): sessions by parent links,
# of which one may be missing.
BAILIAN = replace(
    MOONCAKE,
    name="bailian",
    unit="s",
    matches=_has("parent_chat_id", "timestamp", "input_length"),
    delay=None,
    session=None,
    row_id="chat_id",
    parent="parent_chat_id",
    block_tokens=16,
)
# vidur and sarathi (github.com/microsoft/vidur, MIT), with times or without.
VIDUR = Format(
    name="vidur",
    unit="s",
    matches=_has("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    arrival="arrived_at",
    input_tokens="num_prefill_tokens",
    output_tokens="num_decode_tokens",
)
VIDUR_LENGTHS = replace(
    VIDUR, name="vidur-lengths", arrival=None, matches=_has("num_prefill_tokens", "num_decode_tokens")
)

# Asked in this order: Bailian and RAGPulse have all of Mooncake's keys and more.
FORMATS: tuple[Format, ...] = (
    AZURE, BURSTGPT, BAILIAN, RAGPULSE, MOONCAKE, MOONCAKE_DELAYS, VIDUR, VIDUR_LENGTHS, SHAREGPT,
    OPENAI_MESSAGES,
)  # fmt: skip
