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


def require_device(name: str) -> None:
    """Refuse a device of the reference engine that is not there."""
    from reference_engine.config import ConfigError
    from reference_engine.devices import choose_device

    try:
        choose_device(name)
    except ConfigError as exc:
        raise UsageError(str(exc)) from exc


def serve(ctx: typer.Context) -> None:
    """Start the reference engine as an OpenAI-compatible server."""
    require_engine()
    from reference_engine.server import main

    raise typer.Exit(main(ctx.args))
