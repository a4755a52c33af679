"""A run, measured: rows read, window chosen, metrics computed. What judges or draws starts here."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from loadgen.measure.arrivals import OTHER_SOURCES, parse_renewal
from loadgen.measure.backlog import Backlog, judge_backlog
from loadgen.measure.columns import Bools, Columns, Floats, Window, read_columns
from loadgen.measure.events import Events, Gaps, read_events
from loadgen.measure.metrics import (
    MetricSummary,
    Sample,
    compute_samples,
    request_values,
    summarize_sample,
)
from loadgen.measure.options import MeasureOptions
from loadgen.measure.window import choose_window, find_flow, last_sign_ns, schedule_end_ns
from loadgen.stats.intervals import METHOD, MIN_TAIL_EVENTS, Pool, quantile_intervals
from loadgen.stats.quantile import quantile
from loadgen.store import Run

WITH_INTERVALS = (
    "ttft_s",
    "ttft_from_send_s",
    "itl_s",
    "event_gap_s",
    "tpot_s",
    "e2e_s",
    "e2e_from_send_s",
    "max_gap_s",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """counted: the rows that the metrics are over (ok, scheduled in the window); gaps: theirs.

    events: of every ok row, warm-up included. flow: the part of the window in which answers were completed as
    they came, None where nothing is left.

    is_open: requests due at an instant of the plan's own; the others waited for the answer before them in
    their session, so that the server has a say in when they come.
    values: one array per metric that has a value a request, over the counted rows in order of index.
    """

    columns: Columns
    workload: dict[str, Any]
    window: Window
    flow: Window | None
    counted: Bools
    is_open: Bools
    events: Events
    gaps: Gaps
    values: dict[str, Floats]
    samples: dict[str, Sample]

    def metrics(self) -> dict[str, MetricSummary]:
        """Sum up every metric, the latencies with intervals where they are deserved."""
        found: dict[str, MetricSummary] = {}
        for name, sample in self.samples.items():
            if name == "event_gap_s" and self.gaps.tokens is None:
                found[name] = found["itl_s"]  # one token an event: the same values, and many of them
                continue
            found[name] = summarize_sample(name, sample)
            if name in WITH_INTERVALS and sample.num_values:
                found[name] = self._with_intervals(name, found[name])
        return found

    def _with_intervals(self, name: str, summary: MetricSummary) -> MetricSummary:
        pool = self.pool(name)
        assert pool is not None
        p50, p99 = quantile_intervals(pool, (0.5, 0.99)).values()
        method = METHOD
        if p99.bounds is None:
            method += (
                f"; p99 withheld: {p99.num_tail_events:.1f} independent tail events of {MIN_TAIL_EVENTS}"
            )
        return replace(summary, ci={"p50": p50.bounds, "p99": p99.bounds}, ci_method=method, n_eff=p99.n_eff)

    def pool(self, name: str) -> Pool | None:
        """A metric's values by request, in order of arrival; None where they do not belong to requests."""
        if name in ("itl_s", "event_gap_s"):
            return self._gap_pool(name)
        values = self.values.get(name)
        return None if values is None else Pool.of_requests(values[~np.isnan(values)])

    def _gap_pool(self, name: str) -> Pool:
        gaps = self.gaps
        if name == "event_gap_s" or gaps.tokens is None:
            return Pool(values=gaps.ns, offsets=gaps.offsets, per_unit=1e9)
        known = gaps.tokens > 0
        kept = np.concatenate([[0], np.cumsum(known)])[gaps.offsets]
        weights = gaps.tokens[known].astype(np.int64)
        return Pool(values=self.samples["itl_s"].values, offsets=kept, weights=weights, per_unit=1e9)

    def sample_for(self, metric: str, share: float | None) -> Sample:
        """The values that an objective on a metric is held against: for a percentile of TTFT or E2E, with the
        failures as infinite, for a request that failed meets nothing. share: the percentile, None for others.
        """
        with_failures = metric.removesuffix("_s") + "_with_failures_s"
        return self.samples[with_failures if share is not None and with_failures in self.samples else metric]

    @property
    def num_scheduled(self) -> int:
        """Requests scheduled inside the window, failures included."""
        return int(self.window.holds(self.columns.scheduled_ns).sum())

    @property
    def rated_s(self) -> float:
        """The seconds that rates are per; 0 where nothing tells a rate: no window, or a single request."""
        return self.window.length_s if len(self.columns) > 1 else 0.0

    def backlog(self, *, is_judged: bool) -> Backlog | None:
        """Whether the backlog of an open loop grows; None where nothing tells: another loop, a run cut short,
        arrivals of one instant.
        """
        open_rows = self.columns.only(self.is_open)
        if not is_judged or len(open_rows) < 2 or np.ptp(open_rows.scheduled_ns) == 0:
            return None
        name, _ = parse_renewal(str(self.workload.get("arrival") or ""))
        is_drawn = name is not None and not any(self.workload.get(key) for key in OTHER_SOURCES)
        return judge_backlog(
            open_rows, self.window.end_ns / 1e9, self.workload.get("rate_per_s") if is_drawn else None
        )

    def uncertainty_p99_s(self) -> float | None:
        """How much earlier than its stamp an event can have been, at p99 of events; None without events."""
        num_events, uncertain = self.events.num_events, self.events.uncertain_ns
        if num_events == 0:
            return None
        share_exact = 1 - len(uncertain) / num_events
        if share_exact >= 0.99:
            return 0.0
        return quantile(uncertain, (0.99 - share_exact) / (1 - share_exact)) / 1e9


def measure(run: Run, options: MeasureOptions) -> Measured:
    """Read the rows of a run and compute its metrics' values."""
    columns = read_columns(run.rows)
    workload = described_workload(run)
    is_open = np.asarray(run.plan_rows().column("think_ns").to_numpy() < 0)
    end_ns = schedule_end_ns(columns, workload, is_open, is_closed=options.concurrency is not None)
    if run.manifest["status"] != "complete":
        end_ns = min(end_ns, last_sign_ns(columns, end_ns))
    window = choose_window(columns, options.warmup_s, end_ns)
    counted = np.asarray(columns.is_ok & window.holds(columns.scheduled_ns))
    flow = find_flow(columns, window, is_closed=not options.is_open_loop)
    events = read_events(run.rows, columns, columns.is_ok, flow or Window(start_ns=0.0, end_ns=0.0))
    gaps = events.gaps.of(counted[columns.is_ok])
    values = request_values(columns, counted, events.max_silence_s[counted[columns.is_ok]])
    return Measured(
        columns=columns,
        workload=workload,
        window=window,
        flow=flow,
        counted=counted,
        is_open=is_open,
        events=events,
        gaps=gaps,
        values=values,
        samples=compute_samples(values, gaps, columns, window),
    )


def described_workload(run: Run) -> dict[str, Any]:
    """What was asked for, defaults filled in; empty for a plan that no workload made."""
    from workloads.spec import Workload

    stated = run.plan_source.get("workload")
    if not stated:
        return {}
    defaults: dict[str, Any] = {item.name: item.default for item in fields(Workload)}
    return {**defaults, **stated}
