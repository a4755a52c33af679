"""Draw the pictures of docs/images from a run: `python -m tests.reports.screenshots RUN FOLDER`."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from loadgen.store import Run, load
from reports.html import render_run
from reports.terminal import print_summary
from tests.reports.browser import look_at, take_screenshot

WIDTHS = (1280, 390)


def draw_page(run: Run, folder: Path) -> list[Path]:
    """Screenshots of the whole page, wide and narrow, light and dark."""
    page = render_run(run)
    drawn = []
    for seen in look_at(page, WIDTHS):
        for theme in ("light", "dark"):
            target = folder / f"report-{seen.client_width}-{theme}.png"
            take_screenshot(page, seen.client_width, target, height=seen.height, is_dark=theme == "dark")
            drawn.append(target)
    return drawn


def draw_terminal(run: Run, folder: Path) -> Path:
    """The summary as an SVG of a terminal, with fonts that every reader has."""
    console = Console(record=True, width=80, force_terminal=True, file=io.StringIO())
    print_summary(run, console)
    svg = console.export_svg(title=f"bench run: {run.path.name}")
    target = folder / "summary.svg"
    target.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL), encoding="utf-8")
    return target


if __name__ == "__main__":
    shown, place = load(Path(sys.argv[1])), Path(sys.argv[2])
    for path in [*draw_page(shown, place), draw_terminal(shown, place)]:
        print(path)
