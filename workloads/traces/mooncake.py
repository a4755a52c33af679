"""Mooncake (github.com/kvcache-ai/Mooncake, Apache-2.0), and AIPerf's sessions in the same keys.

JSON lines with `timestamp` in ms, `input_length`, `output_length` and `hash_ids`, each naming a block of 512
tokens by its content and all before it. AIPerf adds `session_id` and, in place of a time, `delay` in ms after
the answer before. vLLM's timed traces have these keys too, in seconds and with blocks of 16: say so with
`time_unit` and `block_tokens`.
"""

from workloads.traces.source import Head
from workloads.traces.table import Format


def _matches(head: Head) -> bool:
    has_time = "timestamp" in head.columns or {"delay", "session_id"} <= set(head.columns)
    is_list = not isinstance(head.first.get("hash_ids"), dict)
    return has_time and is_list and {"input_length", "output_length"} <= set(head.columns)


MOONCAKE = Format(
    name="mooncake",
    unit="ms",
    matches=_matches,
    arrival="timestamp",
    input_tokens="input_length",
    output_tokens="output_length",
    delay="delay",
    session="session_id",
    blocks="hash_ids",
    block_tokens=512,
)
