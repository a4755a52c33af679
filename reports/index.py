"""A list of the runs and series under a folder, newest first: one self-contained page that finds them again.

Reads manifests, summaries and the documents of series only, never rows, so that a thousand runs are listed in
seconds. A folder that cannot be read is listed as that, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.measure.replicates import read_document
from reports import words
from reports.origin import describe_series, what_was_measured
from reports.pages import page_template
from reports.quantities import DASH, format_number, format_percent, format_time
from reports.series import DOCUMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One line of the list; `link` is relative to the list's folder."""

    name: str
    link: str
    verdict: str
    codes: str
    target: str
    cells: list[str]


CELL_NAMES = ("offered", "ok", "TTFT p50", "TTFT p99", "ITL p50", "E2E p99")


def render_index(out: Path) -> str:
    """Return the page that lists every folder of a run or a series directly under `out`."""
    listed = [_list_run(path.parent) for path in out.glob("*/manifest.json")]
    listed += [_list_series(path) for document in DOCUMENTS for path in out.glob(f"*/{document}")]
    return page_template("index.html").render(
        name=out.resolve().name,
        cell_names=CELL_NAMES,
        runs=sorted(listed, key=lambda run: run.name, reverse=True),
    )


def _link(folder: Path) -> str:
    return f"{folder.name}/report.html" if (folder / "report.html").exists() else ""


def _list_series(path: Path) -> ListedRun:
    """List a sweep, a capacity, ... by its kind and, where it is one, its sentence."""
    from loadgen.errors import RunFolderError

    folder = path.parent
    try:
        document = read_document(path)
        found = document.get("sentence") or (document.get("saturation") or {}).get("sentence", "")
    except RunFolderError as exc:
        found = str(exc)
    return ListedRun(
        name=folder.name,
        link=_link(folder),
        verdict=path.stem.upper(),
        codes=words.printable(found),
        target=describe_series(folder),
        cells=[],
    )


def _list_run(folder: Path) -> ListedRun:
    from loadgen.errors import RunFolderError
    from loadgen.store import load

    link = _link(folder)
    try:
        run = load(folder)
        summary = run.summary
    except RunFolderError as exc:
        return ListedRun(
            name=folder.name, link=link, verdict="unreadable", codes=str(exc), target="", cells=[]
        )
    return ListedRun(
        name=folder.name,
        link=link,
        verdict=words.status(summary) if summary else str(run.manifest["status"]),
        codes=words.codes(summary) if summary else "no summary yet",
        target=what_was_measured(run.manifest),
        cells=_cells(summary) if summary else [],
    )


def _cells(summary: dict[str, Any]) -> list[str]:
    counts, metrics = summary["counts"], summary["metrics"]
    share = counts["ok"] / counts["scheduled"] if counts["scheduled"] else None
    shown = [(metrics.get(name) or {}).get(statistic) for name, statistic in _SHOWN]
    offered = summary["rates"].get("offered_per_s")
    return [
        DASH if offered is None else f"{format_number(offered)} /s",
        format_percent(share),
        *map(format_time, shown),
    ]


_SHOWN = (("ttft_s", "p50"), ("ttft_s", "p99"), ("itl_s", "p50"), ("e2e_s", "p99"))
