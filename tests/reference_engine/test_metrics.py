from __future__ import annotations

import re

from reference_engine.config import EngineConfig
from reference_engine.metrics import SECONDS_BUCKETS, Histogram, render
from tests.reference_engine.stub import make_sequence, run_to_end, stub_engine

CONFIG = EngineConfig(
    block_tokens=4, kv_tokens=64, max_batch=4, chunk_tokens=8, max_model_len=64, is_prefix_shared=True
)


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]+"\})? [0-9.e+-]+', line) for line in lines)
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_the_counts_are_those_of_what_ran() -> None:
    engine = stub_engine(CONFIG)
    run_to_end(engine, [make_sequence(range(1, 21), max_tokens=5) for _ in range(3)])
    engine.add(make_sequence([1], max_tokens=5))
    found = samples(render(engine.status(), Histogram(), Histogram()))
    assert found["engine_output_tokens_total"] == 15
    assert found['engine_requests_finished_total{reason="length"}'] == 3
    assert found["engine_requests_waiting"] == 1
    assert found["engine_requests_running"] == 0
    assert found["engine_steps_total"] == engine.log.num_steps
    assert found["engine_prefix_cached_tokens_total"] > 0
    assert found["engine_queue_time_seconds_count"] == 3
    blocks = [found[f'engine_kv_blocks{{state="{state}"}}'] for state in ("used", "cached", "free")]
    assert sum(blocks) == CONFIG.num_blocks
    assert blocks[1] > 0


def test_histogram_buckets_add_up_and_include_their_bound() -> None:
    histogram = Histogram()
    for value in (0.0001, SECONDS_BUCKETS[3], 1e9):
        histogram.observe(value)
    found = samples(render(stub_engine(CONFIG).status(), histogram, Histogram()))
    name = "engine_time_to_first_token_seconds_bucket"
    assert found[f'{name}{{le="0.0005"}}'] == 1
    assert found[f'{name}{{le="0.0025"}}'] == 1
    assert found[f'{name}{{le="0.005"}}'] == 2
    assert found[f'{name}{{le="+Inf"}}'] == 3
