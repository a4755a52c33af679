"""What a summary says, in sentences: shared by the terminal, the page and Markdown, so that they agree.

Pure text out of summary.json and manifest.json. Decides wording and order; judges nothing and computes
nothing: what the summary does not know is not said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any, Literal

from reports.quantities import (
    DASH,
    Unit,
    format_count,
    format_duration,
    format_in,
    format_number,
    format_percent,
    format_time,
)

if TYPE_CHECKING:
    from loadgen.store import Run

Json = Mapping[str, Any]
Severity = Literal["reason", "finding", "warning"]

MIN_VALUES_FOR_P99 = 100
VALUES_FOR_P99 = 1000  # independent ones, for ten beyond it
LITTLE_TOLERANCE = 0.05
MIN_ERROR_SHOWN = 0.02  # of the figure; below that the digits shown say it
TO = "–"
SHARES = {"p90": "90 %", "p95": "95 %", "p99": "99 %"}
LATENCY_ROWS = {
    "ttft_s": "TTFT",
    "itl_s": "ITL",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
    "send_lag_s": "send lag",
    "recv_lag_s": "recv lag",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What the verdict says: a reason (the measurement failed), a finding (the server) or a warning."""

    severity: Severity
    code: str
    message: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """A kind of failure: how often, what it is called, and the words of the server or the system."""

    count: int
    label: str
    error: str


def status(summary: Json) -> str:
    """Return `VALID` or `INVALID`."""
    return "VALID" if summary["verdict"]["status"] == "valid" else "INVALID"


def is_simulated(manifest: Json) -> bool:
    """Whether the run was made in virtual time."""
    return (manifest.get("target") or {}).get("kind") == "simulated engine"


def claim(manifest: Json, summary: Json) -> str:
    """What the status stands for."""
    if is_simulated(manifest):
        return "simulated in virtual time: nothing was measured"
    return f"the measurement {'can' if status(summary) == 'VALID' else 'cannot'} be trusted"


def notices(summary: Json) -> list[Notice]:
    """List what the verdict says: reasons first, then findings, then warnings."""
    verdict = summary["verdict"]
    listed: list[tuple[Severity, Any]] = [("reason", item) for item in verdict.get("reasons", [])]
    listed += [("finding", item) for item in verdict.get("findings", [])]
    listed += [("warning", item) for item in verdict.get("warnings", [])]
    return [
        Notice(
            severity=severity,
            code=str(item.get("code", severity)),
            message=printable(str(item.get("message", ""))),
            advice=printable(str(item.get("advice") or "")),
        )
        for severity, item in listed
    ]


def codes(summary: Json) -> str:
    """The codes of the verdict in a line; those of warnings are said to be that."""
    listed = notices(summary)
    told = [notice.code for notice in listed if notice.severity != "warning"]
    warns = [notice.code for notice in listed if notice.severity == "warning"]
    return "; ".join(filter(None, (", ".join(told), "warns: " * bool(warns) + ", ".join(warns))))


def answer(summary: Json) -> str:
    """Say in one sentence what latency users get at this rate; where nothing succeeded, say that."""
    counts, rates, metrics = summary["counts"], summary["rates"], summary["metrics"]
    offered = rates.get("offered_per_s")
    rate = (
        "At a rate that is not known"
        if offered is None
        else f"At {format_number(offered)} requests/s offered"
    )
    ttft, itl = metrics.get("ttft_s") or {}, metrics.get("itl_s") or metrics.get("event_gap_s") or {}
    if not counts.get("scheduled"):
        return "Nothing was scheduled, so nothing was measured."
    if not counts.get("ok"):
        scheduled = format_count(counts["scheduled"])
        return f"{rate}, none of {scheduled} requests succeeded: no latency was measured."
    share = f"{format_count(counts['ok'])} of {format_count(counts['scheduled'])} requests succeeded"
    if ttft.get("p50") is None:
        e2e = metrics.get("e2e_s") or {}
        if e2e.get("p50") is None:
            return f"{rate}, {share}; none of them lies in the measured window."
        return f"{rate}, half of the answers were complete within {format_time(e2e['p50'])}; {share}."
    who = "requests" if counts["ok"] == counts["scheduled"] else "requests that succeeded"
    sentence = f"{rate}, half of the {who} saw their first token within {told_time(ttft, 'p50')}"
    sentence += _tail(ttft)
    if itl.get("p50") is not None:
        sentence += f"; then a token every {told_time(itl, 'p50')} (median gap"
        carried = itl.get("carries")
        sentence += f", {carried} {told_time(itl, carried)})" if carried in SHARES else ")"
    return f"{sentence}. {share}."


def _tail(metric: Json) -> str:
    """Say where the tail lies: the percentile that the values carry; of a few, the largest."""
    carried = metric.get("carries")
    if carried in SHARES:
        return f" and {SHARES[carried]} within {told_time(metric, carried)}"
    return f" and all within {format_time(metric.get('max'))}"


def rate_pairs(summary: Json) -> list[tuple[str, str]]:
    """Name each rate beside its value: requests first, then tokens."""
    rates = summary["rates"]
    named = [
        ("offered", "offered_per_s"),
        ("sent", "sent_per_s"),
        ("completed", "completed_per_s"),
        ("ok", "ok_per_s"),
    ]
    pairs = [(name, f"{format_number(rates.get(key))} /s") for name, key in named]
    pairs.append(("output", f"{format_number(rates.get('output_tokens_per_s'))} tok/s"))
    pairs.append(("prompt", f"{format_number(rates.get('prompt_tokens_per_s'))} tok/s"))
    return pairs


def cell(metric: Json, statistic: str, unit: Unit) -> str:
    """Write a statistic in a unit with what the client's own error leaves it: nothing, `±` or, where it is
    not sure, its range.
    """
    value, error = metric.get(statistic), (metric.get("error") or {}).get(statistic)
    if value is None or not error:
        return format_in(value, unit)
    low, high = error
    if statistic in (metric.get("client_limited") or ()):
        return f"{format_in(low, unit)}{TO}{format_in(high, unit)}"
    off = max(value - low, high - value)
    told = format_in(value, unit)
    return f"{told} ±{off * unit.scale:.1g}" if off > MIN_ERROR_SHOWN * value else told


def told_time(metric: Json, statistic: str) -> str:
    """Write a statistic in a sentence: `4.1 ms`, or `3 to 41 ms (client-limited)`."""
    if statistic not in (metric.get("client_limited") or ()):
        return format_time(metric.get(statistic))
    low, high = map(format_time, metric["error"][statistic])
    return f"{low} to {high} (client-limited)"


def interval(metric: Json, statistic: str, unit: Unit) -> str:
    """Write the 95 % interval of a statistic, or why there is none."""
    intervals = metric.get("ci") or {}
    if statistic not in intervals or not metric.get("n"):
        return DASH
    bounds = intervals[statistic]
    if not bounds or None in bounds:
        return "too few samples"
    return f"{format_in(bounds[0], unit)} to {format_in(bounds[1], unit)}"


def context_lines(manifest: Json, summary: Json) -> list[tuple[str, str]]:
    """Name and say what the figures rest on: window, arrivals, trace, engine, target; only what is known."""
    slo = summary.get("slo") or {}
    sessions = (summary.get("load") or {}).get("sessions") or {}
    lines = [
        *(("SLO", _objective(target)) for target in slo.get("targets") or [] if target["statistic"]),
        ("goodput", _goodput(slo)),
        ("fluidity", _fluidity(slo)),
        ("carries", _carries(summary.get("metrics") or {})),
        ("window", _window(summary.get("window") or {})),
        ("arrivals", _arrivals(summary.get("arrivals") or {}, sessions)),
        ("sessions", _sessions(sessions)),
        ("prefix", _prefix(summary.get("prefix") or {})),
        *(("", text) for text in _by_turn(summary.get("groups") or {})),
        ("Little", _little(summary.get("little") or {})),
        ("trace", _trace((manifest.get("plan") or {}).get("trace") or {})),
        ("stamps", _stamps(summary.get("stamps") or {}, manifest.get("target") or {})),
        ("engine", _engine(summary.get("engine") or {}, (manifest.get("target") or {}).get("engine") or {})),
        *(("server", text) for text in _server(summary.get("server") or {})),
    ]
    return [(name, text) for name, text in lines if text]


def _carries(metrics: Json) -> str:
    """Say which percentiles the run carries, and what would carry the p99; nothing where it does."""
    shown = {name: metrics.get(name) or {} for name in ("ttft_s", "itl_s", "e2e_s")}
    told = {name: metric for name, metric in shown.items() if metric.get("n_eff")}
    if all(metric.get("carries") == "p99" for metric in told.values()):
        return ""
    each = ", ".join(
        f"{LATENCY_ROWS[name]} {metric.get('carries') or 'none'}" for name, metric in told.items()
    )
    first, metric = next((name, m) for name, m in told.items() if m.get("carries") != "p99")
    needed = VALUES_FOR_P99 / metric["n_eff"] * metric["n"]
    step = 10 ** (floor(log10(needed)) - 1)
    wanted = format_count(ceil(round(needed / step, 6)) * step)  # two figures, rounded up
    return f"{each} (ten independent values beyond); {LATENCY_ROWS[first]} p99 wants some {wanted} requests"


def _window(window: Json) -> str:
    start, end = window.get("start_s"), window.get("end_s")
    if start is None or end is None:
        return ""
    method = str(window.get("method") or "none left out").removeprefix("auto: ")
    return f"requests scheduled from {start:.1f} s to {end:.1f} s; warm-up: {method}"


def _arrivals(arrivals: Json, sessions: Json) -> str:
    if arrivals.get("rate_per_s") is None:
        return ""
    asked = f" (asked: {arrivals['asked']})" if arrivals.get("asked") else ""
    only = ", without turns that waited" if sessions.get("closed_turns") else ""
    spread = f", gap CV {arrivals['gap_cv']:.2f}" if arrivals.get("gap_cv") is not None else ""
    return f"{format_number(arrivals['rate_per_s'])} /s as sent, whole run{spread}{only}{asked}"


def _little(little: Json) -> str:
    """Say where Little's law does not hold; nothing where it does."""
    ratio = little.get("ratio")
    if ratio is None or abs(ratio - 1) <= LITTLE_TOLERANCE:
        return ""
    in_flight, product = format_number(little["in_flight"]), format_number(little["rate_times_time"])
    return f"{in_flight} in flight on average, but rate times time is {product}: the window is not steady"


def _sessions(sessions: Json) -> str:
    """Say what decides when a turn comes: the plan, or the answer before it."""
    if not sessions:
        return ""
    said = (
        f"{format_count(sessions['count'])}; {format_count(sessions['open_turns'])} turns open (due by plan)"
    )
    if not sessions["closed_turns"]:
        return said
    return f"{said}, {format_count(sessions['closed_turns'])} closed (a slow answer delays the next turn)"


def _prefix(prefix: Json) -> str:
    """Set what the server found in its cache beside what an unlimited one would find."""
    if not prefix:
        return ""
    expected, reported = prefix["expected_hit_rate"], prefix["reported_hit_rate"]
    found = (
        "the server does not say what it found" if reported is None else f"{format_percent(reported)} found"
    )
    return f"{found}; an unlimited cache would find {format_percent(expected)} of the prompt tokens"


def _by_turn(groups: Json) -> list[str]:
    """Set the TTFT of first turns beside that of later ones, and of cold prompts beside warm ones."""
    return [
        "TTFT p50 "
        + ", ".join(
            f"{before}{part['key']} {format_time((part.get('ttft_s') or {}).get('p50'))}"
            for part in groups[name][:5]
        )
        for name, before in (("turn", "turn "), ("prefix", ""))
        if name in groups
    ]


def _engine(engine: Json, facts: Json) -> str:
    told = [f"{facts['model']} in {facts['dtype']} on {facts['device']}"] if "device" in facts else []
    if engine.get("busy_fraction") is not None:
        told.append(f"busy {format_percent(engine['busy_fraction'])} of the time")
    if engine.get("batch_mean") is not None:
        used = format_percent(engine["kv_used_fraction"])
        told.append(f"{format_number(engine['batch_mean'])} in a batch, KV memory {used} in use")
    if engine.get("num_preemptions"):
        again = format_percent(engine["recompute_fraction"])
        told.append(
            f"{format_count(engine['num_preemptions'])} evictions, {again} of all tokens computed again"
        )
    return ", ".join(told)


def _limit(target: Json) -> str:
    name = target["metric"]
    return format_time(target["limit"]) if name.endswith("_s") else format_number(target["limit"])


def _objective(target: Json) -> str:
    name = target["metric"]
    value = format_time(target["value"]) if name.endswith("_s") else format_number(target["value"])
    if target["value"] is None and target.get("n"):
        value = "infinite (requests failed)"
    verdict = {True: "met", False: "missed", None: "unknown"}[target["is_met"]]
    if target["is_met"] is None and target.get("error") and name.endswith("_s"):
        low, high = map(format_time, target["error"])
        verdict += f" (client-limited: {low} to {high})"
    told = f"{name.removesuffix('_s')}.{target['statistic']} {value}, limit {_limit(target)}: {verdict}"
    certificate = target.get("certificate")
    if certificate is None or not target["is_met"]:
        return told
    sureness = f"at {format_percent(certificate['confidence'])} confidence"
    if certificate["is_certified"]:
        return f"{told}, certified {sureness}"
    missing = certificate["num_missing"]
    wanted = (
        "" if missing is None else f": {format_count(missing)} more independent values within it would do"
    )
    return f"{told}, not certified {sureness}{wanted}"


def _goodput(slo: Json) -> str:
    limits = [target for target in slo.get("targets") or [] if target["statistic"] is None]
    if not limits or slo.get("goodput_per_s") is None:
        return ""
    asked = " and ".join(
        f"{target['metric'].removesuffix('_s')} within {_limit(target)}" for target in limits
    )
    share = format_percent(slo.get("attained_fraction"))
    return f"{format_number(slo['goodput_per_s'])} requests/s: {share} of all requests had {asked}"


def _fluidity(slo: Json) -> str:
    found = slo.get("fluidity")
    if not found or not found["n"]:
        return ""
    lag_s = found["playback_lag_s"]["p99"]
    behind = f"{format_time(lag_s)} behind its reader" if lag_s > 0 else "ahead of its reader to the end"
    share = format_percent(found["fluid_fraction"])
    return f"{share} of requests keep nine deadlines of ten; at p99 a stream is {behind}"


def _stamps(stamps: Json, target: Json) -> str:
    if target.get("kind") == "simulated engine":
        cost = target.get("cost") or {}
        return f"virtual time; step cost {printable(str(cost.get('name')))}, {cost.get('origin')}"
    if stamps.get("exact_fraction") is None:
        return ""
    source = {"kernel": "from the kernel", "user": "from user space"}.get(str(stamps.get("source")), "mixed")
    p99_s = stamps.get("uncertainty_p99_s")
    unsure = f", uncertain by {format_time(p99_s)} at p99" if p99_s else ""
    return f"{source}, {format_percent(stamps['exact_fraction'])} exact{unsure}"


def _server(server: Json) -> list[str]:
    """Say how the server's own latencies differ from ours, where it tells them."""
    return [
        f"{LATENCY_ROWS.get(name, name)}: {printable(str(view['explanation']))}"
        for name, view in (server.get("histograms") or {}).items()
        if view.get("explanation")
    ]


def _trace(trace: Json) -> str:
    rows = trace.get("rows")
    if not rows:
        return ""
    dropped = (rows.get("dropped") or {}).items()
    reasons = [f"{format_count(n)} dropped: {reason.replace('_', ' ')}" for reason, n in dropped if n]
    lost = "; ".join(reasons) or "none dropped"
    parts = [
        str(trace.get("format", "unknown format")),
        f"{format_count(rows.get('kept'))} of {format_count(rows.get('read'))} rows kept ({lost})",
        f"span {format_duration(trace.get('span_s'))}",
        f"{format_number(trace.get('rate_per_s'))} /s",
    ]
    if trace.get("gap_cv") is not None:
        parts.append(f"gap CV {trace['gap_cv']:.2f}")
    return ", ".join(parts)


def printable(text: str) -> str:
    """Put text from outside on one line, without the control characters that a terminal would obey."""
    return "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))


def failure_rows(run: Run) -> list[FailureRow]:
    """List the kinds of failure, most frequent first, each with the words that came with it."""
    from loadgen.measure import series

    return [
        FailureRow(
            count=group.count,
            label=failure_label(group.outcome, group.http_status),
            error=printable(group.error or ""),
        )
        for group in series.failure_groups(run.rows)
    ]


def failure_label(outcome: str, http_status: int | None) -> str:
    """Name a kind of failure: `http_status 503`, `connect_failed`."""
    return f"{outcome} {http_status}" if outcome == "http_status" and http_status is not None else outcome
