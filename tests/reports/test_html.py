from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path

import pytest

from reports import canvas
from reports.figures import FIGURES
from reports.html import render_run
from reports.pages import script_digest, template_text
from reports.subject import Subject
from tests.reports.browser import CHROMIUM, look_at, take_screenshot
from tests.reports.reading import PageReader
from tests.reports.synthetic import Story, make_run, write_server_metrics

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}"
STORIES = {
    "plain": Story(has_account=True),
    "failures": Story(num_requests=200, failure_share=0.3, error=HOSTILE, model=HOSTILE),
    "only-failures": Story(num_requests=40, failure_share=1.0, has_engine=False),
    "three": Story(num_requests=3),
    "one": Story(num_requests=1),
    "bursts": Story(num_requests=200, tokens_a_read=3),
    "interrupted": Story(num_requests=200, status="interrupted", cancel_after=120),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("runs")
    return {name: render_run(make_run(out / name, story)) for name, story in STORIES.items()}


@pytest.mark.parametrize("name", STORIES)
def test_a_page_is_well_formed_and_needs_no_network(pages: dict[str, str], name: str) -> None:
    page = PageReader(pages[name])
    links = page.attributes("href") + page.attributes("src") + page.attributes("xlink:href")
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert page.tags("script", "link", "iframe", "object") == ["script"]
    policy = page.attributes("content")[1]
    assert policy.startswith("default-src 'none'")
    assert script_digest(template_text("explore.js")) in policy
    assert "@import" not in pages[name]
    assert pages[name].count("url(") == pages[name].count("url(#")
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert set(" ".join(page.attributes("aria-labelledby")).split()) <= set(ids)


@pytest.mark.parametrize("name", STORIES)
def test_headings_step_down_one_at_a_time(pages: dict[str, str], name: str) -> None:
    levels = [int(tag[1]) for tag in PageReader(pages[name]).tags("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_checks_find_a_broken_page() -> None:
    with pytest.raises(AssertionError):
        PageReader("<main><p>text</main>")


def test_the_verdict_comes_first_and_the_order_is_fixed(pages: dict[str, str]) -> None:
    text = PageReader(pages["plain"]).text
    landmarks = [
        "VALID",
        "half of the requests",
        "Over the ok requests",
        "Figure 1.",
        "What sets the slowest 1 % apart",
        "The slowest first tokens",
        "Failures",
        "How to repeat it",
        "Raw summary",
    ]
    positions = [text.index(landmark) for landmark in landmarks]
    assert positions == sorted(positions)


def test_every_figure_stands_in_the_page_with_words(pages: dict[str, str]) -> None:
    page = PageReader(pages["plain"])
    figures = [str(attributes["id"]) for tag, attributes in page.elements if tag == "figure"]
    expected = [f"figure-{name}" for name in FIGURES if name != "server"]
    assert figures == expected
    assert page.tags("svg", "desc", "figcaption").count("desc") == len(expected)
    assert all(attributes.get("role") == "img" for tag, attributes in page.elements if tag == "svg")


def test_a_server_that_tells_its_queue_has_a_figure(tmp_path: Path) -> None:
    run = make_run(tmp_path, Story(num_requests=30, has_engine=False))
    assert FIGURES["server"].render(Subject.of(run)) is None
    write_server_metrics(run.path)
    svg = FIGURES["server"].render(Subject.of(run))
    assert svg is not None
    assert b"waiting" in svg


def test_hostile_words_are_inert(pages: dict[str, str]) -> None:
    page = PageReader(pages["failures"])
    assert page.tags("script", "img") == ["script"]
    assert HOSTILE in page.text
    assert "49" not in {part.strip() for part in page.text.split("alert(2)>")}


def test_the_slowest_requests_are_named(pages: dict[str, str]) -> None:
    text = PageReader(pages["three"]).text
    table = text[text.index("The slowest first tokens") : text.index("Failures")]
    assert {"0", "1", "2"} <= set(table.split())
    assert table.count("sent, no first token") == 3
    assert "waiting for a slot in the batch" in PageReader(pages["plain"]).text
    assert "The slowest first tokens" not in PageReader(pages["only-failures"]).text


def test_only_failures_are_said_to_be_that(pages: dict[str, str]) -> None:
    text = PageReader(pages["only-failures"]).text
    assert "none of 40 requests succeeded: no latency was measured" in text
    assert "40 of 40 scheduled requests did not succeed" in text
    assert "http_status 503" in text


def test_an_interrupted_run_is_marked(pages: dict[str, str]) -> None:
    text = PageReader(pages["interrupted"]).text
    assert "INVALID" in text
    assert "interrupted" in text


def test_the_raw_summary_can_be_read_and_downloaded(pages: dict[str, str]) -> None:
    page = PageReader(pages["plain"])
    link = next(href for href in page.attributes("href") if href.startswith("data:application/json;base64,"))
    summary = json.loads(base64.b64decode(link.partition(",")[2]))
    assert summary["counts"]["scheduled"] == 600
    assert json.dumps(summary, indent=2) in page.text


def test_figures_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    subject = Subject.of(make_run(tmp_path, Story(num_requests=50)))
    for name in ("latency_cdf", "gaps"):
        assert FIGURES[name].render(subject) == FIGURES[name].render(subject)


@pytest.mark.parametrize(("size", "width_inches"), [("column", 3.5), ("page", 7)])
def test_a_figure_as_a_file_is_as_wide_as_asked_and_brings_its_type(
    tmp_path: Path, size: str, width_inches: float
) -> None:
    subject = Subject.of(make_run(tmp_path, Story(num_requests=50)))
    svg, pdf, png = (
        FIGURES["latency_cdf"].render(subject, kind, size) or b"" for kind in ("svg", "pdf", "png")
    )
    assert f'width="{72 * width_inches:g}pt"'.encode() in svg
    assert b"<text" not in svg
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf
    assert int.from_bytes(png[16:20], "big") == 300 * width_inches


def test_page_colours_follow_the_theme() -> None:
    svg = f'<svg viewBox="0 0 1 1"><path style="fill: {canvas.BLUE}"/><path style="fill: #123456"/></svg>'
    inline = canvas.inline_svg(svg, "name", "title <", "words")
    assert f"fill: var(--blue, {canvas.BLUE})" in inline
    assert "fill: #123456" in inline
    assert "title &lt;" in inline


def test_ten_thousand_requests_fit_in_a_page(tmp_path: Path) -> None:
    page = render_run(make_run(tmp_path, Story(num_requests=10_000, rate_per_s=300, has_account=True)))
    assert len(page.encode()) < 1_500_000


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("name", STORIES)
def test_a_browser_shows_the_page(pages: dict[str, str], name: str) -> None:
    for seen in look_at(pages[name], (1280, 390)):
        assert seen.scroll_width <= seen.client_width
        assert seen.outside == []
        assert seen.overlaps == []
        assert seen.fetched == []
        assert seen.console == []
        assert len(seen.figures) == pages[name].count("<figure ")


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_browser_sees_overlap_overflow_and_fetches() -> None:
    texts = '<text y="20">first</text><text x="9" y="22">second</text>'
    page = f"""<body><figure id="f"><svg viewBox="0 0 200 200">{texts}</svg></figure>
      <div class="wide" style="width: 900px">wide</div><img src="http://far.test/dot.png" alt=""></body>"""
    (seen,) = look_at(page, (390,))
    assert seen.overlaps == ["f: first / second"]
    assert "DIV.wide" in seen.outside
    assert seen.scroll_width > seen.client_width
    assert seen.fetched == ["http://far.test/dot.png"]
    assert any("ERR_NAME_NOT_RESOLVED" in line for line in seen.console)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("is_dark", [False, True])
def test_light_and_dark_differ(pages: dict[str, str], is_dark: bool, tmp_path: Path) -> None:
    from matplotlib.image import imread

    take_screenshot(pages["three"], 600, tmp_path / "page.png", is_dark=is_dark)
    corner = imread(tmp_path / "page.png")[2, 2, :3]
    assert (corner.max() < 0.2) if is_dark else (corner.min() > 0.9)
