"""The page templates, in the package: what comes from outside is escaped, nothing is left undefined.

Decides what a table of a page is; every page kind fills `page.html`, those of several runs `series.html`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.measure.replicates import read_document
from reports import facts
from reports.export.markdown import escape, table
from reports.figure_spec import FigureSpec, draw_all, files_of
from reports.origin import Origin

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of more than text: a link, and a verdict before the text."""

    text: str
    link: str = ""
    badge: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of numbers; each row begins with its name. texts: columns of words, which start at the left.

    facts: what is said beneath it, each with its name. One that holds nothing is left out of the page.
    """

    heading: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | Cell]] = ()
    note: str = ""
    texts: frozenset[int] = frozenset()
    facts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPage:
    """The page of several runs: verdict, sentence, tables, figures of its document, further tables."""

    kind: str
    folder: Path
    badge: str
    claim: str
    answer: str
    notes: Sequence[str]
    before: Sequence[Table]
    figures: Mapping[str, FigureSpec[Any]]
    after: Sequence[Table]
    document: Mapping[str, Any]

    def render(self) -> str:
        """Return the page, complete in itself."""
        raw = json.dumps(self.document, indent=2, ensure_ascii=False, allow_nan=False)
        name, origin = self.folder.resolve().name, Origin.of([self.folder])
        return page_template("series.html").render(
            page=self,
            claim=self._claim(origin),
            origin=origin.facts,
            name=name,
            figures=draw_all(self.figures, self.document),
            raw=raw,
            data_link=data_link(raw),
            command=self._command(),
        )

    def render_figures(self, file_format: str, size: str) -> dict[str, bytes]:
        """Return the figures that there is data for as files by name."""
        return files_of(self.figures, self.document, file_format, size)

    def render_markdown(self) -> str:
        """Return verdict, answer and tables for a document or a step summary."""
        origin = Origin.of([self.folder])
        blocks = [f"## {self.badge}: {escape(self.folder.resolve().name)}", escape(self._claim(origin))]
        made_on = [f"{fact}: {text}" for fact, text in origin.facts]
        blocks += [escape(text) for text in (self.answer, *self.notes, *made_on)]
        for shown in (*self.before, *self.after):
            head = [escape(column) for column in shown.columns]
            rows = [[escape(_plain(cell)) for cell in row] for row in shown.rows]
            said = [f"- {escape(name)}: {escape(text)}" for name, text in shown.facts]
            parts = [
                escape(shown.note),
                table(head, rows) if rows else "",
                "\n".join(said),
            ]
            if any(parts):
                blocks += [f"### {escape(shown.heading)}", *parts]
        return "\n\n".join(block for block in blocks if block) + "\n"

    def _claim(self, origin: Origin) -> str:
        """What the badge stands for; of a valid simulation that it is one."""
        if not origin.simulated:
            return self.claim
        return origin.simulated if self.badge == "VALID" else f"{self.claim}; {origin.simulated}"

    def _command(self) -> str:
        """The command that made the runs, as the first of them keeps it; empty where they lie elsewhere."""
        first = next(iter(sorted(self.folder.glob("*/manifest.json"))), None)
        return facts.command(read_document(first)) if first else ""


def _plain(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else f"{cell.badge} {cell.text}".strip()


def run_link(folder: Path, run: str, text: str) -> Cell:
    """A cell that leads to the page of a run inside the folder, where that page was written."""
    has_report = (folder / run / "report.html").exists()
    return Cell(text=text, link=f"{run}/report.html" if has_report else "")


def template_text(name: str) -> str:
    """Return a file of the templates folder."""
    return resources.files("reports").joinpath("templates", name).read_text(encoding="utf-8")


def data_link(text: str) -> str:
    """Return a link that holds a JSON text itself."""
    return "data:application/json;base64," + base64.b64encode(text.encode()).decode()


def script_digest(script: str) -> str:
    """Return what a content security policy calls a script: no other may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def page_template(name: str) -> Template:
    """Return a template, ready to render."""
    from jinja2 import Environment, StrictUndefined
    from jinja2.loaders import FunctionLoader

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(template_text),
    )
    script = template_text("explore.js")
    environment.globals |= {
        "css": template_text("page.css"),
        "script": script,
        "digest": script_digest(script),
    }
    return environment.get_template(name)
