"""What the engine did and when: one row a step, one row a finished request.

Both logs are rings of fixed size, so a server that runs for days keeps its latest history and no more. Adding
a row costs about a microsecond; turning rows into a table happens outside the step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from reference_engine.account import BUCKETS, Account, Price, split_ns
from reference_engine.cost import PS_PER_NS, CostModel, Weights
from reference_engine.sequence import Sequence, Span
from reference_engine.step import Constraint, Load

if TYPE_CHECKING:
    import pyarrow as pa

STEPS_SCHEMA_VERSION = 1
STEPS_FILE = "engine_steps.parquet"
REQUESTS_FILE = "engine_requests.parquet"

STEP_COLUMNS = (
    "step",
    "start_ns",
    "end_ns",
    "decode_seqs",
    "prefill_tokens",
    "kv_used",
    "kv_cached",
    "kv_free",
    "waiting",
    "running",
    "preempted",
    "decode_context",
    "prefill_seqs",
    "prefill_pairs",
    "swap_blocks",
    "after_idle",
)
NUM_VALUES = len(STEP_COLUMNS) + 1  # of a row of a log: the code of what blocked comes last
BLOCKED: dict[Constraint | None, int] = {None: 0} | {c: code for code, c in enumerate(Constraint, 1)}
BUCKET_COLUMNS = (*(f"{name}_ns" for name in BUCKETS), *(f"first_{name}_ns" for name in BUCKETS))


class RequestRow(NamedTuple):
    """A finished request; instants are CLOCK_MONOTONIC ns, None where it never came to that."""

    server_request_id: str
    arrived_ns: int
    enqueued_ns: int
    first_scheduled_ns: int | None
    first_token_ns: int | None
    finished_ns: int | None
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    recomputed_tokens: int
    finish_reason: str
    spans: list[Span]

    @classmethod
    def of(cls, sequence: Sequence) -> RequestRow:
        assert sequence.finish_reason is not None
        return cls(
            sequence.request_id,
            sequence.arrived_ns,
            sequence.enqueued_ns,
            sequence.first_scheduled_ns,
            sequence.first_token_ns,
            sequence.finished_ns,
            sequence.num_prompt,
            sequence.num_emitted,
            sequence.num_preemptions,
            sequence.num_recomputed,
            str(sequence.finish_reason),
            sequence.spans,
        )


class StepLog:
    """kv_* count blocks: held by a request, kept for reuse, free."""

    def __init__(self, capacity: int = 1 << 20, num_requests: int = 1 << 17) -> None:
        self._rows: NDArray[np.int64] = np.empty((capacity, NUM_VALUES), np.int64)
        self._capacity = capacity
        self.num_steps = 0
        self.requests: deque[RequestRow] = deque(maxlen=num_requests)
        self.accounts: deque[Account | None] = deque(maxlen=num_requests)

    def add(self, *values: int) -> None:
        """Append a step: the columns after `step`, in order, and the code of what blocked."""
        self._rows[self.num_steps % self._capacity] = (self.num_steps, *values)
        self.num_steps += 1

    def steps(self) -> NDArray[np.int64]:
        """Return the steps kept, oldest first: int64 [steps, columns and the code of what blocked]."""
        if self.num_steps <= self._capacity:
            return self._rows[: self.num_steps]
        return np.roll(self._rows, -(self.num_steps % self._capacity), axis=0)


def steps_table(
    rows: NDArray[np.int64], metadata: Mapping[str, str], cost: CostModel | None = None
) -> pa.Table:
    """Return the steps as an Arrow table: STEP_COLUMNS and `blocked`, what kept the first in line out.

    With a cost model, `decode_work_ns` and `work_ns` say what a step should have taken: for its decodes
    alone, and in all.
    """
    import pyarrow as pa

    columns: dict[str, Any] = {name: rows[:, i] for i, name in enumerate(STEP_COLUMNS)}
    codes = pa.array(rows[:, -1] - 1, pa.int8(), mask=rows[:, -1] == 0)
    if cost is not None:
        none = np.zeros(len(rows), np.int64)
        decodes = {name: columns[name] if name.startswith("decode") else none for name in Load._fields}
        columns["decode_work_ns"] = cost.costs_ps(decodes) // PS_PER_NS
        columns["work_ns"] = cost.costs_ps(columns) // PS_PER_NS
    columns["blocked"] = pa.DictionaryArray.from_arrays(codes, [str(c) for c in Constraint])
    facts = {"schema_version": str(STEPS_SCHEMA_VERSION), **metadata}
    return pa.table(columns).replace_schema_metadata(facts)


def requests_table(
    rows: list[RequestRow], metadata: Mapping[str, str], buckets: Seq[list[int] | None] | None = None
) -> pa.Table:
    """Return finished requests as an Arrow table, columns as in RequestRow and BUCKET_COLUMNS.

    buckets: nanoseconds of each request by bucket; None where they are not known.
    """
    import pyarrow as pa

    numbers = [(name, pa.int64()) for name in ("first_step", "last_step", "tokens")]
    kinds: dict[str, Any] = {
        "server_request_id": pa.string(),
        "finish_reason": pa.string(),
        "spans": pa.list_(pa.struct([("kind", pa.string()), *numbers])),
    }
    fields = [(name, kinds.get(name, pa.int64())) for name in (*RequestRow._fields, *BUCKET_COLUMNS)]
    unknown = [None] * len(BUCKET_COLUMNS)
    values = [
        (*row[:-1], [*map(astuple, row.spans)], *(split or unknown))
        for row, split in zip(rows, buckets or [None] * len(rows), strict=True)
    ]
    columns = list(zip(*values, strict=True)) or [()] * len(fields)
    arrays = [pa.array(c, kind) for c, (_, kind) in zip(columns, fields, strict=True)]
    schema = pa.schema(fields, metadata={"schema_version": str(STEPS_SCHEMA_VERSION), **metadata})
    return pa.Table.from_arrays(arrays, schema=schema)


def split_accounts(accounts: Seq[Account | None], price: Price, ticks_per_ns: int) -> list[list[int] | None]:
    """Return nanoseconds by BUCKET_COLUMNS of each request; None for one that was cancelled."""
    kept = [account for account in accounts if account is not None]
    whole = split_ns([account.spent() for account in kept], price, ticks_per_ns)
    to_first = split_ns([account.first for account in kept if account.first], price, ticks_per_ns)
    rows = iter(np.hstack([whole, to_first]).tolist())
    return [None if account is None else next(rows) for account in accounts]


def write_logs(
    log: StepLog, folder: Path, metadata: Mapping[str, str], weights: Weights | None = None
) -> None:
    """Write both logs as Parquet into `folder`, which is made where it is missing.

    weights: of the features that the accounts are kept in; without, no time is attributed.
    """
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    cost, buckets = None, None
    if weights is not None:
        cost, coefficients = CostModel(work=weights), weights.as_vector()
        buckets = split_accounts(log.accounts, lambda works: works @ coefficients // PS_PER_NS, 1)
    pq.write_table(steps_table(log.steps(), metadata, cost), folder / STEPS_FILE)
    pq.write_table(requests_table(list(log.requests), metadata, buckets), folder / REQUESTS_FILE)
