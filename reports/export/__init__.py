"""A run in the format that was asked for: `render_files` gives names and bytes; one module a format."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.store import Run

FILE_NAMES = {"html": "report.html", "md": "report.md", "csv": "requests.csv", "perfetto": "trace.json"}
FIGURE_FORMATS = ("svg", "pdf", "png")
FORMATS = (*FILE_NAMES, *FIGURE_FORMATS)


def render_files(run: Run, file_format: str, size: str = "column") -> dict[str, bytes]:
    """Return the files of a format by name: one for a document, one a figure for svg, pdf and png.

    size: of the figures, `column` or `page`.
    """
    if file_format in FIGURE_FORMATS:
        from reports.figure_spec import files_of
        from reports.figures import FIGURES
        from reports.subject import Subject

        return files_of(FIGURES, Subject.of(run), file_format, size)
    return {FILE_NAMES[file_format]: _render_document(run, file_format).encode()}


def _render_document(run: Run, file_format: str) -> str:
    match file_format:
        case "html":
            from reports.html import render_run

            return render_run(run)
        case "md":
            from reports.export.markdown import render_markdown

            return render_markdown(run)
        case "csv":
            from reports.export.csv import render_csv

            return render_csv(run)
        case "perfetto":
            from reports.export.perfetto import render_perfetto

            return render_perfetto(run)
    raise AssertionError(f"{file_format} is not one of {FORMATS}")
