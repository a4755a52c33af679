"""`bench compare`: arms run now or finished runs; its verdicts, its page, and what it refuses."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.loadgen.answering import MODELS, Routes, completions, server
from tests.loadgen.test_target import free_port
from tests.reports.reading import PageReader
from tests.test_bad_input import bench

LOAD = ("--simulate", "--rate", "30", "--duration", "8s", "--quiet")
BASE = "base=--cost affine(base=8ms,per_seq=0.25ms)"
SLOW = "slow=--cost affine(base=8.8ms,per_seq=0.275ms)"


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step that is 10 % slower, eight seeds."""
    out = tmp_path_factory.mktemp("compare")
    arms = ("--arm", BASE, "--arm", SLOW, "--repeat", "8")
    assert bench("compare", *LOAD, *arms, "--out", out, "--gate", "--seed", "3") == 1
    (folder,) = out.iterdir()
    return folder


def load(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "compare.json").read_text())
    return document


def test_a_slower_step_is_found_on_the_same_plans(slower: Path) -> None:
    document = load(slower)
    (comparison,) = document["comparisons"]
    primary = {f["name"]: f for f in comparison["figures"] if f["is_primary"]}
    assert set(primary) == {"ttft.p99", "itl.p99", "e2e.mean"}
    assert primary["e2e.mean"]["change"] == primary["itl.p99"]["change"] == "worse"
    assert 1.08 < primary["e2e.mean"]["ratio"] < 1.25
    assert primary["e2e.mean"]["p_adjusted"] <= 0.05
    base, slow = document["arms"]
    assert [run["seed"] for run in base["replicates"]] == list(range(3, 11))
    assert [r["plan_digest"] for r in base["replicates"]] == [r["plan_digest"] for r in slow["replicates"]]


def test_arms_are_interleaved(slower: Path) -> None:
    order = ["slow" in name for name in load(slower)["order"]]
    rounds = [tuple(order[i : i + 2]) for i in range(0, 16, 2)]
    assert all(set(places) == {True, False} for places in rounds)
    assert all(rounds[i] == rounds[i + 1][::-1] for i in range(0, 8, 2))


def test_the_page_holds_the_verdicts(slower: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert bench("report", slower, "-o", page) == 0
    html = page.read_text()
    assert "WORSE" in html
    assert "base → slow" in html
    assert PageReader(html)


def test_policies_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under load a static batch makes newcomers wait: the table, the causes and the document all say so."""
    cost = ("--cost", "affine(base=8ms,per_seq=0.25ms)", "--rate", "4", "--duration", "20s", "--simulate")
    flags = (*cost, "--policy", "static,vllm-v1", "--repeat", "1", "--slo", "ttft=1s", "--quiet")
    assert bench("compare", *flags, "--out", tmp_path) == 0
    out = capsys.readouterr().out
    assert "waiting while the policy runs others (mean E2E" in out
    (folder,) = tmp_path.iterdir()
    static, continuous = load(folder)["sides"]
    assert static["figures"]["ttft.p99"] > 5 * continuous["figures"]["ttft.p99"]
    assert "goodput" in static["figures"]
    assert static["causes_s"]["wait_policy"] > 0.3 * sum(static["causes_s"].values())
    assert continuous["causes_s"]["wait_policy"] == 0
    assert {"batch_mean", "kv_used_fraction", "flapping_cv", "recompute_fraction"} <= set(static["engine"])
    assert bench("report", folder, "--format", "md", "-o", tmp_path / "page.md") == 0
    text = (tmp_path / "page.md").read_text()
    assert "| static | " in text
    assert "static → vllm-v1" in text
    assert bench("report", folder, "-o", tmp_path / "page.html") == 0
    html = (tmp_path / "page.html").read_text()
    assert "Where the time of a mean request goes, by arm" in html
    assert "waiting by policy" in html


def test_what_is_refused_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--simulate", "--rate", "5", "--duration", "5s", "--input-tokens", "fixed(9000)", "--quiet")
    assert bench("compare", *flags, "--policy", "static,vllm-v1", "--out", tmp_path) == 2
    assert "longer than the context" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_finished_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for policy in ("vllm-v1", "sarathi"):
        flags = (*LOAD, "--policy", policy, "--repeat", "7", "--name", policy)
        assert bench("run", *flags, "--out", tmp_path) == 0
    capsys.readouterr()
    one, other = sorted(tmp_path.iterdir(), key=lambda path: path.name.endswith("sarathi"))
    assert bench("compare", one, other, "--json") == 0
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (comparison["base"], comparison["arm"]) == (one.name, other.name)
    assert comparison["num_pairs"] == 7
    single = [next(folder.glob("*-seed-0")) for folder in (one, other)]
    assert bench("compare", *single) == 0
    assert "one run an arm" in capsys.readouterr().out


def test_runs_of_different_plans_are_refused(
    slower: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("run", *LOAD, "--seed", "77", "--out", tmp_path) == 0
    (run,) = tmp_path.iterdir()
    base = next(path for path in slower.iterdir() if path.name.endswith("base-seed-3"))
    capsys.readouterr()
    assert bench("compare", base, run) == 2
    assert "--different-plans" in capsys.readouterr().err
    assert bench("compare", base, run, "--different-plans") == 0
    assert "servers and workloads together" in capsys.readouterr().out


def test_equal_arms_are_equivalent_and_pass_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The simulated engine has no noise: the same policy twice is the same to the nanosecond."""
    arms = ("--arm", "a=--policy vllm-v1", "--arm", "b=--policy vllm-v1", "--metric", "e2e.mean")
    assert bench("compare", *LOAD, *arms, "--gate", "--out", tmp_path) == 0
    out = capsys.readouterr().out
    assert "EQUIVALENT" in out
    assert "8 paired seeds" in out


def test_servers_that_the_arms_start_are_measured_and_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = [free_port(), free_port()]
    arms = [
        f"{name}=--cmd '{sys.executable} -m tests.servers.golden --port {port} --ttft-ms {ttft_ms}' "
        f"--ready-url http://127.0.0.1:{port}/v1/models"
        for name, port, ttft_ms in (("base", ports[0], 20), ("slow", ports[1], 200))
    ]
    load = ("--rate", "20", "--requests", "20", "--dist", "fixed", "--output-tokens", "3", "--quiet")
    code = bench(
        "compare",
        *load,
        *(w for arm in arms for w in ("--arm", arm)),
        "--repeat",
        "1",
        "--out",
        tmp_path,
        "--json",
    )
    assert code in (0, 3)  # as above
    base, slow = json.loads(capsys.readouterr().out)["arms"]
    assert [len(base["replicates"]), len(slow["replicates"])] == [1, 1]
    ttft = [arm["replicates"][0]["figures"]["ttft.p50"] for arm in (base, slow)]
    assert ttft[0] >= 0.02
    assert ttft[1] >= 0.2
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)


def test_two_servers_over_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    routes: Routes = {"/v1/models": MODELS, "/v1/completions": completions()}
    load = ("--rate", "10", "--duration", "1s", "--dist", "fixed", "--output-tokens", "4", "--quiet")
    with server(routes) as one, server(routes) as other:
        arms = ("--arm", f"one={one}", "--arm", f"other={other}", "--repeat", "2")
        code = bench("compare", *load, *arms, "--out", tmp_path, "--json")
    assert code in (0, 3)  # a machine shared with other work may be told that the client was late
    printed = json.loads(capsys.readouterr().out)
    assert [len(arm["replicates"]) for arm in printed["arms"]] == [2, 2]
    assert all(run["failed"] == 0 for arm in printed["arms"] for run in arm["replicates"])
    folder = Path(printed["folder"])
    urls = {json.loads(path.read_text())["target"]["url"] for path in folder.glob("*/manifest.json")}
    assert urls == {one, other}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "two or more arms"),
        (["--arm", "base=http://127.0.0.1:9"], "two or more arms"),
        (["--arm", "base", "--arm", "b=x"], "NAME=URL"),
        (["--arm", "a/b=http://127.0.0.1:9", "--arm", "b=http://127.0.0.1:9"], "NAME=URL"),
        (["--arm", "a=--rats 3", "--arm", "b=http://127.0.0.1:9"], "--rats"),
        (["--arm", "a=--out x", "--arm", "b=http://127.0.0.1:9"], "--out is not an arm's own"),
        (["--arm", "a=http://127.0.0.1:9", "--arm", "a=http://127.0.0.1:8"], "names of their own"),
        (["--policy", "vllm-v1,sarathi", "--arm", "a=http://127.0.0.1:9"], "--policy A,B"),
        (["--policy", "vllm-v1,sarathi", "--metric", "tftt.p99"], "tftt.p99"),
        (["--policy", "vllm-v1,sarathi", "--margin", "5"], "--detect 5"),
        (["--arm", "a=--rate 3", "--arm", "b=--rate 4"], "--different-plans"),
        (["only-one"], "one run is no comparison"),
        (["one", "two", "--policy", "a,b"], "not both"),
    ],
)
def test_what_is_wrong_is_told_before_the_first_run(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("compare", *arguments, "--rate", "5", "--out", tmp_path / "runs") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
