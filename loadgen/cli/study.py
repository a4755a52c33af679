"""`bench study`: what is said about schedulers, put to the test; one folder of runs, one table of verdicts.

Simulated arms run beside each other, a process for each processor; whatever is timed on this machine runs
alone after them. Each run is made by `bench run` with the flags that the report shows.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.cli.options import RunOptions, read_toml
from loadgen.cli.serve import require_engine
from loadgen.cli.several import make_folder, write_document
from loadgen.cli.signals import Interruption
from loadgen.errors import EXIT_OK, TargetError, UsageError

if TYPE_CHECKING:
    from loadgen.study.model import Conducted, Experiment, Outcome

SMALLER = 4  # --quick: a run has this many times fewer requests,
TURNS = 8  # but enough to replace those in flight so often
CURVE = "decode-curve"
POLL_S = 0.5


def study(
    only: Annotated[
        str | None, typer.Option(help="Experiments, by name: static,cap,causes.", metavar="NAME,...")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="More experiments on the torch engine.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A quarter of the requests and one seed: a look, not a verdict.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and prompts.", min=0)] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder under which the study's folder is made.", metavar="DIR")
    ] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the study as one JSON document.")] = False,
) -> None:
    """Measure what is said about schedulers: each claim, what was measured, and whether it holds."""
    from loadgen.environment import describe_environment
    from loadgen.study.catalogue import experiments
    from loadgen.study.document import DOCUMENT, describe_study

    refuse_settings(Path("bench.toml"))
    chosen = choose(only, live=live)
    if quick:
        chosen = [smaller(experiment) for experiment in chosen]
    folder = make_folder(RunOptions(out=out), "study")
    facts: dict[str, Any] = {
        "command": shlex.join(["bench", *sys.argv[1:]]),
        "seed": seed,
        "is_quick": quick,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": describe_environment(),
    }
    conducted: list[Conducted] = []
    with Interruption() as interruption:
        for one in conduct(chosen, folder, seed, interruption.stop):
            conducted.append(one)
            typer.echo(f"{one.experiment.name}: {one.skipped or f'{len(one.outcomes)} runs'}", err=True)
    in_order = [one for name in experiments() for one in conducted if one.experiment.name == name]
    document = describe_study(in_order, {**facts, "ended": datetime.now(UTC).isoformat(timespec="seconds")})
    write_document(folder, DOCUMENT, document)
    show(document, folder, as_json=as_json)
    raise typer.Exit(interruption.exit_code or EXIT_OK)


def refuse_settings(path: Path) -> None:
    """What a study runs is fixed: it reads no settings, and does not pass over those meant for it."""
    if path.is_file() and "study" in read_toml(path):
        raise UsageError(f"{path}: study is a table; bench study takes its settings from flags alone")


def choose(only: str | None, *, live: bool) -> list[Experiment]:
    """Return the experiments asked for, or all; those marked as extra only where `live` or a name asks."""
    from loadgen.study.catalogue import experiments

    known = experiments()
    if only is None:
        return [one for one in known.values() if live or not one.is_extra]
    names = list(dict.fromkeys(name.strip() for name in only.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no experiment {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in names]


def smaller(experiment: Experiment) -> Experiment:
    """The same experiment with fewer requests, a shorter warm-up and one seed."""
    from msgspec.structs import replace

    def fewer(arm: str) -> str:
        flags = experiment.command(arm)
        in_flight = int(found[1]) if (found := re.search(r"--concurrency (\d+)", flags)) else 1
        flags = re.sub(r"--warmup (\d+)s", lambda m: f"--warmup {int(m[1]) / SMALLER:g}s", flags)
        return re.sub(
            r"--requests (\d+)",
            lambda m: f"--requests {min(int(m[1]), max(int(m[1]) // SMALLER, TURNS * in_flight))}",
            flags,
        )

    return replace(experiment, flags="", arms={arm: fewer(arm) for arm in experiment.arms}, num_seeds=1)


def conduct(
    experiments: Sequence[Experiment], folder: Path, seed: int, stop: threading.Event
) -> Iterator[Conducted]:
    """Run all arms, simulated ones first; yield each experiment when its last run has ended, or at `stop`."""
    from loadgen.drive.limits import usable_cpus

    timed = [one for one in experiments if one.kind != "simulated"]
    for group, num_processes in (
        ([one for one in experiments if one.kind == "simulated"], len(usable_cpus())),
        (timed, 1),
    ):
        pool = ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn"), prepare_worker)
        try:
            pending = [(one, submit(one, pool, folder, seed)) for one in group if not stop.is_set()]
            for one, futures in pending:
                yield gather(one, futures, stop)
        finally:
            pool.shutdown(cancel_futures=True)


def prepare_worker() -> None:
    """Let Ctrl-C stop the run in this process and not the process between two runs; end with the study."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_parent, daemon=True).start()


def submit(
    experiment: Experiment, pool: ProcessPoolExecutor, folder: Path, seed: int
) -> list[Future[list[Outcome]]]:
    """Hand the runs of an experiment to the pool: every arm of a seed, then the next seed."""
    if experiment.kind == "device":
        return [pool.submit(measure_curve, folder)]
    common = ["--out", str(folder), "--quiet", "--config", os.devnull]
    return [
        pool.submit(
            run_arm,
            arm,
            [
                *shlex.split(experiment.command(arm)),
                *("--seed", str(seed + number), "--name", folder_name(experiment, arm)),
                *common,
            ],
            seed + number,
        )
        for number in range(experiment.num_seeds)
        for arm in experiment.arms
    ]


def folder_name(experiment: Experiment, arm: str) -> str:
    """A name for the run folders of an arm: letters, digits and dashes."""
    return f"{experiment.name}-{re.sub('[^a-z0-9]+', '-', arm.lower()).strip('-')}"


def gather(
    experiment: Experiment, futures: Sequence[Future[list[Outcome]]], stop: threading.Event
) -> Conducted:
    """Wait for the runs of an experiment; one that cannot be made skips it, with the reason."""
    from loadgen.errors import BenchError
    from loadgen.study.model import Conducted

    outcomes: list[Outcome] = []
    try:
        for future in futures:
            while not (stop.is_set() or future.done()):
                wait([future], timeout=POLL_S)
            if future.done() and not future.cancelled():
                outcomes += future.result()
    except BenchError as exc:
        for future in futures:
            future.cancel()
        return Conducted(experiment=experiment, skipped=str(exc))
    return Conducted(experiment=experiment, outcomes=outcomes, skipped="" if outcomes else "interrupted")


def run_arm(arm: str, words: list[str], seed: int) -> list[Outcome]:
    """Make one run in this process, as `bench run` does; nothing where it was interrupted."""
    from loadgen.cli import app
    from loadgen.cli.plans import make_plan
    from loadgen.cli.run import measure_run
    from loadgen.study.figures import read_figures
    from loadgen.study.model import Outcome

    sys.argv[1:] = ["run", *words]  # this process is the run's own: its manifest says how to repeat it
    group: Any = typer.main.get_command(app)
    ctx = group.commands["run"].make_context("bench run", list(words))
    options = RunOptions(**ctx.params)
    if not options.simulate:
        require_engine()
    with Interruption() as interruption:
        run = measure_run(ctx, options, make_plan(options), interruption)
    if interruption.exit_code is not None:
        return []
    assert run.summary is not None
    reasons = tuple(reason["code"] for reason in run.summary["verdict"]["reasons"])
    return [Outcome(arm=arm, seed=seed, folder=run.path.name, figures=read_figures(run), reasons=reasons)]


def measure_curve(folder: Path) -> list[Outcome]:
    """Have the engine package measure the decode curve of this device, and keep what it says."""
    from loadgen.study.device import outcomes_of
    from loadgen.study.document import CURVE_COMMAND

    require_engine()
    command = [sys.executable, *shlex.split(CURVE_COMMAND)[1:]]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise TargetError(f"the decode curve could not be measured: {ended.stderr.strip().splitlines()[-1]}")
    document = json.loads(ended.stdout)
    (folder / CURVE).mkdir()
    write_document(folder / CURVE, "curve.json", document)
    return outcomes_of(document, CURVE)


def show(document: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    """Write the report beside the runs, and print the table."""
    from rich.console import Console

    from reports.study import print_study
    from reports.study_page import render_study

    (folder / "report.html").write_text(render_study(folder), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({**document, "folder": str(folder)}, allow_nan=False))
        return
    print_study(document, str(folder), Console())
