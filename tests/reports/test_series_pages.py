"""The pages of a capacity and of a comparison: what they say, what they escape, how a browser sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reports.capacity_page import render_capacity
from reports.compare_page import render_comparison
from tests.reports.browser import CHROMIUM, look_at
from tests.reports.reading import PageReader


def capacity_point(
    rate: float, replicate: int, margin: float | None, *, is_probe: bool = False
) -> dict[str, Any]:
    return {
        "rate_per_s": rate,
        "replicate": replicate,
        "is_probe": is_probe,
        "seed": replicate,
        "folder": f"rate-{rate:g}",
        "reasons": [],
        "is_stable": margin is not None,
        "failed": 0,
        "requests": 300,
        "figures": {"ttft.p99": None if margin is None else 0.5 * 2.718**margin},
        "margin": margin,
        "passes": margin is not None and margin <= 0,
    }


@pytest.fixture
def capacity(tmp_path: Path) -> Path:
    points = [capacity_point(rate, 0, -2 + rate / 10, is_probe=True) for rate in (2.0, 4.0, 8.0, 16.0, 32.0)]
    points += [capacity_point(18.0 + r, r, -0.1 + 0.05 * r) for r in range(5)]
    points.append(capacity_point(40.0, 0, None))
    document = {
        "schema_version": 1,
        "sentence": "ttft.p99 <= 500ms holds up to a rate between 18.2 and 20.1 requests/s",
        "answer": "interval",
        "capacity": {"low_per_s": 18.2, "high_per_s": 20.1},
        "limits": {"ttft.p99": {"limit": 0.5, "unit": "s"}},
        "num_requests": 3300,
        "points": points,
    }
    (tmp_path / "capacity.json").write_text(json.dumps(document))
    return tmp_path


def figure(name: str, change: str, ratio: float, *, is_primary: bool) -> dict[str, Any]:
    return {
        "name": name,
        "is_primary": is_primary,
        "change": change,
        "base": 0.2,
        "other": 0.2 * ratio,
        "ratio": ratio,
        "interval": [ratio * 0.97, ratio * 1.03],
        "p": 0.008,
        "p_adjusted": 0.016,
        "ratios": [ratio * (0.94 + 0.02 * i) for i in range(7)],
        "num_planned": 9,
    }


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    run = {"folder": "run-a", "seed": 3, "plan_digest": "abc", "reasons": ["client_late"]}
    document = {
        "schema_version": 1,
        "rule": {"margin": 0.02, "detect": 0.05},
        "comparisons": [
            {
                "base": "base",
                "arm": "<new>",
                "num_pairs": 7,
                "is_paired": True,
                "figures": [
                    figure("ttft.p99", "worse", 1.12, is_primary=True),
                    figure("itl.p99", "equivalent", 1.0, is_primary=True),
                    figure("e2e.p50", "better", 0.9, is_primary=False),
                ],
                "left_out": ["run-a: client_late"],
                "notes": [],
            },
            {"base": "base", "arm": "none", "num_pairs": 0, "figures": [], "left_out": [], "notes": []},
        ],
        "arms": [{"name": "base", "replicates": [run]}, {"name": "<new>", "replicates": [run]}],
    }
    (tmp_path / "compare.json").write_text(json.dumps(document))
    return tmp_path


def test_a_capacity_says_its_answer_and_every_run(capacity: Path) -> None:
    html = render_capacity(capacity)
    assert "between 18.2 and 20.1 requests/s" in html
    assert html.count('<tr><th scope="row">') == 11
    assert "backlog grows" in html
    assert PageReader(html).outward_links() == []


def test_a_comparison_says_its_verdicts_and_escapes_names(comparison: Path) -> None:
    html = render_comparison(comparison)
    assert "base → &lt;new&gt;" in html
    assert "<new>" not in html
    assert '<span class="badge worse">WORSE</span>' in html
    assert "+12.0 %" in html
    assert "7 paired seeds, sign-flip p = 0.008 (Holm 0.016)" in html
    assert "left out: run-a: client_late" in html
    assert "No pair of valid runs" in html


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("kind", ["capacity", "comparison"])
def test_a_browser_shows_them(kind: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    html = render_capacity(folder) if kind == "capacity" else render_comparison(folder)
    for seen in look_at(html, (1280, 390)):
        assert seen.scroll_width <= seen.client_width
        assert seen.outside == []
        assert seen.overlaps == []
        assert seen.fetched == []
        assert seen.console == []
        assert len(seen.figures) == 1
