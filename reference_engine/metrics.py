"""What /metrics shows: counters and histograms, and their Prometheus text.

The engine counts what only it knows and hands it over when asked; what clients feel (time to the first token,
gaps) is taken in the HTTP process, where the tokens leave. Names are those of docs/; none is renamed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

import msgspec

SECONDS_BUCKETS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram(msgspec.Struct):
    """Counts of observations in seconds, one bucket more than there are bounds."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(SECONDS_BUCKETS) + 1))
    sum_s: float = 0.0

    def observe(self, value_s: float) -> None:
        self.counts[bisect_left(SECONDS_BUCKETS, value_s)] += 1
        self.sum_s += value_s


class EngineCounters(msgspec.Struct):
    """Since the engine started; kept by the engine, one addition a step each."""

    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    finished: dict[str, int] = msgspec.field(default_factory=dict)
    refused: int = 0
    queue_time: Histogram = msgspec.field(default_factory=Histogram)


class EngineStatus(msgspec.Struct, frozen=True):
    """The engine at one instant."""

    running: int
    waiting: int
    swapped: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    counters: EngineCounters


def render(status: EngineStatus, first_token: Histogram, gap: Histogram) -> str:
    """Return the metrics as Prometheus text."""
    counters, blocks = status.counters, status.blocks_used + status.blocks_cached + status.blocks_free
    lines: list[str] = []

    def add(name: str, kind: str, help_text: str, samples: Mapping[str, float]) -> None:
        lines.append(f"# HELP {name} {help_text}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{labels} {value:g}" for labels, value in samples.items())

    add("engine_requests_running", "gauge", "Resident requests.", {"": status.running})
    add("engine_requests_waiting", "gauge", "Requests in the queue.", {"": status.waiting})
    add("engine_requests_swapped", "gauge", "Requests swapped out.", {"": status.swapped})
    add(
        "engine_kv_blocks",
        "gauge",
        "KV cache blocks by state.",
        {
            '{state="used"}': status.blocks_used,
            '{state="cached"}': status.blocks_cached,
            '{state="free"}': status.blocks_free,
        },
    )
    add("engine_kv_usage_ratio", "gauge", "Share of blocks in use.", {"": status.blocks_used / blocks})
    totals = {
        "steps": (counters.steps, "Steps run."),
        "prompt_tokens": (counters.prompt_tokens, "Prompt tokens computed, recomputed ones included."),
        "output_tokens": (counters.output_tokens, "Tokens emitted."),
        "prefix_cached_tokens": (counters.cached_tokens, "Tokens found in the prefix cache."),
        "preemptions": (counters.preemptions, "Evictions of a resident request."),
        "requests_refused": (counters.refused, "Requests turned away by the engine."),
    }
    for name, (value, help_text) in totals.items():
        add(f"engine_{name}_total", "counter", help_text, {"": value})
    finished = {f'{{reason="{reason}"}}': n for reason, n in sorted(counters.finished.items())}
    add("engine_requests_finished_total", "counter", "Requests that ended, by reason.", finished)
    for name, help_text, histogram in (
        ("engine_queue_time_seconds", "From arrival to the first step.", counters.queue_time),
        ("engine_time_to_first_token_seconds", "From arrival to the first token.", first_token),
        ("engine_inter_token_latency_seconds", "From token to token of a stream.", gap),
    ):
        lines.append(f"# HELP {name} {help_text}")
        lines.append(f"# TYPE {name} histogram")
        lines.extend(_histogram_lines(name, histogram))
    return "\n".join(lines) + "\n"


def _histogram_lines(name: str, histogram: Histogram) -> Iterable[str]:
    total = 0
    for bound, count in zip((*SECONDS_BUCKETS, "+Inf"), histogram.counts, strict=True):
        total += count
        yield f'{name}_bucket{{le="{bound}"}} {total}'
    yield f"{name}_sum {histogram.sum_s:g}"
    yield f"{name}_count {total}"
