"""`bench simulate`, and `--simulate` wherever a run is measured: the reference engine in virtual time.

The scheduler and its policy are those of the live engine; a cost model takes the place of the model, and no
request leaves the process. The run folder is that of a measured run, so that everything else works on it.
"""

from __future__ import annotations

import gc
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cli.knobs import SETTINGS, field_names, parse_knobs
from loadgen.cli.options import RunOptions, takes_options
from loadgen.cli.plans import fit_to_context, make_plan, say_reach
from loadgen.cli.signals import Interruption
from loadgen.errors import RunFolderError, UsageError

if TYPE_CHECKING:
    from loadgen.store import Run, RunFolder
    from loadgen.virtual import VirtualRows
    from reference_engine.account import Account
    from reference_engine.config import EngineConfig
    from reference_engine.cost import Profile
    from reference_engine.sequence import Sequence
    from reference_engine.simulate import Failure, Patience
    from reference_engine.simulation_log import RequestLog
    from workloads import Plan


@takes_options
def simulate(ctx: typer.Context, options: RunOptions) -> None:
    """Measure one run in virtual time: same workloads, same policies, a cost model in place of the model."""
    from loadgen.cli.run import check_flags, exit_code, measure_run, show

    options = replace(options, simulate=True)
    check_flags(options)
    plan = make_plan(options)
    ctx.meta["bench.reach"] = say_reach(plan, options)
    with Interruption() as interruption:
        measured = measure_run(ctx, options, plan, interruption)
    show(measured, options)
    raise typer.Exit(interruption.exit_code or exit_code(measured))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTarget:
    """The engine that is simulated: what it is made of and what its steps cost."""

    config: EngineConfig
    profile: Profile

    @property
    def model(self) -> str:
        return self.profile.model or self.config.model

    @property
    def context_tokens(self) -> int | None:
        return self.config.max_model_len

    def facts(self) -> dict[str, Any]:
        """What the manifest says of it."""
        import msgspec

        from reference_engine.cost import as_facts

        config: dict[str, Any] = msgspec.to_builtins(self.config)
        return {
            "kind": "simulated engine",
            "model": self.model,
            "engine": {"policy": self.config.policy, "config": config},
            "cost": as_facts(self.profile),
            "context_tokens": self.context_tokens,
            "alive_at_end": True,
        }


def simulated_target(options: RunOptions) -> SimulatedTarget:
    """Turn the flags of the reference engine into a configuration; UsageError says what does not fit."""
    from reference_engine.config import ConfigError, DoorConfig, EngineConfig
    from reference_engine.cost import parse_cost
    from reference_engine.policies import make_policy

    try:
        profile = parse_cost(options.cost)
        given = {
            "kv_tokens": options.kv_tokens,
            "max_batch": options.max_batch,
            "chunk_tokens": options.chunk_tokens,
        }
        stated = {name: value for name, value in given.items() if value is not None}
        knobs = parse_knobs(options.knob)
        rules: dict[str, Any] = {n: v for n, v in knobs.items() if n in field_names(DoorConfig)}
        settings = {SETTINGS[n]: v for n, v in knobs.items() if n in SETTINGS}
        rest = {n: v for n, v in knobs.items() if n not in rules and n not in SETTINGS}
        values: dict[str, Any] = {**profile.engine, **stated, **settings}
        config = EngineConfig(policy=options.policy, knobs=rest, door=DoorConfig(**rules), **values)
        make_policy(config)
    except ConfigError as exc:
        raise UsageError(str(exc)) from exc
    return SimulatedTarget(config=config, profile=profile)


def measure_simulated(ctx: typer.Context, options: RunOptions, plan: Plan, interruption: Interruption) -> Run:
    """Simulate the plan into a new run folder, and judge it like a measured one."""
    from loadgen.measurement import conclude
    from loadgen.store import RunFolder

    target = simulated_target(options)
    plan = fit_to_context(plan, options, target)
    folder = RunFolder.create(options.out, options.name)
    try:
        _record(ctx, options, plan, folder, target, interruption)
    except BaseException:
        if not (folder.path / "requests.parquet").exists():
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return conclude(folder)


def _record(
    ctx: typer.Context,
    options: RunOptions,
    plan: Plan,
    folder: RunFolder,
    target: SimulatedTarget,
    interruption: Interruption,
) -> None:
    import msgspec

    from loadgen.cli.run import describe, show_reach
    from loadgen.environment import describe_environment
    from loadgen.store import cannot_write
    from loadgen.virtual import VirtualRows
    from reference_engine.cost import as_facts
    from reference_engine.simulation_log import open_logs

    show_reach(ctx, options)
    facts: dict[str, Any] = {
        **describe(ctx, options, plan, target.facts()),
        "run_id": folder.run_id,
        "plan_digest": plan.digest(),
        "plan": {"num_requests": len(plan), "span_s": plan.span_s, **plan.source},
        "environment": describe_environment(),
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    folder.write_plan(plan)
    folder.write_manifest({**facts, "status": "running"})
    metadata = {
        "block_tokens": str(target.config.block_tokens),
        "config": msgspec.json.encode(target.config).decode(),
        "cost": msgspec.json.encode(as_facts(target.profile)).decode(),
        "epoch_ns": "0",
    }
    cost = target.profile.cost
    steps, request_log = open_logs(folder.path, cost, metadata)
    rows = VirtualRows(folder.path, plan)
    listener = Recorder(folder.run_id, rows, request_log, target.profile.outbound_ns)
    try:
        _run(options, plan, target, listener, steps, interruption)
        for log in (rows, steps, request_log):
            log.close()
    except OSError as exc:
        raise RunFolderError(cannot_write(folder.path, exc)) from exc
    status = "interrupted" if interruption.exit_code is not None else "complete"
    folder.compact_requests(plan, reason="the run was stopped before this request was due")
    ended = datetime.now(UTC).isoformat(timespec="milliseconds")
    folder.write_manifest({**facts, "ended": ended, "status": status})


def _run(
    options: RunOptions,
    plan: Plan,
    target: SimulatedTarget,
    listener: Recorder,
    steps: Any,
    interruption: Interruption,
) -> None:
    from loadgen.drive.dispatch import ClosedSchedule, OpenSchedule, split_plan
    from reference_engine.simulate import Delays, Simulation

    profile = target.profile
    (share,) = split_plan(plan, 1)
    schedule = (
        OpenSchedule(share, 0, options.max_in_flight)
        if options.concurrency is None
        else ClosedSchedule(share, 0, options.concurrency)
    )
    simulation = Simulation(
        target.config,
        profile.cost,
        plan,
        schedule,
        listener,
        steps=steps,
        patience=_patience(options),
        delays=Delays(inbound_ns=profile.inbound_ns, outbound_ns=profile.outbound_ns),
    )
    gc.disable()  # nothing here forms a cycle, and to look for some takes a sixth of the time
    try:
        simulation.run(interruption.stop.is_set)
    finally:
        gc.enable()


def _patience(options: RunOptions) -> Patience:
    from reference_engine.simulate import Patience

    return Patience(
        first_token_ns=round(options.first_token_timeout * 1e9),
        total_ns=round(options.timeout * 1e9),
        drain_ns=round(options.drain_timeout * 1e9),
    )


class Recorder:
    """Passes on what happened to each request: to the engine's rows, and later to those of the client."""

    def __init__(self, run_id: str, rows: VirtualRows, request_log: RequestLog, outbound_ns: int) -> None:
        self._run_id = run_id
        self._rows = rows
        self._request_log = request_log
        self._outbound_ns = outbound_ns
        self._in_flight: dict[int, tuple[int, int]] = {}

    def sent(self, row: int, scheduled_ns: int, sent_ns: int) -> None:
        self._in_flight[row] = scheduled_ns, sent_ns

    def completed(self, sequence: Sequence, account: Account) -> None:
        row = sequence.handle
        self._rows.append(row, *self._in_flight.pop(row), account.stamps, delay_ns=self._outbound_ns)
        sequence.request_id = f"{self._run_id}-{row}"
        self._request_log.append(sequence, account)

    def failed(self, sequence: Sequence, failure: Failure, at_ns: int, stamps_ps: list[int]) -> None:
        from loadgen.records import Outcome

        row = sequence.handle
        self._rows.append(
            row,
            *self._in_flight.pop(row),
            stamps_ps,
            delay_ns=self._outbound_ns,
            ended_ns=at_ns + self._outbound_ns,
            outcome=Outcome(failure.outcome),
            error=failure.error,
            http_status=failure.http_status,
        )
