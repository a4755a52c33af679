"""`bench report`: what a run says, as a page, a document, a table, a trace or figures; or a list of runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from loadgen.errors import UsageError


class ReportFormat(StrEnum):
    """What to write; svg, pdf and png give one file a figure."""

    HTML = "html"
    MD = "md"
    CSV = "csv"
    PERFETTO = "perfetto"
    SVG = "svg"
    PDF = "pdf"
    PNG = "png"


class FigureSize(StrEnum):
    """How wide a figure is drawn: a column of two, or the page."""

    COLUMN = "column"
    PAGE = "page"


def report(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Run, sweep, capacity, comparison (default: the newest under ./runs), or folder of runs.",
            metavar="RUN",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write (figures: a folder); default: report.html in the run folder.",
        ),
    ] = None,
    file_format: Annotated[
        ReportFormat, typer.Option("--format", help="What to write; perfetto opens in ui.perfetto.dev.")
    ] = ReportFormat.HTML,
    size: Annotated[FigureSize, typer.Option(help="Width of svg, pdf and png figures.")] = FigureSize.COLUMN,
) -> None:
    """Write one self-contained HTML page about a run, or the same in another format."""
    from reports.export import FIGURE_FORMATS, render_files
    from reports.series import DOCUMENTS, render_series

    is_of_a_run = file_format in (ReportFormat.CSV, ReportFormat.PERFETTO)
    folder = run or newest(Path("runs"), "manifest.json", *(() if is_of_a_run else DOCUMENTS))
    is_run = (folder / "manifest.json").exists()
    files = render_series(folder, file_format.value, size.value)
    if files is None and not is_run and folder.is_dir():
        if file_format is not ReportFormat.HTML:
            raise UsageError(f"--format {file_format.value} is for one run; {folder} is a folder of several")
        if any(folder.glob("*/manifest.json")):
            from reports.index import render_index

            files = {"index.html": render_index(folder).encode()}
    if files is None:
        from loadgen.store import load

        files = render_files(load(folder), file_format.value, size.value)
    if file_format.value in FIGURE_FORMATS:
        place = output or folder / "figures"
        for name, content in files.items():
            typer.echo(write(place / name, content))
        return
    ((name, content),) = files.items()
    typer.echo(write(output or folder / name, content))


def write(path: Path, content: bytes | str) -> Path:
    """Write a file and the folders above it; UsageError says why where it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as exc:
        raise UsageError(f"cannot write {path}: {exc.strerror}") from exc
    return path


def newest(out: Path, *documents: str) -> Path:
    """Return the newest folder under `out` that holds one of the documents; folders are named by UTC time."""
    folders = sorted(path.parent for document in documents for path in out.glob(f"*/{document}"))
    if not folders:
        raise UsageError(f"no run folder under {out}/: give one, or measure first with bench run --rate 20")
    return folders[-1]
