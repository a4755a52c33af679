"""Drive a target on a schedule, record what it did, judge the record. `load(folder)` opens a run.

Importing this package imports neither pandas nor pyarrow; `load` does when rows are first read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgen.store import Run, load

__all__ = ["Run", "load"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from loadgen import store

        return getattr(store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
