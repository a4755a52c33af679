"""`bench study`: its experiments can be run, its folder holds what it says, its page and tables read."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from loadgen.cli import app
from loadgen.cli.options import RunOptions
from loadgen.cli.plans import make_plan
from loadgen.cli.run import check_flags
from loadgen.cli.simulate import simulated_target
from loadgen.cli.study import choose, conduct, folder_name, gather, refuse_settings, smaller
from loadgen.errors import UsageError
from loadgen.store import load
from loadgen.study.catalogue import CHARTS, RULES, experiments
from loadgen.study.figures import read_figures
from loadgen.study.model import Outcome
from reports.study import render_study_markdown
from reports.study_page import render_study
from tests.loadgen.test_attribution import bench


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small study of the simplest two experiments."""
    out = tmp_path_factory.mktemp("study")
    assert bench("study", "--only", "static,padding", "--quick", "--out", str(out)) == 0
    (found,) = out.iterdir()
    return found


@cache
def run_command() -> Any:
    group: Any = typer.main.get_command(app)
    return group.commands["run"]


def options_of(flags: str) -> RunOptions:
    return RunOptions(**run_command().make_context("bench run", shlex.split(flags)).params)


@pytest.mark.parametrize("name", experiments())
def test_an_experiment_can_be_run(name: str) -> None:
    experiment = experiments()[name]
    assert {claim.rule for claim in experiment.claims} <= set(RULES)
    assert set(experiment.charts) <= set(CHARTS)
    names = [folder_name(experiment, arm) for arm in experiment.arms]
    assert len(set(names)) == len(names)
    for arm in experiment.arms:
        options = options_of(experiment.command(arm))
        check_flags(options)
        assert options.simulate is (experiment.kind == "simulated")
        if options.simulate:
            target = simulated_target(options)
            assert len(make_plan(options)) > 0
            assert target.context_tokens is not None


def test_every_figure_of_the_page_is_read_of_the_run_that_it_links_to(folder: Path) -> None:
    document = json.loads((folder / "study.json").read_text())
    assert [one["name"] for one in document["experiments"]] == ["static", "padding"]
    for experiment in document["experiments"]:
        assert (
            experiment["num_runs"] == len(experiment["rows"]) == len(experiments()[experiment["name"]].arms)
        )
        for row in experiment["rows"]:
            (run,) = row["runs"]
            figures = read_figures(load(folder / run["folder"]))
            for column, value in zip(experiment["columns"], row["values"], strict=True):
                assert value == pytest.approx(figures[column["figure"]])
    page = render_study(folder)
    links = set(re.findall(r'href="([^"#][^"]*/summary\.json)"', page))
    assert len(links) == sum(one["num_runs"] for one in document["experiments"])
    assert all((folder / link).exists() for link in links)


def test_a_run_of_the_study_says_how_to_repeat_it(folder: Path) -> None:
    run = load(sorted(folder.glob("*-padding-geometric"))[0])
    command = run.manifest["command"]
    assert command.startswith("bench run --simulate")
    assert "geometric(100)" in command
    assert run.manifest["config"]["policy"] == {"value": "static", "origin": "flag"}


def test_the_page_and_the_table_say_the_same(folder: Path) -> None:
    page, text = render_study(folder), render_study_markdown(folder)
    document = json.loads((folder / "study.json").read_text())
    claims = [claim for one in document["experiments"] for claim in one["claims"]]
    assert text.count("\n| ") == len(claims) + 2
    for claim in claims:
        assert f"**{claim['verdict']}**" in text
        assert page.count(claim["verdict"].upper()) >= 2
    assert "A look, not a verdict" in page
    assert page.count("<svg") == 1


def test_hostile_words_are_inert(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "study.json").read_text())
    document["experiments"][0]["skipped"] = "<script>alert(1)</script>"
    document["experiments"][0]["rows"][0]["arm"] = "<img src=x onerror=alert(1)>"
    (tmp_path / "study.json").write_text(json.dumps(document))
    page = render_study(tmp_path)
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_what_cannot_be_run_is_skipped_with_the_reason(tmp_path: Path) -> None:
    import msgspec

    broken = msgspec.structs.replace(experiments()["padding"], arms={"x": "--output-tokens 'no(1)'"})
    (conducted,) = conduct([broken], tmp_path, 0, threading.Event())
    assert not conducted.outcomes
    assert "no" in conducted.skipped


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(UsageError, match="there are static"):
        choose("nothing", live=False)
    assert [one.name for one in choose("cap,static, cap", live=False)] == ["cap", "static"]
    extra = {one.name for one in choose(None, live=True)} - {one.name for one in choose(None, live=False)}
    assert extra == {"styles-live", "eviction-live"}


def test_a_study_reads_no_settings_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bench.toml").write_text("rate = 20\n")
    refuse_settings(Path("bench.toml"))
    Path("bench.toml").write_text("[study]\nseed = 3\n")
    assert bench("study", "--out", "runs") == 2
    Path("bench.toml").write_text("rate = [\n")
    assert bench("study", "--out", "runs") == 2
    Path("bench.toml").unlink()
    assert bench("study", "--seed", "-1", "--out", "runs") == 2
    assert not Path("runs").exists()


def test_a_quick_study_keeps_its_loops_full() -> None:
    quick = smaller(experiments()["capacity"]).arms
    assert "--concurrency 1 --requests 25 " in quick["128 tokens, 1 in flight"]
    assert "--concurrency 1024 --requests 8192 " in quick["128 tokens, 1024 in flight"]
    assert "--warmup 5s" in next(iter(smaller(experiments()["cap"]).arms.values()))


WORKERS = """
import multiprocessing, time
from concurrent.futures import ProcessPoolExecutor
from loadgen.cli.study import prepare_worker
if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare_worker)
    pool.submit(time.sleep, 600)
    while not pool._processes:
        time.sleep(0.01)
    print(*pool._processes, flush=True)
    time.sleep(600)
"""


def test_workers_end_with_the_study(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(WORKERS)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline())
        parent.kill()
        parent.communicate(
            timeout=60
        )  # ends once the last that can write to it has ended, workers among them


def test_what_was_run_before_an_interruption_is_kept() -> None:
    stop = threading.Event()
    stop.set()
    ended: Future[list[Outcome]] = Future()
    ended.set_result([Outcome(arm="constant", seed=0, folder="run", figures={})])
    conducted = gather(experiments()["padding"], [ended, Future()], stop)
    assert [outcome.arm for outcome in conducted.outcomes] == ["constant"]
    assert gather(experiments()["padding"], [Future()], stop).skipped == "interrupted"
