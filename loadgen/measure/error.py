"""Each figure's own error: where the client's stamps and late sends let it lie, and what that decides.

A figure is *sure* where it is known to 1 ms or 5 % of it. A measurement is spoilt by its client only where a
figure that was asked for is not sure: those of the headline, and those of an objective or an assertion whose
limit lies within the range. Late sends spoil what runs from the scheduled instant, late reads what runs from
one stamp to another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loadgen.measure.measured import Measured
from loadgen.measure.metrics import MetricSummary, is_sure
from loadgen.measure.options import MeasureOptions
from loadgen.measure.slo import Objective, met_by_request, statistic_of
from loadgen.measure.verdict import Notice
from loadgen.units import format_seconds

SURE_FRACTION = 0.01  # of the requests that meet every limit
FROM_SEND = {
    "ttft_s": "ttft_from_send_s",
    "first_answer_s": "ttft_from_send_s",
    "e2e_s": "e2e_from_send_s",
    "normalized_latency_s": "e2e_from_send_s",
}
LIMIT = "limit 1 ms or 5 % of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One statistic of one metric, with the range that the client's error leaves it.

    value: None without values, or where it falls on a failure; range: None for what has no error.
    """

    label: str
    value: float | None
    range: tuple[float, float] | None = None
    is_spoilt_by_sends: bool = False
    is_spoilt_by_reads: bool = False

    @property
    def is_sure(self) -> bool:
        return self.range is None or is_sure(self.value, self.range)

    def meets(self, limit: float) -> bool | None:
        """Whether it lies at or below a limit; None where it is unknown, or not sure enough to say."""
        if self.value is None:
            return None
        low, high = self.range or (self.value, self.value)
        if high <= limit or low > limit:
            return high <= limit
        return self.value <= limit if self.is_sure else None

    def words(self) -> str:
        """`ttft.p99 is between 3 and 41 ms`."""
        assert self.range is not None
        low, high = (
            f"{100 * end:.3g} %" if self.label == "attained" else format_seconds(end) for end in self.range
        )
        return f"{self.label} is between {low} and {high}"


def figure_of(measured: Measured, metric: str, statistic: str) -> Figure:
    """Any statistic of any metric; of latencies of an answer with failures as infinite."""
    label = Objective(metric=metric, statistic=statistic, limit=0.0).label
    sample = measured.sample_for(metric)
    value = statistic_of(sample, statistic)
    low, high = (statistic_of(end, statistic) for end in sample.extremes())
    if sample.ranges is None or value is None or low is None or high is None or statistic == "std":
        return Figure(label=label, value=value)
    found = Figure(label=label, value=value, range=(min(low, value), max(high, value)))
    if found.is_sure:
        return found
    base = metric.replace("_with_failures", "")
    if base not in FROM_SEND:
        return replace(found, is_spoilt_by_reads=True)
    from_send = figure_of(measured, FROM_SEND[base], statistic)
    on_time = value if from_send.value is None else min(from_send.value, value)
    late, slow = not is_sure(value, (on_time, value)), not from_send.is_sure
    return replace(found, is_spoilt_by_sends=late or not slow, is_spoilt_by_reads=slow or not late)


def attained_fraction(measured: Measured, objectives: Sequence[Objective]) -> Figure:
    """The share of the requests scheduled in the window that meet every limit on a request."""
    num = measured.num_scheduled
    ends = [met_by_request(objectives, values).sum() / num for values in measured.extreme_values()]
    value = float(met_by_request(objectives, measured.values).sum()) / num
    lag_s = statistic_of(measured.samples["send_lag_s"], "p99") or 0.0
    is_late = lag_s > (measured.uncertainty_p99_s() or 0.0)
    return Figure(
        label="attained",
        value=value,
        range=(float(min(ends)), float(max(ends))),
        is_spoilt_by_sends=is_late,
        is_spoilt_by_reads=not is_late,
    )


def unsure_figures(
    measured: Measured, metrics: Mapping[str, MetricSummary], options: MeasureOptions
) -> list[Figure]:
    """The figures asked for that are not sure: of objectives, of assertions, and of the headline, which shows
    the median of TTFT and ITL and the highest percentile that each carries.
    """
    found = {}
    for metric in ("ttft_s", "itl_s"):
        for statistic in {"p50", metrics[metric].carries or "p50"}:
            figure = figure_of(measured, metric, statistic)
            found[figure.label] = None if figure.is_sure else figure
    for objective in (*options.objectives, *options.named):
        if objective.statistic is not None:
            figure = figure_of(measured, objective.metric, objective.statistic)
            is_open = not figure.is_sure and figure.meets(objective.limit) is None
            found[figure.label] = found.get(figure.label) or (figure if is_open else None)
    per_request = [objective for objective in options.objectives if objective.statistic is None]
    if per_request and measured.num_scheduled:
        attained = attained_fraction(measured, per_request)
        low, high = attained.range or (0.0, 0.0)
        if high - low > SURE_FRACTION:
            found["attained"] = attained
    return [figure for figure in found.values() if figure is not None]


def client_late(
    unsure: Sequence[Figure],
    send_lag_p99_s: float | None,
    *,
    limit_s: float | None = None,
    advice: str = "",
) -> Notice | None:
    """Requests left late, and a figure that counts from the scheduled instant is not sure for it.

    limit_s: bounds the p99 of the send lag instead.
    """
    if send_lag_p99_s is None:
        return None
    lag = f"requests left late (send lag p99 {format_seconds(send_lag_p99_s)}"
    if limit_s is not None:
        if send_lag_p99_s <= limit_s:
            return None
        return Notice(code="client_late", message=f"{lag}, limit {format_seconds(limit_s)}).", advice=advice)
    spoilt = [figure for figure in unsure if figure.is_spoilt_by_sends]
    if not spoilt:
        return None
    return Notice(code="client_late", message=f"{lag}): {_list(spoilt)}, {LIMIT}.", advice=advice)


def client_slow(
    unsure: Sequence[Figure], uncertainty_p99_s: float | None, *, advice: str = ""
) -> Notice | None:
    """Events were read late and several at once, or requests held back, and a figure is not sure for it."""
    spoilt = [figure for figure in unsure if figure.is_spoilt_by_reads]
    if not spoilt:
        return None
    stamps = (
        "" if uncertainty_p99_s is None else f" (stamps unsure by {format_seconds(uncertainty_p99_s)} at p99)"
    )
    return Notice(
        code="client_slow",
        message=f"the client was slow to read or to write{stamps}: {_list(spoilt)}, {LIMIT}.",
        advice=advice,
    )


def sent_together(measured: Measured) -> Notice | None:
    """The server writes so many tokens at once that its gaps between tokens are nobody's."""
    if not measured.withheld:
        return None
    num, share = len(measured.gaps.ns), len(measured.gaps.bundled.at)
    seen = (
        f"{100 * share / num:.0f} % of the gaps between token events lie between events that came together"
        if num
        else "every answer came in one read"
    )
    names = ", ".join(name.removesuffix("_s") for name in measured.withheld)
    return Notice(
        code="sent_together",
        message=f"{seen}: the server, or what is before it, holds tokens back; not told: {names}.",
        advice="Look for a proxy that buffers responses, or a server short of processors; "
        "max_gap has the silences.",
    )


def _list(figures: Sequence[Figure]) -> str:
    return ", ".join(figure.words() for figure in figures)
