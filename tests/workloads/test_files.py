"""Workload files and presets: what is written is read back; what cannot be read is told by file and key."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from workloads import Workload, WorkloadError
from workloads.files import load_workload, preset_names, render_toml, with_changes, workload_of

WHOLE = Workload(
    name="whole",
    about='a "quoted" word, ümlaut and \\',
    rate_per_s=12.5,
    duration_s=90,
    num_requests=7,
    exact_count=True,
    context_tokens=4096,
    over_context="clip",
    clients=(
        Workload(name="a", share=2, sessions="closed(turns=2, think=1s)", input_tokens="64"),
        Workload(name="b", arrival="gamma(cv=2)", lengths_from=Path("/data/rows.csv")),
    ),
)


@pytest.mark.parametrize(
    "workload",
    [
        WHOLE,
        Workload(trace=Path("/data/t.csv"), trace_window=(5.5, 60.0), dequantize=True),
        Workload(trace=Path("/data/t.csv"), trace_window=(600.0, None), trace_thin=0.25),
        Workload(arrival="at-once", num_requests=5),
    ],
)
def test_a_workload_survives_its_file_and_its_manifest(tmp_path: Path, workload: Workload) -> None:
    path = tmp_path / "w.toml"
    path.write_text(render_toml(replace(workload, name="w"), ("a comment",)))
    assert load_workload(str(path)) == replace(workload, name="w")
    assert workload_of(workload.to_dict()) == workload


def test_a_plan_says_how_to_make_it_again() -> None:
    plan = load_workload("agent").plan(5)
    assert workload_of(plan.source["workload"]).plan(plan.source["seed"]).digest() == plan.digest()


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_can_be_planned_and_names_its_source(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name
    assert len(workload.about) > 40
    if workload.num_requests is None:
        workload = replace(workload, duration_s=600)
    realised = workload.plan(1).source["realised"]
    if workload.rate_per_s is not None and name not in ("code", "bursty", "agent"):
        assert realised["rate_per_s"] == pytest.approx(workload.rate_per_s, rel=0.15)


def test_presets_keep_the_quantiles_of_their_source() -> None:
    realised = replace(load_workload("chat"), duration_s=3600).plan(1).source["realised"]
    assert realised["input_tokens"]["p50"] == pytest.approx(1020, rel=0.04)
    assert realised["input_tokens"]["p90"] == pytest.approx(2735, rel=0.06)
    assert realised["output_tokens"]["p50"] == pytest.approx(129, rel=0.06)
    cvs = [
        replace(load_workload("code"), duration_s=3600).plan(seed).source["realised"]["gap_cv"]
        for seed in range(9)
    ]
    assert 9 < sorted(cvs)[4] < 18


def test_the_example_is_a_workload() -> None:
    plan = load_workload(str(Path(__file__).parents[2] / "examples" / "mixed.toml")).plan(1)
    assert plan.classes == ("people", "assistant", "nightly")
    assert plan.source["realised"]["rate_per_s"] == pytest.approx(12, rel=0.3)


def test_values_as_people_write_them(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(
        'rate_per_s = 3\nduration_s = "2m"\ninput_tokens = 64\ntrace_window = "0:60s"\ntrace = "rows.csv"\n'
    )
    workload = load_workload(str(tmp_path / "w.toml"))
    assert (workload.rate_per_s, workload.duration_s, workload.input_tokens) == (3.0, 120.0, "64")
    assert workload.trace_window == (0.0, 60.0)
    assert workload.trace == tmp_path / "rows.csv"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rate = 3", "unknown key 'rate'; known: about, arrival"),
        ("rate_per_s = true", "rate_per_s must be a number"),
        ('rate_per_s = "fast"', "rate_per_s must be a number, not 'fast'"),
        ("num_requests = 1.5", "whole number"),
        ("exact_count = 1", "true or false"),
        ("arrival = 3", "arrival must be text"),
        ("clients = 3", r"\[\[clients\]\]"),
        ("[[clients]]\nspeed = 3", "unknown key 'speed'"),
        ("rate_per_s = = 3", "not valid TOML"),
        ('trace_window = "soon"', "such as 0:60s"),
    ],
)
def test_bad_files_are_told(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=says) as caught:
        load_workload(str(path))
    assert str(path) in str(caught.value)


def test_an_unknown_preset_is_told() -> None:
    with pytest.raises(WorkloadError, match="'chta'; known: agent, batch, bursty, chat"):
        load_workload("chta")


def test_changes_are_read_as_the_fields_type() -> None:
    changed = with_changes(
        Workload(num_requests=5), {"duration_s": "1m", "dequantize": "true", "context_tokens": "9"}
    )
    assert (changed.duration_s, changed.dequantize, changed.context_tokens) == (60.0, True, 9)
    assert changed.num_requests is None, "a duration takes the place of a number"
    with pytest.raises(WorkloadError, match="unknown key 'nope'"):
        with_changes(Workload(), {"nope": "1"})


def test_the_manifest_of_a_run_is_a_workload_file(tmp_path: Path) -> None:
    plan = Workload(rate_per_s=5, input_tokens="64").plan(3)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"plan": plan.source}))
    again = load_workload(str(path)).plan(plan.source["seed"])
    assert again.digest() == plan.digest()
    path.write_text("{}")
    with pytest.raises(WorkloadError, match=r"no manifest.json of a run"):
        load_workload(str(path))
