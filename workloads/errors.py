"""What can be wrong with a workload: one error, whose text is one line (what, where, what to do)."""

from __future__ import annotations

from collections.abc import Iterable


class WorkloadError(ValueError):
    """A workload that cannot be planned; `str()` is one clear line for the user."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> WorkloadError:
    return WorkloadError(f"unknown {kind} {name!r}; known: {', '.join(sorted(known))}")
