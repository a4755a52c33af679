"""What a long run costs to sum up: a million made-up requests of a hundred tokens, in seconds and memory.

python -m benchmarks.summary [REQUESTS]      one process writes the rows, another sums them up
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.measure.summary import summarize
from loadgen.records import arrow_schema
from loadgen.row_stream import ROW_GROUP_ROWS, WithoutPandas
from loadgen.store import RunFolder, load
from workloads.plan import Plan

REQUESTS = 1_000_000
TOKENS = 100
RATE_PER_S = 1000.0
WORDS = {
    "class": "default",
    "outcome": "ok",
    "stamp_source": "kernel",
    "prompt_tokens_source": "usage",
    "output_tokens_source": "usage",
}


def write_run(out: Path, num_requests: int) -> Path:
    """Make a run folder: Poisson arrivals, gamma first tokens and gaps, every stamp exact."""
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    arrival_ns = np.cumsum(rng.exponential(1e9 / RATE_PER_S, num_requests)).astype(np.int64)
    lengths = np.full(num_requests, TOKENS, np.int32)
    workload = {"arrival": "poisson", "rate_per_s": RATE_PER_S, "num_requests": num_requests}
    folder = RunFolder.create(out, "million")
    folder.write_plan(Plan.of(arrival_ns, lengths, lengths, {"workload": workload}))
    with pq.ParquetWriter(folder.path / "requests.parquet", arrow_schema(), compression="zstd") as writer:
        for start in range(0, num_requests, ROW_GROUP_ROWS):
            writer.write_table(make_block(start, arrival_ns[start : start + ROW_GROUP_ROWS], rng))
    folder.write_manifest({"status": "complete"})
    return folder.path


def make_block(start: int, scheduled_ns: Any, rng: np.random.Generator) -> Any:
    """Some rows, in the schema of requests.parquet."""
    import pyarrow as pa

    n = len(scheduled_ns)
    sent = scheduled_ns + rng.integers(10_000, 200_000, n)
    gaps = rng.gamma(4, 5e6, (n, TOKENS)).astype(np.int64)
    gaps[:, 0] = rng.gamma(2, 50e6, n)
    stamps = sent[:, None] + np.cumsum(gaps, axis=1)
    offsets = np.arange(n + 1, dtype=np.int32) * TOKENS
    values = {
        "index": np.arange(start, start + n),
        "scheduled_ns": scheduled_ns,
        "sent_ns": sent,
        "first_token_ns": stamps[:, 0],
        "first_answer_ns": stamps[:, 0],
        "last_token_ns": stamps[:, -1],
        "done_ns": stamps[:, -1] + 20_000,
        "chunk_ns": stamps,
        "chunk_lower_ns": stamps,
        "chunk_tokens": np.ones((n, TOKENS), np.int32),
        "recv_lag_ns": np.full(n, 20_000),
        **dict.fromkeys(("session", "turn", "worker"), np.full(n, -1)),
        **dict.fromkeys(("prompt_tokens_planned", "prompt_tokens"), np.full(n, TOKENS)),
        **dict.fromkeys(("output_tokens_planned", "output_tokens"), np.full(n, TOKENS)),
    }
    columns = []
    for field in arrow_schema():
        if pa.types.is_list(field.type):
            flat = pa.array(values[field.name].ravel(), field.type.value_type)
            columns.append(pa.ListArray.from_arrays(offsets, flat))
        elif field.name in values:
            columns.append(pa.array(values[field.name], field.type))
        else:
            word = WORDS.get(field.name)
            columns.append(pa.repeat(pa.scalar(word, field.type), n) if word else pa.nulls(n, field.type))
    return pa.table(columns, schema=arrow_schema())


@WithoutPandas()
def sum_up(path: Path) -> None:
    """Sum up a run and say what it took; the memory is that of this process."""
    begun, cpu = time.perf_counter(), time.process_time()
    counts = summarize(load(path))["counts"]
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(
        f"{counts['ok']:,} requests of {TOKENS} tokens: {seconds:.1f} s ({cpu:.1f} s of processor time), "
        f"{peak_mb:,.0f} MB at most"
    )


def main(arguments: list[str]) -> None:
    if arguments and not arguments[0].isdigit():
        sum_up(Path(arguments[0]))
        return
    with tempfile.TemporaryDirectory() as out:
        path = write_run(Path(out), int(arguments[0]) if arguments else REQUESTS)
        subprocess.run([sys.executable, "-m", "benchmarks.summary", path], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
