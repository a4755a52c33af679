"""A run's rows as CSV, one line a scheduled request: for spreadsheets, and for whoever has no Parquet reader.

The stamps of the tokens (lists) are left to requests.parquet. Null is an empty cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.store import Run


def render_csv(run: Run) -> str:
    """Return the rows of a run with a header line; columns are named as in requests.parquet."""
    scalars = [name for name in run.requests.columns if not name.startswith("chunk_")]
    return str(run.requests[scalars].to_csv(index=False, lineterminator="\n"))
