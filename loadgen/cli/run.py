"""`bench run`: one measured run, from flags to a judged run folder.

Everything that can be wrong is found before the first request leaves: flags, lengths, trace, output folder,
target. From then on whatever happens ends in a complete, marked folder.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cli.opened import OpenedTarget, check_target_flags, open_target, show_preflight
from loadgen.cli.options import RunOptions, origins, takes_options
from loadgen.cli.plans import FIELD_OF_FLAG, fit_to_context, make_plan, say_reach
from loadgen.cli.signals import Interruption
from loadgen.cli.simulate import measure_simulated
from loadgen.errors import EXIT_INVALID, EXIT_OK, BenchError, BrokenOffError, UsageError

if TYPE_CHECKING:
    from loadgen.drive import DriveConfig
    from loadgen.store import Run, RunFolder
    from workloads import Plan

SAME = ("seed", "workers", "realtime", "fresh_connections", "max_in_flight", "concurrency")
TIMEOUTS = ("connect_timeout", "first_token_timeout", "stall_timeout", "timeout", "drain_timeout")
COMMON = ("length_scale", "prompts", "over_context")
DEFAULTS = {  # of the flags that a recording, or a plan that is drawn, has a use for
    True: (*COMMON, "trace_speed", "bad_rows", "zero_output"),
    False: (*COMMON, "arrival", "dist"),
}
NO_SERVER = "target cmd ready_url api field balance metrics_url scrape_interval transport workers"
NO_SERVER += " fresh_connections header insecure tokenizer"
NO_SERVER += " ready_timeout probe_timeout connect_timeout stall_timeout"
NOT_SIMULATED = dict.fromkeys(NO_SERVER.split(), "there is no server") | dict.fromkeys(
    ("model", "device", "dtype"), "no model is computed, and --cost says what a step takes"
)


@takes_options
def run(ctx: typer.Context, options: RunOptions) -> None:
    """Measure one run: send requests on schedule, judge the measurement, print what users would see."""
    check_flags(options)
    if options.repeat is not None:
        from loadgen.cli.repeat import run_repeatedly

        raise typer.Exit(run_repeatedly(ctx, options))
    plan = make_plan(options)
    ctx.meta["bench.reach"] = say_reach(plan, options)
    with Interruption() as interruption:
        measured = measure_run(ctx, options, plan, interruption)
    show(measured, options)
    raise typer.Exit(interruption.exit_code or exit_code(measured))


def show_reach(ctx: typer.Context, options: RunOptions) -> None:
    """Say on stderr which percentile a run will carry, where somebody asked and it is not the p99."""
    if (reach := ctx.meta.get("bench.reach")) and not options.quiet:
        typer.echo(reach, err=True)


def check_flags(options: RunOptions) -> None:
    """Find what is wrong with the flags themselves before anything is made or started."""
    from loadgen.measure.slo import parse_slo

    for line in options.slo:
        try:
            parse_slo(line)
        except UsageError as exc:
            raise UsageError(f"--slo {line!r}: {exc}") from exc
    check_target_flags(options)
    check_simulation(options)
    for given, other, why in (
        (options.duration, options.requests, "--duration and --requests each end the run: give one"),
        (options.duration, options.trace, "a trace has its own length: give --trace-window, not --duration"),
        (
            options.rate,
            options.concurrency,
            "--concurrency closes the loop: leave --rate out, or use --max-in-flight",
        ),
    ):
        if given is not None and other is not None:
            raise UsageError(why)


def check_simulation(options: RunOptions) -> None:
    """Refuse a flag that a simulation, or a measured run, would have no use for."""
    if not options.simulate and _is_given(options, "cost"):
        raise UsageError("--cost belongs to --simulate: what a step takes is measured otherwise")
    for name, why in NOT_SIMULATED.items():
        if options.simulate and _is_given(options, name):
            raise UsageError(f"--simulate does not go with --{name.replace('_', '-')}: {why}")


def _is_given(options: RunOptions, name: str) -> bool:
    value = getattr(options, name)
    return bool(value) and value != RunOptions.__dataclass_fields__[name].default


def measure_run(ctx: typer.Context, options: RunOptions, plan: Plan, interruption: Interruption) -> Run:
    """Open the target, send the plan, close the target, judge; the folder is gone where nothing was sent."""
    from loadgen.measurement import conclude
    from loadgen.store import RunFolder

    if options.simulate:
        return measure_simulated(ctx, options, plan, interruption)
    if options.warmup is not None and len(plan) and options.warmup > plan.span_s:
        raise UsageError(
            f"a --warmup of {options.warmup:g} s leaves nothing of a plan of {plan.span_s:.3g} s"
        )
    folder = RunFolder.create(options.out, options.name)
    try:
        with open_target(options, folder.path, interruption.stop) as target:
            plan = fit_to_context(plan, options, target.preflight)
            if interruption.exit_code is not None:
                raise typer.Exit(interruption.exit_code)
            shown = ctx.meta.setdefault("bench.preflight", [])  # of several runs, once
            if not options.quiet and not target.is_reference_engine and target.urls not in shown:
                show_preflight(target)
                shown.append(target.urls)
            _record(ctx, options, plan, folder, target, interruption)
    except BaseException as exc:
        is_refused = isinstance(exc, BenchError) and not isinstance(exc, BrokenOffError)
        if is_refused or not (folder.path / "plan.parquet").exists():
            shutil.rmtree(folder.path, ignore_errors=True)  # nothing was sent: nothing to keep
        raise
    return conclude(folder)


def _record(
    ctx: typer.Context,
    options: RunOptions,
    plan: Plan,
    folder: RunFolder,
    target: OpenedTarget,
    interruption: Interruption,
) -> None:
    from loadgen.measurement import record
    from loadgen.redaction import redacted
    from reports.live import LiveView

    manifest = redacted(describe(ctx, options, plan, target.facts()), target.secrets)
    config = drive_config(options, plan, folder.run_id, target, manifest["seeds"]["nonce"])
    show_reach(ctx, options)
    live = LiveView(
        plan_requests=len(plan),
        duration_s=plan.span_s,
        max_send_lag_s=options.max_send_lag,
        is_quiet=options.quiet,
    )
    with live as view:
        record(
            plan,
            config,
            folder,
            manifest=manifest,
            on_progress=view.update,
            stop=interruption.stop,
            is_target_alive=target.is_alive,
            telemetry=target.telemetry(options),
        )


def drive_config(
    options: RunOptions, plan: Plan, run_id: str, target: OpenedTarget, nonce: int
) -> DriveConfig:
    """Gather what the load processes need to know."""
    from loadgen.drive import DriveConfig

    prompts = str(plan.source["workload"].get("prompts", "words"))
    if prompts == "token-ids":
        try:
            target.preflight.endpoint.body([1], 1, target.preflight.model)
        except TypeError as exc:
            raise UsageError(f"--prompts token-ids: {exc}") from exc
    lengths = target.preflight.lengths
    return DriveConfig(
        prompts=prompts,
        url=target.url,
        more_urls=target.urls[1:],
        balance=options.balance.value,
        endpoint=target.preflight.endpoint,
        model=target.preflight.model,
        headers=tuple(target.headers.items()),
        prompt_offset=lengths.offset if lengths else 0,
        tokens_per_word=lengths.tokens_per_word if lengths else 1.0,
        nonce=nonce,
        run_id=run_id,
        pin=target.load_cpus,
        transport=options.transport.value,
        verify=not options.insecure,
        **{name: getattr(options, name) for name in SAME},
        **{f"{name}_s": getattr(options, name) for name in TIMEOUTS},
    )


def describe(ctx: typer.Context, options: RunOptions, plan: Plan, target: dict[str, Any]) -> dict[str, Any]:
    """What the manifest says of how a run was asked for; the values of headers are no part of it."""
    from workloads import Workload

    values = {**asdict(options), "header": [line.partition(":")[0] for line in options.header]}
    values |= {name: "auto" for name in ("warmup", "workers") if values[name] is None}
    origin = origins(ctx)
    planned, defaults = plan.source["workload"], Workload()
    for name, field in FIELD_OF_FLAG.items():
        default = getattr(defaults, field)
        value = planned.get(field, default)
        if values[name] is None and (value != default or name in DEFAULTS[bool(options.trace)]):
            values[name] = value
            origin[name] = "default" if value == default else "workload"
    return {
        "command": shlex.join(["bench", *without_secrets(sys.argv[1:])]),
        "config": {
            name: {
                "value": str(value) if isinstance(value, Path) else value,
                "origin": origin.get(name, "default"),
            }
            for name, value in values.items()
        },
        "seeds": {"seed": options.seed, "nonce": secrets.randbits(63)},
        "target": target,
    }


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Blank the values of headers in a command line that is about to be written down."""
    return [
        re.sub(r"^((?:--header=)?[\w-]+:).+$", r"\1 ***", argument)
        if before == "--header" or argument.startswith("--header=")
        else argument
        for before, argument in zip(["", *arguments], arguments, strict=False)
    ]


def show(measured: Run, options: RunOptions) -> None:
    """Print the result on stdout: the summary, or with --json one document."""
    assert measured.summary is not None
    if options.json:
        typer.echo(json.dumps({**measured.summary, "folder": str(measured.path)}, allow_nan=False))
        return
    from rich.console import Console

    from reports.terminal import print_summary

    print_summary(measured, Console(), wide=options.wide)


def exit_code(measured: Run) -> int:
    """0 for a valid measurement, 3 for an invalid one."""
    assert measured.summary is not None
    return EXIT_OK if measured.summary["verdict"]["status"] == "valid" else EXIT_INVALID
