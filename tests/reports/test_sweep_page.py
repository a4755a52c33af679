from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import RunFolderError
from reports.figure_spec import draw_all
from reports.sweep_figures import SWEEP_FIGURES
from reports.sweep_page import render_sweep
from tests.reports.browser import CHROMIUM, look_at
from tests.reports.reading import PageReader

CAPACITY_PER_S = 40.0
METRICS = ("ttft_s", "itl_s", "tpot_s", "e2e_s")


def point(rate: float, *, is_stable: bool = True, reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    """One rate at a server whose latency grows as 1 / (1 - load)."""
    wait_s = 0.02 / max(1 - rate / CAPACITY_PER_S, 0.02)
    latency = {"p50": wait_s, "p90": 2.5 * wait_s, "p99": 5 * wait_s}
    intervals = {"p50": [0.9 * wait_s, 1.1 * wait_s], "p99": None}
    return {
        "rate_per_s": rate,
        "folder": f"20260131T120000Z-rate-{rate:g}",
        "status": "invalid" if reasons else "valid",
        "reasons": list(reasons),
        "is_stable": is_stable,
        "offered_per_s": rate,
        "ok_per_s": min(rate, CAPACITY_PER_S),
        "output_tokens_per_s": 38 * min(rate, CAPACITY_PER_S),
        "goodput_per_s": min(rate, 30.0) if is_stable else 5.0,
        "failed": 0 if is_stable else 12,
        "latency": dict.fromkeys(METRICS, latency),
        "intervals": dict.fromkeys(METRICS, intervals),
    }


def sweep_of(
    points: list[dict[str, Any]], low: float | None, high: float | None, sentence: str
) -> dict[str, Any]:
    saturation = {"stable_per_s": low, "unstable_per_s": high, "sentence": sentence}
    return {"schema_version": 1, "saturation": saturation, "points": points}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    points = [point(rate) for rate in (5.0, 10.0, 20.0, 30.0)]
    points += [point(35.0, reasons=("client_late",)), point(45.0, is_stable=False)]
    sweep = sweep_of(points, 30.0, 45.0, "saturation lies between 30 requests/s and 45 requests/s")
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    report = tmp_path / points[0]["folder"] / "report.html"
    report.parent.mkdir()
    report.write_text("<p>report</p>")
    return tmp_path


def test_the_page_says_where_it_saturates_and_links_the_runs(folder: Path) -> None:
    page = PageReader(render_sweep(folder))
    assert "Saturation lies between 30 requests/s and 45 requests/s." in page.text
    links = [href for href in page.attributes("href") if not href.startswith(("data:", "#"))]
    assert links == ["20260131T120000Z-rate-5/report.html"]
    assert (folder / links[0]).exists()
    assert page.outward_links() == []
    assert "client_late" in page.text
    assert "unstable, 12 failed" in page.text
    figures = [attributes["id"] for tag, attributes in page.elements if tag == "figure"]
    assert figures == [f"figure-{name}" for name in SWEEP_FIGURES]


def test_a_sweep_of_one_rate_and_one_of_failures_are_drawn() -> None:
    alone = sweep_of([point(5.0)], 5.0, None, "the backlog did not grow at any rate")
    assert len(draw_all(SWEEP_FIGURES, alone)) == 3
    failed = point(5.0)
    for name in METRICS:
        failed["latency"][name] = failed["intervals"][name] = {}
    drawn = draw_all(SWEEP_FIGURES, sweep_of([failed], None, None, "nothing"))
    assert [figure.name for figure in drawn] == ["achieved"]


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_shows_the_sweep(folder: Path) -> None:
    for seen in look_at(render_sweep(folder), (1280, 390)):
        assert seen.scroll_width <= seen.client_width
        assert seen.outside == []
        assert seen.overlaps == []
        assert seen.fetched == []
        assert seen.console == []
        assert len(seen.figures) == len(SWEEP_FIGURES)


def test_a_document_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"cannot read .*sweep\.json"):
        render_sweep(tmp_path)
