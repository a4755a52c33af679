"""What a report is about: a run, its summary and the values behind it, read once and passed around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgen.measure.measured import Measured
    from loadgen.store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A run with everything that a report needs of it."""

    run: Run
    summary: dict[str, Any]
    measured: Measured

    @classmethod
    def of(cls, run: Run) -> Subject:
        """Measure a run; the summary of one that broke off before it was written is computed now."""
        from loadgen.measure.measured import measure
        from loadgen.measure.options import MeasureOptions
        from loadgen.measure.summary import summarize

        measured = measure(run, MeasureOptions.of(run.manifest))
        return cls(run=run, summary=run.summary or summarize(run), measured=measured)
