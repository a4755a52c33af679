"""BurstGPT 1 and 2 (github.com/HPMLL/BurstGPT, CC-BY-4.0).

Whole seconds, `Request tokens`, `Response tokens`; version 2 adds `Session ID` (empty for API calls) and an
elapsed time. Failed requests stand as rows with zero response tokens.
"""

from workloads.traces.table import Format

BURSTGPT = Format(
    name="burstgpt",
    unit="s",
    matches=lambda head: {"Timestamp", "Request tokens", "Response tokens"} <= set(head.columns),
    arrival="Timestamp",
    input_tokens="Request tokens",
    output_tokens="Response tokens",
    session="Session ID",
)
