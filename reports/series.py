"""What tells of a folder of several runs, as a page or as Markdown: the document that lies in it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from reports.export import FIGURE_FORMATS
from reports.pages import SeriesPage

PAGES = {
    "sweep.json": ("reports.sweep_page", "describe_sweep"),
    "capacity.json": ("reports.capacity_page", "describe_capacity"),
    "compare.json": ("reports.compare_page", "describe_comparison"),
    "repeat.json": ("reports.repeat_page", "describe_runs"),
}
DOCUMENTS = ("study.json", *PAGES)


def render_series(folder: Path, file_format: str = "html", size: str = "column") -> dict[str, bytes] | None:
    """Return the files by name that tell of a series in a format.

    None where the folder holds no series, or the format is for one run alone.
    """
    if (folder / "study.json").exists():
        from reports.study import render_study_markdown
        from reports.study_page import render_study

        study = {"html": render_study, "md": render_study_markdown}.get(file_format)
        return {f"report.{file_format}": study(folder).encode()} if study else None
    for document, (module, function) in PAGES.items():
        if (folder / document).exists():
            page: SeriesPage = getattr(import_module(module), function)(folder)
            return _files(page, file_format, size)
    return None


def _files(page: SeriesPage, file_format: str, size: str) -> dict[str, bytes] | None:
    if file_format in FIGURE_FORMATS:
        return page.render_figures(file_format, size)
    texts = {"html": page.render, "md": page.render_markdown}
    return {f"report.{file_format}": texts[file_format]().encode()} if file_format in texts else None
