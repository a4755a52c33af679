"""The reference engine's logs, brought into the run's time: offsets from the start of the run.

The engine stamps with CLOCK_MONOTONIC, which one machine's processes share; a run folder holds offsets. What
the engine did before the run started (preflight) has negative offsets and stays.
"""

from __future__ import annotations

from pathlib import Path

from loadgen.store import replacing

LOG_FILES = ("engine_steps.parquet", "engine_requests.parquet")
INSTANTS = frozenset(
    ("start_ns", "end_ns", "arrived_ns", "enqueued_ns", "first_scheduled_ns", "first_token_ns", "finished_ns")
)


def rebase_engine_logs(folder: Path, epoch_ns: int) -> None:
    """Subtract `epoch_ns` from every instant in the engine logs, once; without logs do nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    for path in (folder / name for name in LOG_FILES):
        if not path.exists():
            continue
        table = pq.read_table(path)
        metadata = dict(table.schema.metadata or {})
        if b"epoch_ns" in metadata:
            continue
        for position, name in enumerate(table.column_names):
            if name in INSTANTS:
                table = table.set_column(
                    position, name, pc.subtract(table[name], pa.scalar(epoch_ns, pa.int64()))
                )
        rebased = table.replace_schema_metadata({**metadata, b"epoch_ns": str(epoch_ns)})
        with replacing(path) as temporary:
            pq.write_table(rebased, temporary)
