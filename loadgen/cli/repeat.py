"""`bench run --repeat R`: one question asked R times, each with a seed of its own; intervals over runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from loadgen.cli.plans import make_plan
from loadgen.cli.several import (
    make_folder,
    measure_one,
    plain_options,
    show_series,
    with_seed,
    write_document,
)
from loadgen.cli.signals import Interruption
from loadgen.errors import EXIT_INVALID, EXIT_OK

if TYPE_CHECKING:
    from loadgen.cli.options import RunOptions
    from loadgen.measure.replicates import Replicate


def run_repeatedly(ctx: typer.Context, options: RunOptions) -> int:
    """Make the runs, print their figures with intervals, and return the exit code."""
    from loadgen.measure.replicates import DOCUMENT, Replicate, describe_repeat

    assert options.repeat is not None
    plans = [make_plan(with_seed(options, number)) for number in range(options.repeat)]
    folder = make_folder(options, "repeat")
    base = replace(plain_options(options), out=folder)
    found: list[Replicate] = []
    with Interruption() as interruption:
        for number, plan in enumerate(plans):
            one = replace(with_seed(base, number), name=f"seed-{options.seed + number}")
            found.append(Replicate.of(measure_one(ctx, one, interruption, plan)))
            write_document(folder, DOCUMENT, describe_repeat(found))
            if interruption.exit_code is not None:
                break
    document = describe_repeat(found)
    from reports.repeat import print_repeat

    show_series(document, options, print_repeat, folder)
    is_valid = not any(replicate.reasons for replicate in found)
    return interruption.exit_code or (EXIT_OK if is_valid else EXIT_INVALID)
