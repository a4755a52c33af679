"""The rows of a run as numpy columns: one value a request.

Decides nothing; formulas live in `metrics`, the events of a request in `events`. Instants are float64
nanoseconds from the start of the run (exact up to 104 days), NaN where null.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadgen.records import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

    from loadgen.store import RequestRows

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

OUTCOMES = tuple(Outcome)
INSTANTS = (
    "scheduled_ns",
    "sent_ns",
    "connected_ns",
    "first_token_ns",
    "first_answer_ns",
    "last_token_ns",
    "done_ns",
)
LAGS = ("recv_lag_ns", "write_lag_ns")
COUNTS = ("prompt_tokens_planned", "output_tokens_planned", "prompt_tokens", "output_tokens", "cached_tokens")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """Requests scheduled in [start_ns, end_ns) count; `method` says how the start was chosen."""

    start_ns: float
    end_ns: float
    method: str = "all"
    is_steady: bool | None = None

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def holds(self, instants_ns: Floats) -> Bools:
        """Which instants lie inside; NaN never does."""
        return np.asarray((instants_ns >= self.start_ns) & (instants_ns < self.end_ns))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """One value per scheduled request, in order of index (which is the order of arrival)."""

    scheduled_ns: Floats
    sent_ns: Floats
    connected_ns: Floats
    first_token_ns: Floats
    first_answer_ns: Floats
    last_token_ns: Floats
    done_ns: Floats
    recv_lag_ns: Floats
    write_lag_ns: Floats
    prompt_tokens_planned: Floats
    output_tokens_planned: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    cached_tokens: Floats
    outcome_code: NDArray[np.int8]
    is_kernel_stamped: Bools

    def __len__(self) -> int:
        return len(self.scheduled_ns)

    @property
    def is_ok(self) -> Bools:
        return np.asarray(self.outcome_code == OUTCOMES.index(Outcome.OK))

    @property
    def ended_ns(self) -> Floats:
        """When a sent request was over: its last byte, else its last token, else (nothing known) when it was
        sent.
        """
        ended = np.where(np.isnan(self.done_ns), self.last_token_ns, self.done_ns)
        return np.where(np.isnan(ended), self.sent_ns, ended)

    def only(self, rows: Bools) -> Columns:
        """The columns of these rows alone."""
        return Columns(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})

    def count_outcomes(self) -> dict[str, int]:
        """How many rows ended in each way, ways that occurred only."""
        counts = np.bincount(self.outcome_code, minlength=len(OUTCOMES))
        return {str(outcome): int(n) for outcome, n in zip(OUTCOMES, counts, strict=True) if n}


def read_columns(rows: RequestRows) -> Columns:
    """Read every column that holds one value a request."""
    table = rows.read((*INSTANTS, *LAGS, *COUNTS, "outcome", "stamp_source"))
    numbers = {name: _floats(table.column(name)) for name in (*INSTANTS, *LAGS, *COUNTS)}
    return Columns(
        **numbers,
        outcome_code=_codes(table.column("outcome")),
        is_kernel_stamped=np.asarray(table.column("stamp_source").to_numpy() == "kernel", np.bool_),
    )


def _floats(column: pa.ChunkedArray) -> Floats:
    import pyarrow as pa

    return np.array(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)


def _codes(column: pa.ChunkedArray) -> NDArray[np.int8]:
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = pc.index_in(column, pa.array([str(outcome) for outcome in OUTCOMES]))
    return np.asarray(codes.to_numpy(), np.int8)
