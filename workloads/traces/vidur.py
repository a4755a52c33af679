"""vidur and sarathi (github.com/microsoft/vidur, MIT): seconds and token counts, or pairs of lengths
without times."""

from dataclasses import replace

from workloads.traces.table import Format

VIDUR = Format(
    name="vidur",
    unit="s",
    matches=lambda head: {"arrived_at", "num_prefill_tokens", "num_decode_tokens"} <= set(head.columns),
    arrival="arrived_at",
    input_tokens="num_prefill_tokens",
    output_tokens="num_decode_tokens",
)
VIDUR_LENGTHS = replace(
    VIDUR,
    name="vidur-lengths",
    arrival=None,
    matches=lambda head: {"num_prefill_tokens", "num_decode_tokens"} <= set(head.columns),
)
