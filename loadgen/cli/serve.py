"""`bench serve`: the reference engine as an OpenAI-compatible server, in the foreground."""

from __future__ import annotations

import importlib.util

import typer

from loadgen.errors import UsageError

HOW_TO_ADD_ENGINE = (
    "pip install '.[engine]' in the checkout adds it (torch), or measure a server of yours with --target URL"
)


def require_engine() -> None:
    """Refuse in one line where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"the reference engine is not installed: {HOW_TO_ADD_ENGINE}")


def serve(ctx: typer.Context) -> None:
    """Start the reference engine as an OpenAI-compatible server."""
    require_engine()
    from reference_engine.server import main

    raise typer.Exit(main(ctx.args))
