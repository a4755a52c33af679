"""RAGPulse (github.com/flashserve/RAGPulse, MIT).

JSON lines with `timestamp` as a text in seconds; `hash_ids` holds five lists: system prompt, passages,
history, web search and user input. Their tokens per id are not stated: the ids count as blocks only where
`block_tokens` says so.
"""

from typing import Any

from workloads.traces.table import Format

_PARTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")


def _join(parts: dict[str, Any]) -> list[int]:
    return [block for name in _PARTS for block in parts.get(name) or ()]


RAGPULSE = Format(
    name="ragpulse",
    unit="s",
    matches=lambda head: isinstance(head.first.get("hash_ids"), dict) and "timestamp" in head.columns,
    arrival="timestamp",
    input_tokens="input_length",
    output_tokens="output_length",
    session="session_id",
    blocks="hash_ids",
    to_blocks=_join,
)
