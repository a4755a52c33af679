"""`bench doctor --aa`: equal arms; what they differ by is the noise floor of this machine."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cli.options import RunOptions
from loadgen.cli.signals import Interruption
from loadgen.errors import EXIT_INVALID, UsageError

if TYPE_CHECKING:
    from loadgen.cli.compare import Comparing

DEFAULT_FLAGS = "--rate 10 --duration 20s"
DOCUMENT = "noise.json"


def measure_noise(ctx: typer.Context, flags: str, num_pairs: int, *, as_json: bool) -> None:
    """Run pairs of equal arms, write down what they differ by, and print it."""
    from loadgen.cli.compare import CompareOptions, LiveArm, run_arms
    from loadgen.cli.run import check_flags
    from loadgen.cli.several import write_document
    from loadgen.measure.baseline import MIN_PAIRS_OF_NOISE
    from loadgen.measure.compare import Rule

    if num_pairs < MIN_PAIRS_OF_NOISE:
        raise UsageError(f"--pairs {num_pairs}: noise needs {MIN_PAIRS_OF_NOISE} pairs or more")
    base = parse_flags(ctx, flags or DEFAULT_FLAGS)
    check_flags(base)
    values = {item.name: getattr(base, item.name) for item in fields(RunOptions)}
    options = CompareOptions(**{**values, "repeat": num_pairs, "name": "aa"})
    arms = (LiveArm(name="a", changes={}), LiveArm(name="b", changes={}))
    with Interruption() as interruption:
        comparing = run_arms(ctx, options, base, arms, Rule(), interruption)
    document = describe(comparing, flags or DEFAULT_FLAGS)
    if document is None:
        typer.echo(f"too few valid pairs to tell the noise: see {comparing.folder}", err=True)
        raise typer.Exit(interruption.exit_code or EXIT_INVALID)
    write_document(base.out, DOCUMENT, document)
    show(document, base.out / DOCUMENT, as_json=as_json)
    if interruption.exit_code is not None:
        raise typer.Exit(interruption.exit_code)


def parse_flags(ctx: typer.Context, flags: str) -> RunOptions:
    """Read flags as `bench run` does."""
    try:
        words = shlex.split(flags)
    except ValueError as exc:
        raise UsageError(f"--run {flags!r}: {exc}") from exc
    assert ctx.parent is not None
    command: Any = ctx.parent.command
    return RunOptions(**command.commands["run"].make_context("bench run", words).params)


def describe(comparing: Comparing, flags: str) -> dict[str, Any] | None:
    """The content of noise.json; None with too few valid pairs."""
    import numpy as np

    from loadgen.environment import describe_environment
    from loadgen.measure.baseline import MIN_PAIRS_OF_NOISE, describe_noise
    from loadgen.stats.arms import single_pair_noise

    (comparison,) = comparing.compare()["comparisons"]
    if comparison["num_pairs"] < MIN_PAIRS_OF_NOISE:
        return None
    floors = {
        figure["name"]: single_pair_noise(np.log(np.array(figure["ratios"])))
        for figure in comparison["figures"]
    }
    document = describe_noise(floors, comparison["num_pairs"], describe_environment()["machine"])
    return {**document, "flags": flags, "folder": str(comparing.folder)}


def show(document: dict[str, Any], path: Path, *, as_json: bool) -> None:
    """Print the floors: no margin of a gate can be narrower."""
    if as_json:
        typer.echo(json.dumps(document, allow_nan=False))
        return
    typer.echo(f"two equal runs differ by chance by up to (95 %, {document['num_pairs']} pairs):")
    for name, floor in document["floors"].items():
        typer.echo(f"  {name:<14} {100 * floor:6.1f} %")
    typer.echo(
        f"bench check refuses a narrower margin; R pairs make it sqrt(R) times narrower. Kept in {path}"
    )
