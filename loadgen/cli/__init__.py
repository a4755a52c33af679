"""The command line: `bench COMMAND`. This module only wires commands together and ends the process.

Commands live in modules of their own and import what they need when they run, so that `bench --help` and
a load-generating machine stay light.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from loadgen.cli import (
    capacity,
    check,
    compare,
    doctor,
    report,
    run,
    runs,
    serve,
    simulate,
    study,
    sweep,
    workload,
)
from loadgen.errors import EXIT_INTERRUPTED, EXIT_USAGE, BenchError

WrongUsage: type[Exception] = typer.BadParameter.__mro__[1]  # typer carries its own copy of click
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}  # the server reads its own flags

app = typer.Typer(
    name="bench",
    help="What latency does an LLM server give at a given rate, and why?",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("run")(run.run)
app.command("serve", add_help_option=False, context_settings=PASS_ON)(serve.serve)
app.command("simulate")(simulate.simulate)
app.command("sweep")(sweep.sweep)
app.command("capacity")(capacity.capacity)
app.command("compare")(compare.compare)
app.command("check")(check.check)
app.command("study")(study.study)
app.command("report")(report.report)
app.add_typer(workload.app, name="workload")
app.add_typer(runs.app, name="runs")
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")
) -> None:
    if version:
        from importlib.metadata import version as installed_version

        typer.echo(installed_version("bench"))
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(EXIT_USAGE)


def build() -> Any:
    """Return the click command tree, each flag also readable from `BENCH_<FLAG>`."""
    group = typer.main.get_command(app)
    _read_environment(group)
    return group


def _read_environment(command: Any) -> None:
    for inner in getattr(command, "commands", {}).values():
        _read_environment(inner)
        for parameter in inner.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                parameter.envvar = f"BENCH_{parameter.name.upper()}"
                parameter.show_envvar = False
                parameter.envvar_list_splitter = "\n"  # of several values: a header holds blanks


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process; a foreseen problem is one line on stderr and an exit code."""
    try:
        code = build().main(arguments, prog_name="bench", standalone_mode=False)
    except BenchError as exc:
        _tell(str(exc))
        code = exc.exit_code
    except WrongUsage as exc:
        where, parameter = getattr(exc, "ctx", None), getattr(exc, "param", None)
        source = where.get_parameter_source(parameter.name) if where and parameter else None
        if source is not None and source.name == "ENVIRONMENT":
            exc.param_hint = parameter.envvar  # type: ignore[attr-defined, union-attr]
        message = exc.format_message()  # type: ignore[attr-defined]
        _tell(message + (f" (see {where.command_path} --help)" if where else ""))
        code = EXIT_USAGE
    except (typer.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _tell(message: str) -> None:
    """Print one line; what a server says must not move the cursor."""
    print("bench:", re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", message), file=sys.stderr)
