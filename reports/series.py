"""Which page tells of a folder of several runs: the one of the document that lies in it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

PAGES = {
    "study.json": ("reports.study_page", "render_study"),
    "sweep.json": ("reports.sweep_page", "render_sweep"),
    "capacity.json": ("reports.capacity_page", "render_capacity"),
    "compare.json": ("reports.compare_page", "render_comparison"),
    "repeat.json": ("reports.repeat_page", "render_repeat"),
}


def render_series(folder: Path) -> str | None:
    """Return the page of a study, a sweep, a capacity, a comparison or a repeat; None for other folders."""
    for document, (module, function) in PAGES.items():
        if (folder / document).exists():
            return str(getattr(import_module(module), function)(folder))
    return None
