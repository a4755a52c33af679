"""What a client got wrong: the rows of a run held against the golden server's log of its own writes.

Each write happened between two readings of the clock, so that a stamp inside them has no error that could be
shown. Gaps and TTFT are compared as any tool reports them, with no such allowance. Only whole answers that
both sides know are judged; how punctual the server was stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadgen.golden.process import GoldenLog, Int64

if TYPE_CHECKING:
    import pyarrow as pa

JUDGED_COLUMNS = ("index", "outcome", "sent_ns", "first_token_ns", "chunk_ns", "chunk_lower_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientErrors:
    """Signed errors, client minus server, ns.

    ttft_ns: per request, of the TTFT from the send; it holds the way there, from the client's first act to
    the kernel of the server. gap_ns: per gap between token events. stamp_ns: per token event, how far its
    stamp lies outside the write; is_alone: whether the client says that the stamp is exact.
    """

    ttft_ns: Int64
    gap_ns: Int64
    stamp_ns: Int64
    is_alone: NDArray[np.bool_]
    lateness_ns: Int64

    @property
    def num_requests(self) -> int:
        return len(self.ttft_ns)

    @property
    def alone_fraction(self) -> float:
        """The share of events that were alone in their read."""
        return float(self.is_alone.mean()) if len(self.is_alone) else 0.0


def judge(rows: pa.Table, log: GoldenLog, *, run_id: str, epoch_ns: int) -> ClientErrors:
    """Compare rows (JUDGED_COLUMNS) with the log. epoch_ns: the run's start on CLOCK_MONOTONIC."""
    import pyarrow.compute as pc

    rows = rows.filter(pc.equal(rows["outcome"], "ok"))
    log_rows = np.array([log.row_of.get(f"{run_id}-{i}", -1) for i in rows["index"].to_pylist()], np.int64)
    num_events = rows["chunk_ns"].combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    is_known = (log_rows >= 0) & (num_events > 0)
    is_known[is_known] = np.diff(log.offsets)[log_rows[is_known]] == num_events[is_known]
    rows, log_rows, num_events = rows.filter(is_known), log_rows[is_known], num_events[is_known]

    stamps = _flat(rows["chunk_ns"]) + epoch_ns
    starts = np.cumsum(num_events) - num_events
    events = np.repeat(log.offsets[:-1][log_rows] - starts, num_events) + np.arange(len(stamps))
    before, after = log.before_ns[events], log.after_ns[events]
    is_first = np.zeros(len(stamps), np.bool_)
    is_first[starts] = True
    server_ttft = before[starts] - log.arrived_ns[log_rows]
    client_ttft = (rows["first_token_ns"].to_numpy() - rows["sent_ns"].to_numpy()).astype(np.int64)
    return ClientErrors(
        ttft_ns=client_ttft - server_ttft,
        gap_ns=(np.diff(stamps) - np.diff(before))[~is_first[1:]],
        stamp_ns=stamps - np.clip(stamps, before, after),
        is_alone=_flat(rows["chunk_lower_ns"]) + epoch_ns == stamps,
        lateness_ns=log.lateness_ns()[events],
    )


def quantile_ms(errors_ns: Int64, q: float) -> float | None:
    """The q-quantile of the size of the errors, in ms; None where there are none."""
    return float(np.quantile(np.abs(errors_ns), q)) / 1e6 if len(errors_ns) else None


def _flat(column: pa.ChunkedArray) -> Int64:
    values: Int64 = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values
