"""A run, measured: rows read, window chosen, metrics computed. What judges or draws starts here."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from loadgen.measure.arrivals import OTHER_SOURCES, parse_renewal
from loadgen.measure.backlog import Backlog, judge_backlog
from loadgen.measure.columns import Bools, Columns, Floats, Window, read_columns
from loadgen.measure.events import Events, read_events
from loadgen.measure.gaps import Gaps, Ranges
from loadgen.measure.metrics import (
    PERCENTILES,
    MetricSummary,
    Sample,
    compute_samples,
    is_sure,
    per_token,
    request_ranges,
    request_values,
    summarize_sample,
    token_gaps,
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
OF_AN_ANSWER = (
    "ttft_s",
    "ttft_from_send_s",
    "first_answer_s",
    "e2e_s",
    "e2e_from_send_s",
    "normalized_latency_s",
)
CARRIED = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """counted: the rows that the metrics are over (ok, scheduled in the window); gaps: theirs.

    events: of every ok row, warm-up included. flow: the part of the window in which answers were completed as
    they came, None where nothing is left.

    is_open: requests due at an instant of the plan's own; the others waited for the answer before them in
    their session, so that the server has a say in when they come.
    values: one array per metric that has a value a request, over the counted rows in order of index.
    ranges: where those can lie that are times of the server, by metric: lowest and highest.
    withheld: metrics without figures, for the server wrote so many tokens together that even the median
    would be of its making.
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
    ranges: dict[str, tuple[Floats, Floats]]
    samples: dict[str, Sample]
    withheld: tuple[str, ...] = ()

    def metrics(self) -> dict[str, MetricSummary]:
        """Sum up every metric, the latencies with intervals where they are deserved."""
        found: dict[str, MetricSummary] = {}
        for name, sample in self.samples.items():
            if name == "event_gap_s" and self.gaps.tokens is None:
                found[name] = found["itl_s"]  # one token an event: the same values, and many of them
                continue
            found[name] = summarize_sample(name, sample)
            if name in self.withheld:
                found[name] = replace(found[name], withheld="sent_together")
            if name in WITH_INTERVALS and sample.num_values:
                found[name] = self._with_intervals(name, found[name])
        return found

    def _with_intervals(self, name: str, summary: MetricSummary) -> MetricSummary:
        pool = self.pool(name)
        assert pool is not None
        shares = [PERCENTILES[label] for label in CARRIED]
        found = dict(zip(CARRIED, quantile_intervals(pool, shares).values(), strict=True))
        p50, p99 = found["p50"], found["p99"]
        carried = [label for label, one in found.items() if one.num_tail_events >= MIN_TAIL_EVENTS]
        method = METHOD
        if p99.bounds is None:
            method += (
                f"; p99 withheld: {p99.num_tail_events:.1f} independent tail events of {MIN_TAIL_EVENTS}"
            )
        return replace(
            summary,
            ci={"p50": p50.bounds, "p99": p99.bounds},
            ci_method=method,
            n_eff=p99.n_eff,
            carries=carried[-1] if carried else None,
        )

    def pool(self, name: str) -> Pool | None:
        """A metric's values by request, in order of arrival; None where they do not belong to requests."""
        if name in self.withheld:
            return None
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

    def sample_for(self, metric: str) -> Sample:
        """The values that an objective on a metric is held against: of latencies of an answer with failures
        as infinite, for a request that failed meets nothing.
        """
        sample = self.samples[metric]
        num_failed = self.num_scheduled - int(self.counted.sum())
        return sample.with_failures(num_failed) if metric in OF_AN_ANSWER else sample

    def extreme_values(self) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """`values`, all as low and all as high as they can be."""
        told = {name: ends for name, ends in self.ranges.items() if name not in self.withheld}
        low, high = ({name: ends[at] for name, ends in told.items()} for at in (0, 1))
        return {**self.values, **low}, {**self.values, **high}

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
    is_counted = counted[columns.is_ok]
    gaps = events.gaps.of(is_counted)
    by_request = {name: values[is_counted] for name, values in events.by_request.items()}
    values = request_values(columns, counted, by_request)
    ranges = request_ranges(columns, counted, by_request, is_lag_ours=options.max_in_flight is None)
    samples = compute_samples(values, ranges, gaps, columns, window)
    withheld = find_withheld(values, samples, gaps, by_request)
    for name in withheld:
        samples[name] = Sample(values=np.zeros(0))
        if name in values:
            values[name] = np.full(len(values[name]), np.nan)
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
        ranges=ranges,
        samples=samples,
        withheld=withheld,
    )


def find_withheld(
    values: dict[str, Floats], samples: dict[str, Sample], gaps: Gaps, by_request: dict[str, Floats]
) -> tuple[str, ...]:
    """The metrics of gaps whose median would be another, were tokens that the server wrote together spread
    over the silence before them in another way.
    """
    tokens, tpot = values["output_tokens_per_request"], values["tpot_s"]
    several = (tokens > 1) & ~np.isnan(by_request["first_lower_ns"])
    if not several.any():
        return ()
    if not len(gaps.ns):  # every answer came in one read
        return ("itl_s", "event_gap_s", "tpot_s")
    found = []
    if len(gaps.bundled.at):
        of_tokens = token_gaps(gaps, gaps.bundled)
        of_events = replace(samples["event_gap_s"], ranges=gaps.bundled)
        found = [
            name for name, sample in (("itl_s", of_tokens), ("event_gap_s", of_events)) if _moves(sample)
        ]
    held_ns = by_request["last_held_ns"] - by_request["last_lower_ns"]  # 0 or less
    known = ~np.isnan(tpot)
    low = np.maximum(tpot + per_token(held_ns, tokens, by_request), 0)[known]
    at = np.flatnonzero(low < tpot[known])
    spread = Sample(values=tpot[known], ranges=Ranges(at, low[at], tpot[known][at]))
    if not known.any() or _moves(spread):
        found.append("tpot_s")
    return tuple(found)


def _moves(sample: Sample) -> bool:
    """Whether the median of a sample is unsure within its ranges."""
    if not sample.num_values:
        return False
    value, low, high = (one.quantiles([0.5])[0] for one in (sample, *sample.extremes()))
    return not is_sure(value, (low, high))


def described_workload(run: Run) -> dict[str, Any]:
    """What was asked for, defaults filled in; empty for a plan that no workload made."""
    from workloads.spec import Workload

    stated = run.plan_source.get("workload")
    if not stated:
        return {}
    defaults: dict[str, Any] = {item.name: item.default for item in fields(Workload)}
    return {**defaults, **stated}
