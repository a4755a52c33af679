"""Commands that make several runs: one folder for all of them, and one run after the other inside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cli.options import RunOptions
from loadgen.cli.plans import make_plan
from loadgen.cli.run import measure_run

if TYPE_CHECKING:
    from rich.console import Console

    from loadgen.cli.signals import Interruption
    from loadgen.store import Run
    from workloads import Plan


def plain_options(options: RunOptions, **changes: Any) -> RunOptions:
    """The flags of a single run out of those of a command that makes several."""
    values = {item.name: getattr(options, item.name) for item in fields(RunOptions)}
    return RunOptions(**{**values, "json": False, "repeat": None, **changes})


def make_folder(options: RunOptions, kind: str) -> Path:
    """Make `<out>/<UTC time>-<name>/`, which will hold one folder a run; `kind` where no name was given."""
    from loadgen.store import new_folder

    return new_folder(options.out, kind if options.name == "run" else options.name)


def measure_one(
    ctx: typer.Context, options: RunOptions, interruption: Interruption, plan: Plan | None = None
) -> Run:
    """Measure one run of several; a server of ours that died does not stop those after it."""
    try:
        measured = measure_run(ctx, options, plan or make_plan(options), interruption)
    except BaseException:
        with suppress(OSError):  # what was refused leaves no folder behind; one that holds runs stays
            options.out.rmdir()
        raise
    if interruption.exit_code is None:
        interruption.stop.clear()
    return measured


def write_document(folder: Path, name: str, document: Mapping[str, Any]) -> None:
    """Write what is known so far: a series that is cut short keeps it."""
    from loadgen.store import write_json

    write_json(folder / name, document)


def show_series(
    document: Mapping[str, Any],
    options: RunOptions,
    show: Callable[[Mapping[str, Any], Console], None],
    folder: Path | None = None,
    runs: Sequence[Path] = (),
) -> None:
    """Print what several runs say, what they were made on and where they are; with --json one document.

    folder: of the series; None where finished `runs` are told of, which lie where they lay.
    """
    if options.json:
        place = {} if folder is None else {"folder": str(folder)}
        typer.echo(json.dumps({**document, **place}, allow_nan=False))
        return
    from rich.console import Console

    from reports.origin import print_origin

    console = Console()
    show(document, console)
    print_origin(runs if folder is None else [folder], console)
    if folder is not None:
        typer.echo(f"data      {folder}\nnext      bench report {folder}")


def with_seed(options: RunOptions, replicate: int) -> RunOptions:
    """The flags of a replicate: each has a seed of its own, counted from the one given."""
    return replace(options, seed=options.seed + replicate)
