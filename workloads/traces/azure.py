"""Azure LLM inference traces of 2023, 2024 and 2025 (github.com/Azure/AzurePublicDataset, CC-BY-4.0).

`TIMESTAMP,ContextTokens,GeneratedTokens`, in 2025 with NumImages between; dates with 6 or 7 digits of
fraction, with or without an offset.
"""

from workloads.traces.table import Format

AZURE = Format(
    name="azure",
    unit="datetime",
    matches=lambda head: {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(head.columns),
    arrival="TIMESTAMP",
    input_tokens="ContextTokens",
    output_tokens="GeneratedTokens",
)
