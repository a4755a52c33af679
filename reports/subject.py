"""What a report is about: a run, its summary and the values behind it, read once and passed around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgen.measure.measured import Measured
    from loadgen.measure.series import SlowRequest
    from loadgen.store import Run


NUM_SLOWEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A run with everything that a report needs of it."""

    run: Run
    summary: dict[str, Any]
    measured: Measured
    slowest: list[SlowRequest]
    slowest_causes: list[dict[str, float]]

    @property
    def end_s(self) -> float:
        """When the last request was due or ended: where the time axis of every figure ends."""
        import numpy as np

        columns = self.measured.columns
        known = np.concatenate([columns.scheduled_ns, columns.ended_ns, [1e9]])
        return float(np.nanmax(known)) / 1e9

    @classmethod
    def of(cls, run: Run) -> Subject:
        """Measure a run; the summary of one that broke off before it was written is computed now."""
        from loadgen.measure.measured import measure
        from loadgen.measure.options import MeasureOptions
        from loadgen.measure.series import slowest_requests
        from loadgen.measure.summary import summarize
        from loadgen.measure.waterfall import first_token_causes

        measured = measure(run, MeasureOptions.of(run.manifest))
        slowest = [slow for slow in slowest_requests(measured, NUM_SLOWEST) if slow.ttft_s is not None]
        return cls(
            run=run,
            summary=run.summary or summarize(run),
            measured=measured,
            slowest=slowest,
            slowest_causes=first_token_causes(run, measured, slowest),
        )
