"""`bench report`: one self-contained HTML page from a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadgen.errors import UsageError


def report(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder (default: the newest under ./runs).", metavar="RUN")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="HTML file (default: report.html in the run folder)."),
    ] = None,
) -> None:
    """Write one self-contained HTML page about a run."""
    from loadgen.store import load
    from reports.html import render_run

    loaded = load(run or newest_run(Path("runs")))
    path = output or loaded.path / "report.html"
    html = render_run(loaded)
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"cannot write {path}: {exc.strerror}") from exc
    typer.echo(path)


def newest_run(out: Path) -> Path:
    """Return the newest run folder under `out`; folders are named by UTC time."""
    folders = sorted(path.parent for path in out.glob("*/manifest.json"))
    if not folders:
        raise UsageError(f"no run folder under {out}/: give one, or measure first with bench run --rate 20")
    return folders[-1]
