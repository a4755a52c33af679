"""The pages of several runs: what they say, what they link, what they escape."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.errors import RunFolderError
from loadgen.measure.replicates import read_document
from reports.compare import print_comparison
from reports.figure_spec import draw_all
from reports.series import render_series
from reports.sweep import print_sweep
from reports.sweep_figures import sweep_figures
from tests.reports.documents import (
    METRICS,
    sweep_of,
    sweep_point,
    write_capacity,
    write_comparison,
    write_repeat,
    write_sweep,
)
from tests.reports.reading import PageReader
from tests.reports.test_exports import read_tables

FIGURES = ("latency_throughput", "latency_rate", "achieved")


def page_of(folder: Path, file_format: str = "html") -> str:
    files = render_series(folder, file_format)
    assert files is not None
    return files[f"report.{file_format}"].decode()


def test_a_sweep_says_where_it_saturates_and_links_the_runs(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    page = PageReader(page_of(tmp_path))
    assert "Saturation lies between 30 requests/s and 45 requests/s; knee at 35 requests/s." in page.text
    assert "1 of 6 measurements cannot be trusted" in page.text
    links = [href for href in page.attributes("href") if not href.startswith(("data:", "#"))]
    assert links == ["20260131T120000Z-rate-5/report.html"]
    assert (tmp_path / links[0]).exists()
    assert page.outward_links() == []
    assert "client_late" in page.text
    assert "unstable, 12 failed" in page.text
    figures = [attributes["id"] for tag, attributes in page.elements if tag == "figure"]
    assert figures == [f"figure-{name}" for name in FIGURES]


def test_an_undecided_rate_is_neither_steady_nor_unstable() -> None:
    points = [sweep_point(5.0), sweep_point(20.0, is_stable=None), sweep_point(45.0, is_stable=False)]
    sweep = sweep_of(points, 5.0, 45.0, "saturation lies between")
    assert len(draw_all(sweep_figures(sweep), sweep)) == 3
    captions = " ".join(figure.caption for figure in sweep_figures(sweep).values())
    assert "half-filled" in captions
    assert "half-filled" not in " ".join(
        figure.caption for figure in sweep_figures(sweep_of(points[::2], 5.0, 45.0, "")).values()
    )
    console = Console(record=True, width=200, file=io.StringIO())
    print_sweep(sweep, console)
    told = console.export_text()
    assert (told.count("undecided"), told.count("unstable")) == (1, 1)


def test_a_sweep_of_one_rate_and_one_of_failures_are_drawn() -> None:
    alone = sweep_of([sweep_point(5.0)], 5.0, None, "the backlog did not grow at any rate")
    assert len(draw_all(sweep_figures(alone), alone)) == 3
    failed = sweep_point(5.0)
    for name in METRICS:
        failed["latency"][name] = failed["intervals"][name] = {}
    nothing = sweep_of([failed], None, None, "nothing")
    drawn = draw_all(sweep_figures(nothing), nothing)
    assert [figure.name for figure in drawn] == ["achieved"]


def test_a_document_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"cannot read .*sweep\.json"):
        page_of(tmp_path)


def test_a_capacity_says_its_answer_and_every_run(tmp_path: Path) -> None:
    write_capacity(tmp_path)
    html = page_of(tmp_path)
    assert "between 18.2 and 20.1 requests/s" in html
    assert html.count('<th scope="row">') == 11
    assert "backlog grows" in html
    assert PageReader(html).outward_links() == []


def test_a_comparison_says_its_verdicts_and_escapes_names(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    html = page_of(tmp_path)
    assert "base → &lt;new&gt;" in html
    assert "<new>" not in html
    assert '<span class="badge worse">WORSE</span>' in html
    assert "+12.0 %" in html
    assert "7 paired seeds, sign-flip p = 0.008 (Holm 0.016)" in html
    assert "left out: run-a: client_late" in html
    assert "No pair of valid runs" in html


def test_many_arms_are_parted_into_tables_that_fit(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    document = read_document(tmp_path / "compare.json")
    arm = document["sides"][0]
    names = [f"policy-{number}-of-nine" for number in range(9)]
    document |= {"sides": [{**arm, "name": name} for name in names], "num_planned": 0}
    console = Console(file=io.StringIO(), width=80)
    print_comparison(document, console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line.split() for line in lines if line.startswith("figure")]
    assert len(heads) > 1
    assert [name for head in heads for name in head[1:]] == names


def test_a_repeat_says_its_interval_and_which_run_is_left_out(tmp_path: Path) -> None:
    write_repeat(tmp_path)
    page = PageReader(page_of(tmp_path))
    assert "Over 4 valid runs the TTFT p99 is 110 ms, with 95 % confidence 90.0 ms to 130 ms." in page.text
    assert "4 of 5 measurements can be trusted" in page.text
    assert "ttft.p99 <= 200 ms held in 4 of 4 valid runs." in page.text
    assert "INVALID client_late" in " ".join(page.text.split())
    assert page.tags("figure") == ["figure"]


def test_one_run_has_no_interval_and_no_figure(tmp_path: Path) -> None:
    write_repeat(tmp_path, num_runs=1)
    page = PageReader(page_of(tmp_path))
    assert "one run has no interval" in page.text
    assert page.tags("figure") == []


@pytest.mark.parametrize("write", [write_sweep, write_capacity, write_comparison, write_repeat])
def test_markdown_holds_the_same_tables(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    text = page_of(tmp_path, "md")
    found = [row for table in read_tables(text) for row in table[1:]]
    page = " ".join(PageReader(page_of(tmp_path)).text.split())
    assert len(found) == len(PageReader(page_of(tmp_path)).rows())
    assert all(cell in page for row in found for cell in row)
    assert "<new>" not in text.replace("\\<", "")


def test_the_figures_of_a_series_are_files_too(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    files = render_series(tmp_path, "pdf", "page")
    assert files is not None
    assert set(files) == {f"{name}.pdf" for name in FIGURES}
    assert all(content.startswith(b"%PDF") for content in files.values())
    assert render_series(tmp_path, "csv") is None


def test_another_folder_has_no_page(tmp_path: Path) -> None:
    assert render_series(tmp_path) is None
