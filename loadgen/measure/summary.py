"""summary.json: what a run says, computed and judged from its folder alone. Schema: docs/run-folder.md.

Strict JSON: what is undefined is null. The same folder gives the same summary, whenever it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from loadgen.measure import error, remarks
from loadgen.measure import verdict as checks
from loadgen.measure.arrivals import Arrivals, judge_arrivals
from loadgen.measure.attribution import attribute
from loadgen.measure.backlog import Backlog
from loadgen.measure.columns import Floats, Window
from loadgen.measure.dialects import read_log, speak
from loadgen.measure.engine import describe_engine
from loadgen.measure.fluidity import deadlines_of, describe_fluidity
from loadgen.measure.groups import describe_groups
from loadgen.measure.inference import infer
from loadgen.measure.measured import Measured, measure
from loadgen.measure.metrics import MetricSummary, in_flight_steps
from loadgen.measure.options import MeasureOptions, RunFacts
from loadgen.measure.remarks import section_means
from loadgen.measure.server import describe_server
from loadgen.measure.slo import Objective, met_by_request
from loadgen.measure.starved import advice_for_starved
from loadgen.measure.verdict import Notice, Verdict
from loadgen.records import Outcome
from loadgen.stats.certify import certify, holds
from loadgen.stats.intervals import independent_values
from loadgen.store import SUMMARY_SCHEMA_VERSION, Run


def summarize(run: Run, options: MeasureOptions | None = None) -> dict[str, Any]:
    """Compute summary.json of a run; options default to those in its manifest."""
    options = options or MeasureOptions.of(run.manifest)
    return summarize_measured(run, measure(run, options), options)


def summarize_measured(run: Run, measured: Measured, options: MeasureOptions) -> dict[str, Any]:
    """Compute summary.json of a run that has been measured."""
    metrics = measured.metrics()
    arrivals = judge_arrivals(
        measured.columns.only(measured.is_open),
        measured.workload,
        measured.window.end_ns,
        is_open_loop=options.is_open_loop,
    )
    backlog = measured.backlog(is_judged=options.is_open_loop and run.manifest["status"] == "complete")
    verdict = judge(run, measured, metrics, arrivals, options, backlog)
    window, flow = measured.window, measured.flow
    account, server = attribute(run, measured), describe_server(run, measured.columns)
    return {
        "schema_version": SUMMARY_SCHEMA_VERSION,
        "verdict": verdict.to_json(),
        "rates": compute_rates(measured),
        "counts": count(measured),
        "window": {
            "start_s": window.start_ns / 1e9,
            "end_s": window.end_ns / 1e9,
            "method": window.method,
            "is_steady": window.is_steady,
            "flow_start_s": flow.start_ns / 1e9 if flow else None,
            "flow_end_s": flow.end_ns / 1e9 if flow else None,
        },
        "backlog": asdict(backlog) if backlog else None,
        "load": {
            "model": "open" if options.is_open_loop else "closed",
            "concurrency": options.concurrency,
            "max_in_flight": options.max_in_flight,
            "scheduling": RunFacts.of(run.manifest).scheduling,
            "sessions": describe_sessions(run, measured),
        },
        "prefix": describe_prefix(run, measured),
        "metrics": {name: metric.to_json() for name, metric in metrics.items()},
        "slo": evaluate_slo(measured, options),
        "groups": describe_groups(run, measured, options.objectives),
        "little": apply_littles_law(measured),
        "arrivals": arrivals.to_json(),
        "stamps": describe_stamps(run, measured),
        "engine": describe_engine(run, window),
        "attribution": account,
        "inferred": {} if account else infer(measured, server),
        "dialects": speak(read_log(measured.columns, measured.events.steps)),
        "server": server,
    }


def compute_rates(measured: Measured) -> dict[str, float | None]:
    """Events per second, each counted where it happened: what was offered in the window, what came of it in
    the part in which answers flowed. Null where `rated_s` is none, or no such part is left.
    """
    columns, window, flow = measured.columns, measured.window, measured.flow
    amounts: dict[str, float] = {
        "offered_per_s": measured.num_scheduled,
        "sent_per_s": window.holds(columns.sent_ns).sum(),
    }
    length_s = measured.rated_s
    offered = {name: float(amount) / length_s if length_s > 0 else None for name, amount in amounts.items()}
    part = flow or Window(start_ns=0.0, end_ns=0.0)
    ended = part.holds(np.where(np.isnan(columns.sent_ns), np.nan, columns.ended_ns))
    amounts = {
        "completed_per_s": ended.sum(),
        "ok_per_s": (ended & columns.is_ok).sum(),
        "prompt_tokens_per_s": np.nansum(columns.prompt_tokens[part.holds(columns.first_token_ns)]),
        "output_tokens_per_s": measured.events.tokens_in_window,
    }
    length_s = part.length_s if measured.rated_s > 0 else 0.0
    return offered | {n: float(amount) / length_s if length_s > 0 else None for n, amount in amounts.items()}


def count(measured: Measured) -> dict[str, Any]:
    """Rows of the whole run, warm-up included; `failed` is everything scheduled that is not ok."""
    columns = measured.columns
    ok = int(columns.is_ok.sum())
    return {
        "scheduled": len(columns),
        "sent": int((~np.isnan(columns.sent_ns)).sum()),
        "ok": ok,
        "failed": len(columns) - ok,
        "by_outcome": columns.count_outcomes(),
        "scheduled_in_window": measured.num_scheduled,
        "ok_in_window": int(measured.counted.sum()),
    }


def describe_prefix(run: Run, measured: Measured) -> dict[str, float | None] | None:
    """Share of prompt tokens that an unlimited cache finds, beside what the server says it found."""
    columns = measured.columns
    expected = planned_shared_tokens(run)
    planned = float(columns.prompt_tokens_planned.sum())
    if not planned or not expected.any():
        return None
    told = columns.is_ok & ~np.isnan(columns.cached_tokens) & ~np.isnan(columns.prompt_tokens)
    seen = float(columns.prompt_tokens[told].sum())
    return {
        "expected_hit_rate": float(expected.sum()) / planned,
        "reported_hit_rate": float(columns.cached_tokens[told].sum()) / seen if seen else None,
    }


def describe_sessions(run: Run, measured: Measured) -> dict[str, int] | None:
    """What is open about the sessions, and what is closed: turns by what decides when they come."""
    session = run.plan_rows().column("session").to_numpy()
    if not (session >= 0).any():
        return None
    return {
        "count": len(np.unique(session[session >= 0])),
        "open_turns": int((measured.is_open & (session >= 0)).sum()),
        "closed_turns": int((~measured.is_open).sum()),
    }


def evaluate_slo(measured: Measured, options: MeasureOptions) -> dict[str, Any]:
    """Objectives beside what was seen; goodput over all requests scheduled in the window, failed ones too."""
    targets: list[dict[str, Any]] = []
    for objective in options.objectives:
        figure, n = error.Figure(label=objective.label, value=None), None
        if objective.statistic is not None:
            figure = error.figure_of(measured, objective.metric, objective.statistic)
            n = measured.sample_for(objective.metric).num_values
        targets.append(
            {
                "metric": objective.metric,
                "statistic": objective.statistic,
                "limit": objective.limit,
                "value": figure.value,
                "error": figure.range,
                "n": n,
                "is_met": False if figure.value is None and n else figure.meets(objective.limit),
                "certificate": certify_objective(measured, objective),
            }
        )
    per_request = [objective for objective in options.objectives if objective.statistic is None]
    attained, goodput = error.Figure(label="attained", value=None), None
    if per_request and measured.num_scheduled:
        attained = error.attained_fraction(measured, per_request)
        num_met = int(met_by_request(per_request, measured.values).sum())
        goodput = num_met / measured.rated_s if measured.rated_s > 0 else None
    deadlines = deadlines_of(options.objectives)
    certificates = [target["certificate"]["is_certified"] for target in targets if target["certificate"]]
    return {
        "targets": targets,
        "attained_fraction": attained.value,
        "attained_error": attained.range,
        "goodput_per_s": goodput,
        "certified": all(certificates) if certificates else None,
        "fluidity": describe_fluidity(measured.values["ttft_s"], measured.gaps, deadlines)
        if deadlines
        else None,
    }


def certify_objective(measured: Measured, objective: Objective) -> dict[str, Any] | None:
    """Say whether a percentile objective is certified at 99 % confidence; None for other objectives."""
    pool = measured.pool(objective.metric.replace("_with_failures", ""))
    if objective.percentile is None or pool is None or len(pool.values) == 0:
        return None
    sample = measured.sample_for(objective.metric)
    num_misses = round(sample.share_above(objective.limit) * sample.num_values)
    n_eff = independent_values(pool, objective.percentile)
    return asdict(certify(sample.num_values, num_misses, objective.percentile, n_eff=n_eff))


def is_beyond_doubt(measured: Measured, objective: Objective) -> bool:
    """Whether an objective is surely met, or surely missed: fewer values do for that than to say where it
    lies.
    """
    found, share = certify_objective(measured, objective), objective.percentile
    if found is None or share is None:
        return False
    num_kept = found["num_values"] - found["num_misses"]
    return found["is_certified"] or holds(found["num_values"], num_kept, 1 - share, found["confidence"])


def apply_littles_law(measured: Measured) -> dict[str, float | None]:
    """Requests in flight beside rate times time in flight, inside the window: equal where the run is steady.

    A ratio above 1 says that what was in flight came from before the window; below, that work was left over.
    """
    columns, window = measured.columns, measured.window
    sent = window.holds(columns.sent_ns)
    if not sent.any() or not window.length_s > 0:
        return {"in_flight": None, "rate_times_time": None, "ratio": None}
    residence_s = float((columns.ended_ns[sent] - columns.sent_ns[sent]).sum()) / 1e9 / window.length_s
    level = float(section_means(in_flight_steps(columns), window, 1)[0])
    ratio = level / residence_s if residence_s > 0 else None
    return {"in_flight": level, "rate_times_time": residence_s, "ratio": ratio}


def describe_stamps(run: Run, measured: Measured) -> dict[str, Any]:
    """Where the stamps come from, how many are exact, and by how much the others can be off."""
    is_kernel = measured.columns.is_kernel_stamped[measured.counted]
    source = "kernel" if is_kernel.all() else "user" if not is_kernel.any() else "mixed"
    if (run.manifest.get("target") or {}).get("kind") == "simulated engine":
        source = "simulated"
    events = measured.events
    return {
        "source": source if len(is_kernel) else None,
        "num_events": events.num_events,
        "exact_fraction": events.num_alone / events.num_events if events.num_events else None,
        "uncertainty_p99_s": measured.uncertainty_p99_s(),
    }


def judge(
    run: Run,
    measured: Measured,
    metrics: dict[str, MetricSummary],
    arrivals: Arrivals,
    options: MeasureOptions,
    backlog: Backlog | None,
) -> Verdict:
    """Run every check on what was measured."""
    columns, window = measured.columns, measured.window
    facts = RunFacts.of(run.manifest)
    unsure = error.unsure_figures(measured, metrics, options)
    died = checks.target_died(columns, facts.is_target_alive)
    stopped = None if died else checks.interrupted(facts.status)
    broke = checks.failed(facts.status, facts.worker_errors)
    is_cut = bool(died or stopped or broke)
    counts = columns.count_outcomes()
    errors = count_errors(run) if counts.get(Outcome.CONNECT_FAILED) else {}
    advice = advice_for_starved(
        facts.scheduling, cpu_s=facts.cpu_s, wait_s=facts.wait_s, drive_s=facts.drive_s
    )
    late = error.client_late(
        unsure, metrics["send_lag_s"].statistics["p99"], limit_s=options.max_send_lag_s, advice=advice
    )
    steady = checks.not_steady(window)
    texts = run.plan_source.get("texts")
    estimate = texts["prompt_tokens"] if texts else facts.fitted_lengths
    reasons = (
        died,
        stopped,
        broke,
        checks.client_exhausted(errors, len(columns)),
        checks.no_answers(int(measured.counted.sum()), columns, window),
        late if options.max_in_flight is None else None,
        error.client_slow(unsure, measured.uncertainty_p99_s(), advice=advice),
        None if is_cut else checks.arrivals_mismatch(arrivals),
        *(
            too_few_samples(measured, named)
            for named in options.named
            if not is_beyond_doubt(measured, named)
        ),
        steady if options.named else None,
        checks.token_mismatch(columns, is_prompt_exact=estimate is None),
        # What texts of one's own share is not known.
        None if texts else checks.prefix_contaminated(columns, planned_shared_tokens(run)),
        checks.clock_stepped(
            facts.num_clock_steps, facts.clock_drift_ns, max(facts.clock_drift_ns, facts.clock_stepped_ns)
        ),
    )
    ok = columns.is_ok
    warnings = (
        None if options.named else steady,
        remarks.closed_loop(options.concurrency, options.max_in_flight),
        remarks.prompts_estimated(columns, estimate),
        remarks.tokens_unknown(columns.output_tokens[ok]),
        remarks.no_first_token(columns.first_token_ns[ok]),
        remarks.cpu_pressure(facts.cpu_pressure_percent),
        remarks.imported(run.manifest.get("imported")),
    )
    findings = (
        error.sent_together(measured),
        remarks.failures(outcomes_of_the_server(counts) if is_cut else counts),
        remarks.backlog(backlog, window.end_ns / 1e9) if backlog and not is_cut else None,
    )
    return Verdict(reasons=_said(reasons), findings=_said(findings), warnings=_said(warnings))


def outcomes_of_the_server(counts: Mapping[str, int]) -> dict[str, int]:
    """Without what the end of the run did to requests: those are no failures of the server."""
    ours = (Outcome.UNSENT, Outcome.CANCELLED)
    return {outcome: n for outcome, n in counts.items() if outcome not in ours}


def count_errors(run: Run) -> dict[str, int]:
    """How many requests found no connection, by what the system said."""
    import pyarrow.compute as pc

    table = run.rows.read(["outcome", "error"])
    refused = table.filter(pc.equal(table.column("outcome"), str(Outcome.CONNECT_FAILED)))
    counted = refused.group_by("error").aggregate([([], "count_all")])
    return {row["error"] or "": row["count_all"] for row in counted.to_pylist()}


def too_few_samples(measured: Measured, objective: Objective) -> Notice | None:
    """Check that a named percentile rests on enough independent values."""
    share = objective.percentile
    pool = measured.pool(objective.metric.replace("_with_failures", ""))
    if share is None or pool is None:
        return None
    n = measured.samples[objective.metric].num_values
    tail = independent_values(pool, share) * (1 - share) if len(pool.values) else 0.0
    return checks.too_few_samples(objective.label, share, tail, n)


def planned_shared_tokens(run: Run) -> Floats:
    """Per request, the prompt tokens that the plan shares with earlier ones."""
    from workloads.prefixes import hit_tokens

    table = run.plan_rows()
    blocks = table.column("prefix_blocks").combine_chunks()
    block_tokens = int(table.schema.metadata[b"block_tokens"])
    offsets = blocks.offsets.to_numpy().astype(np.int64)
    prompt_tokens = table.column("prompt_tokens").to_numpy()
    return hit_tokens(blocks.flatten().to_numpy(), offsets, block_tokens, prompt_tokens).astype(np.float64)


def _said(notices: tuple[Notice | None, ...]) -> tuple[Notice, ...]:
    return tuple(notice for notice in notices if notice is not None)
