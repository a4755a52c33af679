"""Every kind of page, made by the installed wheel and opened in a browser from disk.

Nothing of the working tree is on the path of the process that renders: a template, script or font that the
wheel lacks shows here. The page is then read and used as a reader would.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.loadgen.test_attribution import bench
from tests.reports.browser import CHROMIUM, Browser, shared_browser
from tests.reports.documents import write_capacity, write_comparison, write_repeat, write_sweep
from tests.reports.synthetic import Story, make_run, write_server_metrics

ROOT = Path(__file__).parents[2]
WIDTHS = (1280, 390)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def write_run(folder: Path) -> Path:
    return make_run(folder, Story(has_account=True)).path


def write_run_of_another_server(folder: Path) -> Path:
    run = make_run(folder, Story(num_requests=100, has_engine=False, failure_share=0.2))
    write_server_metrics(run.path)
    return run.path


def write_runs(folder: Path) -> None:
    for number in range(3):
        make_run(folder / "made", Story(num_requests=20)).path.rename(folder / f"20260131T12000{number}Z-run")


def write_study(folder: Path) -> Path:
    assert bench("study", "--only", "static,padding", "--quick", "--out", str(folder)) == 0
    (study,) = folder.iterdir()
    return study


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of page: who writes its folder or one inside, and how many figures it has."""

    write: Callable[[Path], Path | None]
    num_figures: int


KINDS = {
    "run": Kind(write=write_run, num_figures=13),
    "run-of-another-server": Kind(write=write_run_of_another_server, num_figures=11),
    "sweep": Kind(write=write_sweep, num_figures=3),
    "capacity": Kind(write=write_capacity, num_figures=1),
    "compare": Kind(write=write_comparison, num_figures=3),
    "repeat": Kind(write=write_repeat, num_figures=1),
    "study": Kind(write=write_study, num_figures=1),
    "index": Kind(write=write_runs, num_figures=0),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product as a wheel puts it there, from a copy of its source."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("loadgen", "workloads", "reports", "reference_engine"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    if find_spec("setuptools"):  # else pip fetches it
        pip.append("--no-build-isolation")
    subprocess.run([*pip, "--target", target, source], check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def pages(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("folders")
    script = "import reports, loadgen.cli; print(reports.__file__); loadgen.cli.main()"
    for name, kind in KINDS.items():
        (out / name).mkdir()
        folder = kind.write(out / name) or out / name
        command = [sys.executable, "-c", script, "report", str(folder), "-o", f"{name}.html"]
        environment = {**os.environ, "PYTHONPATH": str(site)}
        told = subprocess.run(command, check=True, cwd=out, env=environment, capture_output=True, text=True)
        assert told.stdout.splitlines() == [str(site / "reports" / "__init__.py"), f"{name}.html"]
    return {name: out / f"{name}.html" for name in KINDS}


@pytest.fixture
def browser() -> Browser:
    return shared_browser()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("has_script", [True, False])
def test_a_page_opens_whole(
    pages: dict[str, Path], browser: Browser, name: str, width: int, has_script: bool
) -> None:
    browser.open(pages[name], width, has_script=has_script)
    seen = browser.look()
    assert seen.console == []
    assert seen.fetched == []
    assert seen.scroll_width <= seen.client_width
    assert seen.outside == []
    assert seen.overlaps == []
    assert len(seen.figures) == KINDS[name].num_figures


def place_of(browser: Browser, figure: str) -> tuple[float, float, float, float]:
    """Left, top, width and height of a figure's drawing in the window."""
    box = f"document.querySelector('#figure-{figure} svg').getBoundingClientRect()"
    browser.evaluate(f"document.querySelector('#figure-{figure}').scrollIntoView()")
    left, top, width, height = browser.evaluate(f"(b => [b.left, b.top, b.width, b.height])({box})")
    return left, top, width, height


def told(browser: Browser, figure: str) -> str:
    text = browser.evaluate(f"document.querySelector('#figure-{figure} .readout').innerText")
    return " ".join(str(text).split())


def test_the_cursor_tells_values(pages: dict[str, Path], browser: Browser) -> None:
    browser.open(pages["sweep"], 1280)
    left, top, width, height = place_of(browser, "achieved")
    assert told(browser, "achieved") == "offered ok goodput"
    browser.drag((left + width / 2, top + height / 2))
    words = told(browser, "achieved").split()
    # Below saturation what was offered is what was achieved and met its objectives.
    at = float(words[-1])
    assert 15 < at < 30
    assert [float(words[i]) for i in (1, 3, 5)] == pytest.approx([at] * 3, rel=0.01)


def test_a_drag_zooms_all_figures_of_one_time_axis_and_escape_shows_all(
    pages: dict[str, Path], browser: Browser
) -> None:
    browser.open(pages["run"], 1280)
    before = {name: labels(browser, name) for name in ("load", "engine", "latency_cdf")}
    left, top, width, height = place_of(browser, "load")
    middle = top + height / 3
    browser.drag((left + 0.5 * width, middle), (left + 0.6 * width, middle), (left + 0.7 * width, middle))
    zoomed = {name: labels(browser, name) for name in before}
    assert zoomed["load"] != before["load"]
    assert zoomed["engine"] == zoomed["load"]
    assert zoomed["latency_cdf"] == before["latency_cdf"]
    shown = [float(text) for text in zoomed["load"]]
    assert 13 < min(shown) < max(shown) < 23
    browser.press("Escape")
    assert {name: labels(browser, name) for name in before} == before
    assert browser.console() == []


def labels(browser: Browser, figure: str) -> list[str]:
    """The x axis of a figure as a reader sees it."""
    shown = f"""[...document.querySelectorAll('#figure-{figure} svg g')].filter(g =>
      /xtick/.test(g.id) || g.hasAttribute('transform')).map(g => g.querySelector(':scope text'))
      .filter(t => t && t.getBoundingClientRect().width).map(t => t.textContent)"""
    found = browser.evaluate(shown)
    return list(dict.fromkeys(str(text) for text in found if str(text).strip()))


def test_a_series_is_taken_away_by_keyboard(pages: dict[str, Path], browser: Browser) -> None:
    browser.open(pages["run"], 1280)
    button = "document.querySelector('#figure-latency_cdf .series')"
    width = "document.querySelector('#figure-latency_cdf [id*=series]').getBoundingClientRect().width"
    assert browser.evaluate(f"{button}.focus(), {width}") > 100
    browser.press("Enter")
    assert browser.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    assert browser.evaluate(width) == 0


def test_arrows_move_the_cursor(pages: dict[str, Path], browser: Browser) -> None:
    browser.open(pages["run"], 390)
    browser.evaluate("document.querySelector('#figure-load svg').focus()")
    browser.press("ArrowRight")
    first = told(browser, "load")
    browser.press("ArrowRight")
    assert first != told(browser, "load")
    assert "in flight" in first


def test_a_foreign_script_does_not_run(pages: dict[str, Path], browser: Browser) -> None:
    page = pages["run"].read_text(encoding="utf-8")
    browser.open(page.replace("</main>", "<script>document.title = 'taken'</script></main>"), 1280)
    assert browser.evaluate("document.title") != "taken"
    assert any("Content Security Policy" in line for line in browser.console())
