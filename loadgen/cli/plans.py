"""From flags to a plan: a workload file or preset where one is named, changed by every flag that is given."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.cli.options import PlanOptions
    from workloads import Plan, Workload

REQUESTS_PER_VALUE = 2  # requests that share a queue resemble each other, and the warm-up does not count
FIELD_OF_FLAG = {
    "rate": "rate_per_s",
    "duration": "duration_s",
    "requests": "num_requests",
    **{
        name: name
        for name in (
            "arrival", "exact_count", "sessions", "prefixes", "dist", "input_tokens", "output_tokens",
            "lengths_from", "length_scale", "prompts", "over_context", "trace", "trace_window", "trace_speed",
            "trace_columns", "time_unit", "bad_rows", "zero_output", "dequantize",
        )
    },
}  # fmt: skip


def parse_changes(changes: list[str] | tuple[str, ...] | None) -> dict[str, str]:
    """Read `--set KEY=VALUE`, dashes as good as underscores in the key."""
    given = {}
    for change in changes or ():
        key, equals, value = change.partition("=")
        if not equals:
            raise UsageError(f"--set {change!r}: write KEY=VALUE")
        given[key.strip().replace("-", "_")] = value.strip()
    return given


def make_plan(options: PlanOptions) -> Plan:
    """Turn the flags of load and lengths into a plan; UsageError says what is wrong."""
    from workloads import WorkloadError

    if not (options.workload or options.trace) and options.rate is None and options.concurrency is None:
        raise UsageError(
            "say how much to send: --rate 20 (requests per second), --trace FILE, --workload NAME or "
            "--concurrency N"
        )
    try:
        return make_workload(options).plan(options.seed)
    except WorkloadError as exc:
        raise UsageError(str(exc)) from exc


def make_workload(options: PlanOptions) -> Workload:
    """Load the workload named, or start from the defaults, and let the flags change it."""
    from workloads import Workload
    from workloads.files import load_workload, with_changes

    workload = Workload() if options.workload is None else load_workload(options.workload)
    values = {field: getattr(options, flag) for flag, field in FIELD_OF_FLAG.items()}
    given: dict[str, Any] = {
        field: value for field, value in values.items() if value is not None and value is not False
    }
    given |= parse_changes(options.changes)
    if options.concurrency is not None and options.rate is None and options.workload is None:
        if options.requests is None:
            raise UsageError("--concurrency without --rate needs --requests N: nothing else ends the run")
        # A closed loop has no instants of its own: a request is due when one before it ends.
        given["arrival"] = "at-once"
    return with_changes(workload, given)


class Served(Protocol):
    """A model and the most tokens that a request to it may have; None where that is not known."""

    @property
    def model(self) -> str: ...

    @property
    def context_tokens(self) -> int | None: ...


def say_reach(plan: Plan, options: PlanOptions) -> str | None:
    """Say which percentile as many requests carry, before they are sent; None where that is the p99."""
    from loadgen.measure.measured import CARRIED
    from loadgen.measure.metrics import PERCENTILES
    from loadgen.stats.intervals import MIN_TAIL_EVENTS

    num_values = len(plan) // REQUESTS_PER_VALUE
    carried = [label for label in CARRIED if num_values * (1 - PERCENTILES[label]) >= MIN_TAIL_EVENTS]
    if "p99" in carried:
        return None
    wanted = REQUESTS_PER_VALUE * round(MIN_TAIL_EVENTS / (1 - PERCENTILES["p99"]))
    how = f"--requests {wanted}"
    if options.trace:
        how = "a longer --trace-window"
    elif options.requests is None and plan.span_s > 0:
        how = f"--duration {ceil(wanted / len(plan) * plan.span_s)}s"
    reach = f"carry {carried[-1]}" if carried else "are too few for a percentile"
    return f"{len(plan):,} requests {reach}; p99 wants some {wanted:,} ({how})"


def fit_to_context(plan: Plan, options: PlanOptions, served: Served) -> Plan:
    """Refuse a plan with a request that the target can never serve, or treat it as `--over-context` says."""
    context = served.context_tokens
    totals = plan.prompt_tokens.astype("int64") + plan.output_tokens
    if context is None or totals.max(initial=0) <= context:
        return plan
    if options.over_context not in (None, "error"):
        changes = [*options.changes, f"context_tokens={context}"]
        return make_plan(replace(options, changes=changes))
    worst = int(totals.argmax())
    over = int((totals > context).sum())
    raise UsageError(
        f"{over} of {len(plan)} requests are longer than the context of {served.model} "
        f"({context} tokens): request {worst} has {plan.prompt_tokens[worst]} prompt + "
        f"{plan.output_tokens[worst]} output; shorten --input-tokens, --output-tokens or --length-scale, or "
        "choose --over-context clip or drop"
    )
