"""Qwen-Bailian traces (github.com/alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0).

Mooncake's keys with `timestamp` in seconds, blocks of 16 tokens, and sessions by parent links; a parent may
be missing from the file.
"""

from workloads.traces.table import Format

BAILIAN = Format(
    name="bailian",
    unit="s",
    matches=lambda head: {"parent_chat_id", "timestamp", "input_length"} <= set(head.columns),
    arrival="timestamp",
    input_tokens="input_length",
    output_tokens="output_length",
    row_id="chat_id",
    parent="parent_chat_id",
    blocks="hash_ids",
    block_tokens=16,
)
