from __future__ import annotations

from pathlib import Path

import pytest

from reports.index import render_index
from tests.reports.browser import CHROMIUM, look_at
from tests.reports.documents import write_capacity
from tests.reports.reading import PageReader
from tests.reports.synthetic import Story, make_run

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    stories = {
        "20260131T110000Z-good": Story(num_requests=60),
        "20260131T120000Z-cut": Story(num_requests=60, status="interrupted", cancel_after=30, model=HOSTILE),
        "20260131T130000Z-lost": Story(num_requests=5),
        "20260131T140000Z-other": Story(num_requests=5),
    }
    for name, story in stories.items():
        make_run(out / "made" / name, story).path.rename(out / name)
    (out / "20260131T110000Z-good" / "report.html").write_text("<p>report</p>")
    (out / "20260131T130000Z-lost" / "summary.json").unlink()
    (out / "20260131T140000Z-other" / "manifest.json").write_text("{}")
    (out / "20260131T150000Z-capacity").mkdir()
    write_capacity(out / "20260131T150000Z-capacity")
    return out


def test_runs_are_listed_newest_first_with_their_verdicts(runs: Path) -> None:
    page = PageReader(render_index(runs))
    names = ["150000Z-capacity", "140000Z-other", "130000Z-lost", "120000Z-cut", "110000Z-good"]
    positions = [page.text.index(name) for name in names]
    assert positions == sorted(positions)
    assert "INVALID interrupted" in " ".join(page.text.split())
    assert "no summary yet" in page.text
    assert "CAPACITY ttft.p99 <= 500ms holds up to" in " ".join(page.text.split())
    assert "carries no schema_version" in page.text


def test_only_a_run_with_a_report_is_linked(runs: Path) -> None:
    page = PageReader(render_index(runs))
    assert page.attributes("href") == ["20260131T110000Z-good/report.html"]
    assert (runs / page.attributes("href")[0]).exists()
    assert page.outward_links() == []


def test_a_hostile_model_name_is_inert(runs: Path) -> None:
    page = PageReader(render_index(runs))
    assert page.tags("script") == ["script"]
    assert HOSTILE in page.text


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_shows_the_list(runs: Path) -> None:
    for seen in look_at(render_index(runs), (1280, 390)):
        assert seen.scroll_width <= seen.client_width
        assert seen.outside == []
        assert seen.fetched == []
        assert seen.console == []
