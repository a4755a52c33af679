from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from junitparser import Error, Failure, JUnitXml
from markdown_it import MarkdownIt

from loadgen.measure.assertions import AssertionResult, Decision, parse_assertion
from loadgen.store import Run
from reports.export.csv import render_csv
from reports.export.gate import render_junit
from reports.export.markdown import escape, render_markdown
from reports.export.perfetto import render_perfetto
from tests.reports.synthetic import Story, make_run

HOSTILE = "| <b>bold</b>\n# @everyone [link](x) `code` *"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    story = Story(num_requests=80, failure_share=0.2, error=HOSTILE, has_account=True)
    return make_run(tmp_path_factory.mktemp("runs"), story)


def test_csv_holds_every_scalar_of_every_row(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(render_csv(run))))
    frame = run.requests
    assert len(rows) == len(frame) == 80
    assert [int(row["index"]) for row in rows] == frame["index"].tolist()
    assert [row["outcome"] for row in rows] == frame["outcome"].tolist()
    first_tokens = [int(row["first_token_ns"]) if row["first_token_ns"] else None for row in rows]
    assert first_tokens == run.rows.read(["first_token_ns"]).column(0).to_pylist()
    assert HOSTILE in {row["error"] for row in rows}
    assert "chunk_ns" not in rows[0]


def read_tables(markdown: str) -> list[list[list[str]]]:
    """Read a document with another program, as GitHub's tables; cells as plain text."""
    tables: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type == "inline" and token.level == 4:
            words = [child.content for child in token.children or [] if child.type != "softbreak"]
            tables[-1][-1].append("".join(words))
    return tables


def test_markdown_tables_read_back(run: Run) -> None:
    text = render_markdown(run)
    rates, latency, failures = read_tables(text)
    assert all(len(row) == len(table[0]) for table in (rates, latency, failures) for row in table)
    assert rates[0][:2] == ["offered", "sent"]
    assert [row[0].split(" (")[0] for row in latency[1:]] == [
        "TTFT",
        "ITL",
        "TPOT",
        "E2E",
        "send lag",
        "recv lag",
    ]
    assert sum(int(row[0]) for row in failures[1:]) == int((run.requests["outcome"] != "ok").sum())
    assert text.startswith("## VALID: ")


def test_hostile_words_are_inert_in_markdown(run: Run) -> None:
    text = render_markdown(run)
    assert "<b>" not in text.replace("\\<", "")
    assert "@everyone" not in text
    assert escape("a_b") == "a\\_b"


@pytest.fixture(scope="module")
def events(run: Run) -> list[dict[str, Any]]:
    document = json.loads(render_perfetto(run))
    assert document["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def test_trace_events_keep_the_rules_of_the_format(events: list[dict[str, Any]]) -> None:
    assert {event["ph"] for event in events} == {"M", "b", "e", "C", "X"}
    timed = [event for event in events if event["ph"] != "M"]
    assert all(event["ts"] >= 0 and event["pid"] and event["name"] for event in timed)
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert all(event["dur"] >= 0 for event in timed if event["ph"] == "X")
    assert all(
        isinstance(value, int | float)
        for event in timed
        if event["ph"] == "C"
        for value in event["args"].values()
    )


def test_async_slices_nest_and_close(events: list[dict[str, Any]], run: Run) -> None:
    open_slices: dict[tuple[str, int], list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] == "b":
            open_slices[event["cat"], event["id"]].append(event["name"])
        elif event["ph"] == "e":
            assert open_slices[event["cat"], event["id"]].pop() == event["name"]
    assert len(open_slices) == 2 * len(run.requests)
    assert not any(open_slices.values())


def test_steps_do_not_overlap_on_their_track(events: list[dict[str, Any]], run: Run) -> None:
    steps = [event for event in events if event["ph"] == "X"]
    assert run.steps is not None
    assert len(steps) == len(run.steps)
    # Microseconds as doubles: a nanosecond of rounding is no overlap.
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(steps))


def events_of(events: list[dict[str, Any]], category: str, index: int) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == category and event.get("id") == index]


def test_the_engine_tells_of_a_request_that_it_evicted(events: list[dict[str, Any]]) -> None:
    mine = events_of(events, "engine request", 9)
    told = [event["name"] for event in mine if event["ph"] == "b"][1:]
    assert told == ["waiting", "prefill", "decode", "evicted", "prefill", "decode"]
    assert mine[0]["args"]["own_ns"] > 0


def test_the_timeline_of_a_small_run_is_as_it_should_be(
    tmp_path: Path, check_golden: Callable[[str, str], None]
) -> None:
    small = make_run(tmp_path, Story(num_requests=2, rate_per_s=5, has_account=True, seed=4))
    trace = render_perfetto(small)
    check_golden("trace.json", trace.replace("},{", "},\n{") + "\n")


def test_junit_reads_back() -> None:
    said = ["pass", "fail", "invalid", "undecided"]
    results = [
        AssertionResult(
            assertion=parse_assertion("ttft.p99 < 400ms"),
            decision=Decision(name),
            value=0.5,
            interval=None,
            message=f"seen \x1b <{name}>",
        )
        for name in said
    ]
    (suite,) = JUnitXml.fromstring(render_junit(results, "run & co").encode())
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 1, 2, 0)
    found = [[type(result) for result in case.result] for case in suite]
    assert found == [[], [Failure], [Error], [Error]]
    assert [case.classname for case in suite] == ["run & co"] * 4
    assert "<fail>" in next(iter(list(suite)[1].result)).text
    assert "measure longer" in next(iter(list(suite)[3].result)).message


def test_a_request_keeps_its_times(events: list[dict[str, Any]], run: Run) -> None:
    row = run.requests[run.requests["outcome"] == "ok"].iloc[0]
    mine = events_of(events, "request", int(row["index"]))
    assert mine[0]["ts"] * 1e3 == pytest.approx(row["scheduled_ns"])
    assert mine[-1]["ts"] * 1e3 == pytest.approx(row["done_ns"])
    phases = [event["name"] for event in mine if event["ph"] == "b"][1:]
    assert phases == ["due, not sent", "waiting for the first token", "streaming", "closing"]
    assert mine[0]["args"]["outcome"] == "ok"
