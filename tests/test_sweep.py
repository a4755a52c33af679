"""`bench sweep`: a run per rate, kept and named; saturation bracketed by the backlog."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.cli.options import RunOptions
from loadgen.cli.sweep import estimate, first_length_s, has_length, parse_rates
from loadgen.errors import UsageError
from loadgen.measure.sweep import METRICS, STATISTICS, SweepPoint, find_knee, find_saturation
from reports.origin import Origin
from reports.series import render_series
from reports.sweep import objectives
from tests.loadgen.answering import MODELS, completions, server
from tests.reports.synthetic import Story, make_run
from tests.test_bad_input import bench


def point(
    rate: float, *, is_stable: bool | None = True, status: str = "valid", latency_s: float = 1.0
) -> SweepPoint:
    return SweepPoint(
        rate_per_s=rate,
        folder=f"rate-{rate:g}",
        status=status,
        reasons=(),
        is_stable=is_stable,
        offered_per_s=rate,
        ok_per_s=rate,
        output_tokens_per_s=None,
        goodput_per_s=None,
        failed=0,
        latency={name: dict.fromkeys(STATISTICS, latency_s) for name in METRICS},
        intervals={name: {} for name in METRICS},
        runs=(f"rate-{rate:g}",),
    )


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("2:40:3", [2, 21, 40]),
        ("5,10,20", [5, 10, 20]),
        ("20,5,5", [5, 20]),
        ("7", [7]),
        ("0.5:1:2", [0.5, 1]),
    ],
)
def test_rates(text: str, rates: list[float]) -> None:
    assert parse_rates(text) == rates


@pytest.mark.parametrize(
    "text", ["", "0", "-1,2", "2:40", "2:40:0", "2:40:1", "a,b", "inf", "nan", "1:2:9999"]
)
def test_wrong_rates_are_named(text: str) -> None:
    with pytest.raises(UsageError, match="--rates"):
        parse_rates(text)


def test_saturation_lies_between_the_last_steady_and_the_first_growing_backlog() -> None:
    found = find_saturation([point(40, is_stable=False), point(10), point(20), point(80, is_stable=False)])
    assert (found.stable_per_s, found.unstable_per_s) == (20, 40)
    assert "between 20" in found.sentence()


def test_a_steady_point_above_a_growing_one_does_not_count() -> None:
    found = find_saturation([point(10), point(20, is_stable=False), point(30)])
    assert (found.stable_per_s, found.unstable_per_s) == (10, 20)


def test_an_invalid_point_says_nothing() -> None:
    found = find_saturation([point(10), point(20, is_stable=False, status="invalid"), point(30)])
    assert (found.stable_per_s, found.unstable_per_s) == (30, None)
    assert "up to 30 requests/s" in found.sentence()


def test_undecided_rates_lie_between() -> None:
    found = find_saturation([point(5), point(10, is_stable=None), point(20, is_stable=False)])
    assert (found.stable_per_s, found.unstable_per_s) == (5, 20)
    found = find_saturation([point(rate, is_stable=None) for rate in (10, 20)])
    assert (found.stable_per_s, found.unstable_per_s) == (None, None)
    assert "undecided" in found.sentence()


@pytest.mark.parametrize(
    ("runs", "told"),
    [((True, None), True), ((False, None), False), ((True, False), None), ((None, None), None)],
)
def test_runs_of_one_rate_say_of_the_backlog_what_they_agree_on(
    runs: tuple[bool | None, ...], told: bool | None
) -> None:
    assert SweepPoint.of_replicates([point(10, is_stable=one) for one in runs]).is_stable is told


def test_a_sweep_finds_the_length_of_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole batches of 8 answers of 1.8 s: 4.4 requests/s. Only a length that is given stays."""
    server = ("--simulate", "--policy", "static", "--max-batch", "8", "--cost", "affine(base=30ms,per_seq=0)")
    load = ("--output-tokens", "60", "--dist", "fixed", "--rates", "3,5")
    assert bench("sweep", *server, *load, "--out", tmp_path / "found", "--json") == 0
    found = capsys.readouterr()
    assert "since an answer takes 1.8" in found.err
    assert json.loads(found.out)["saturation"]["stable_per_s"] == 3
    assert json.loads(found.out)["saturation"]["unstable_per_s"] == 5
    assert bench("sweep", *server, *load, "--out", tmp_path / "given", "--json", "--duration", "3s") == 0
    given = capsys.readouterr()
    assert "since an answer takes" not in given.err
    points = json.loads(given.out)["points"]
    assert [point["is_stable"] for point in points] == [None, None]  # too few requests to tell
    (folder,) = (tmp_path / "given").iterdir()
    window = json.loads((folder / points[0]["folder"] / "summary.json").read_text())["window"]
    assert window["end_s"] == 3.0


def test_no_steady_point_is_an_answer() -> None:
    assert "below 10" in find_saturation([point(10, is_stable=False)]).sentence()


def test_the_knee_has_most_throughput_per_latency() -> None:
    """At 1 / (1 - load), throughput / latency is load (1 - load): largest at one half."""
    knee = find_knee([point(rate, latency_s=1 / (1 - rate / 100)) for rate in (20, 40, 50, 60, 80)])
    assert knee is not None
    assert (knee.rate_per_s, knee.is_at_end) == (50, False)
    rising = find_knee([point(rate) for rate in (1, 2, 3)])
    assert rising is not None
    assert (rising.rate_per_s, rising.is_at_end) == (3, True)
    assert "the end of the rates measured" in rising.sentence()
    assert find_knee([point(1), point(2), point(3, status="invalid")]) is None


def test_runs_of_one_rate_become_one_point_with_intervals_over_them() -> None:
    merged = SweepPoint.of_replicates([point(10, latency_s=value) for value in (1.0, 2.0, 4.0)])
    assert merged.latency["ttft_s"]["p99"] == pytest.approx(2.0)
    interval = merged.intervals["ttft_s"]["p99"]
    assert interval is not None
    assert interval[0] < 1.0 < 4.0 < interval[1]
    assert len(merged.runs) == 3


def test_an_invalid_run_marks_the_point_and_stays_out_of_its_figures() -> None:
    runs = [point(10, latency_s=1.0), point(10, latency_s=1.0), point(10, status="invalid", latency_s=99.0)]
    merged = SweepPoint.of_replicates(runs)
    assert merged.status == "invalid"
    assert merged.latency["ttft_s"]["p99"] == pytest.approx(1.0)


def test_a_rate_with_several_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--rates", "10,20,30", "--repeat", "3", "--duration", "5s", "--simulate", "--quiet")
    assert bench("sweep", *load, "--out", tmp_path, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [len(set(p["runs"])) for p in printed["points"]] == [3, 3, 3]
    assert printed["points"][0]["intervals"]["ttft_s"]["p90"]
    assert printed["knee"]["rate_per_s"] in (10, 20, 30)
    page = tmp_path / "page.html"
    assert bench("report", printed["folder"], "-o", page) == 0
    assert "knee at" in page.read_text()


def test_every_rate_has_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    with server({"/v1/models": MODELS, "/v1/completions": completions()}) as url:
        load = ("--rates", "5,15", "--duration", "1s", "--dist", "fixed", "--output-tokens", "4")
        code = bench("sweep", *load, "--target", url, "--out", out, "--json", "--quiet")
    assert code in (0, 3)  # a machine shared with other work may be told that the client was late
    printed = json.loads(capsys.readouterr().out)
    assert [p["rate_per_s"] for p in printed["points"]] == [5, 15]
    folder = Path(printed["folder"])
    assert json.loads((folder / "sweep.json").read_text())["points"] == printed["points"]
    for found in printed["points"]:
        assert found["failed"] == 0
        assert (folder / found["folder"] / "requests.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "--rates"), (["--rates", "5", "--rate", "3"], "--rate"), (["--rates", "x"], "--rates 'x'")],
)
def test_wrong_flags_are_told(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("sweep", *arguments, "--target", "http://127.0.0.1:9", "--out", tmp_path / "runs") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_length_may_stand_in_the_workload(tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text("duration_s = 5.0\n")
    (tmp_path / "counted.toml").write_text("num_requests = 50\n")
    for name, is_given in (("short", True), ("counted", True), (None, False)):
        workload = None if name is None else str(tmp_path / f"{name}.toml")
        assert has_length(RunOptions(rate=5.0, workload=workload)) is is_given
    assert has_length(RunOptions(rate=5.0, duration=30.0))
    assert has_length(RunOptions(rate=5.0, requests=30))


def test_a_sweep_says_how_long_it_will_take() -> None:
    asked = [
        RunOptions(rate=rate, duration=first_length_s(RunOptions(rate=rate), 18.0)) for rate in (0.5, 4.0)
    ]
    assert [one.duration for one in asked] == [200.0, 90.0]
    assert estimate(asked, 18.0).startswith("2 runs of 90 to 200 s, since an answer takes 18 s: about 5 min")


def test_each_policy_has_a_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost = ("--simulate", "--cost", "affine(base=8ms,per_seq=0.25ms)", "--duration", "20s", "--quiet")
    rates = ("--policy", "static,vllm-v1", "--rates", "2,6,40", "--output-tokens", "80")
    assert bench("sweep", *cost, *rates, "--out", tmp_path) == 0
    assert "static: no rate was steady: saturation lies below 40" in capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    static, continuous = json.loads((folder / "sweep.json").read_text())["curves"]
    assert (static["name"], continuous["name"]) == ("static", "vllm-v1")
    for slow, fast in zip(static["points"], continuous["points"], strict=True):
        assert slow["offered_per_s"] == fast["offered_per_s"]  # one window for both
    for slow, fast in zip(static["points"][:2], continuous["points"], strict=False):
        assert slow["latency"]["ttft_s"]["p99"] > fast["latency"]["ttft_s"]["p99"]
    assert bench("report", folder) == 0
    html = (folder / "report.html").read_text()
    assert "vllm-v1" in html
    assert "dotted" in html


def test_a_simulated_series_says_so_and_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = (
        "--simulate",
        "--cost",
        "8b-h200",
        "--rates",
        "5,10",
        "--requests",
        "20",
        "--workload",
        "chat",
        "--quiet",
    )
    bench("sweep", *flags, "--out", tmp_path)
    said = capsys.readouterr().out
    assert "simulated in virtual time: nothing was measured" in said
    assert "8b-h200" in said
    assert "chat" in said
    (folder,) = tmp_path.iterdir()
    assert f"bench report {folder}" in said
    page = render_series(folder)
    assert page is not None
    assert "nothing was measured" in page["report.html"].decode()
    assert Origin.of([make_run(tmp_path / "live", Story(num_requests=20)).path]).simulated == ""


def test_whether_an_objective_held_is_told_by_rate() -> None:
    met = {2.0: True, 4.0: False, 8.0: True}
    points = [
        {"rate_per_s": rate, "status": "valid" if rate < 8 else "invalid", "met": {"ttft.p99": is_met}}
        for rate, is_met in met.items()
    ]
    said = ["ttft.p99 held at 2 requests/s; missed at 4 requests/s; unknown at 8 requests/s"]
    assert objectives({"points": points}) == said
    assert objectives({"points": [{**points[0], "met": {}}]}) == []


@pytest.mark.parametrize(
    ("command", "hidden", "shown"), [("sweep", "--trace ", "--rates"), ("run", "", "--trace ")]
)
def test_help_lists_no_flag_that_is_refused(
    command: str, hidden: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(command, "--help") == 0
    said = capsys.readouterr().out
    assert shown in said
    assert not hidden or hidden not in said
