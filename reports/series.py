"""What tells of a folder of several runs, as a page or as Markdown: the document that lies in it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from reports.pages import SeriesPage

PAGES = {
    "sweep.json": ("reports.sweep_page", "describe_sweep"),
    "capacity.json": ("reports.capacity_page", "describe_capacity"),
    "compare.json": ("reports.compare_page", "describe_comparison"),
    "repeat.json": ("reports.repeat_page", "describe_runs"),
}
DOCUMENTS = ("study.json", *PAGES)


def render_series(folder: Path, file_format: Literal["html", "md"] = "html") -> str | None:
    """Return the page of a study, a sweep, a capacity, a comparison or a repeat; None for other folders."""
    if (folder / "study.json").exists():
        from reports.study import render_study_markdown
        from reports.study_page import render_study

        return render_study(folder) if file_format == "html" else render_study_markdown(folder)
    for document, (module, function) in PAGES.items():
        if (folder / document).exists():
            page: SeriesPage = getattr(import_module(module), function)(folder)
            return page.render() if file_format == "html" else page.render_markdown()
    return None
