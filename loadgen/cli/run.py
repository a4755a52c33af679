from __future__ import annotations
import typer
from loadgen.cli.options import RunOptions, origins, takes_options

@takes_options
def run(ctx: typer.Context, options: RunOptions) -> None:
    """x"""
    print(options, origins(ctx))
