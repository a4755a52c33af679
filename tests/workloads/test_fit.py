"""Fits: a fit reproduces what it was fitted to, within stated bounds, and says what it leaves out."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workloads import Workload, WorkloadError
from workloads.files import load_workload, render_toml
from workloads.fit import Fit, fit_table
from workloads.replay import dequantized
from workloads.servegen import load_servegen
from workloads.streams import Streams
from workloads.traces import ReadOptions, read_trace

EXAMPLE = Path(__file__).parents[2] / "examples" / "trace_synthetic.csv"


def fit(path: Path) -> Fit:
    return fit_table(read_trace(path), "fitted")


def figures_over_seeds(workload: Workload, seeds: int) -> dict[str, float]:
    found = [workload.plan(seed).source["realised"] for seed in range(seeds)]
    return {
        "rate": float(np.median([f["rate_per_s"] for f in found])),
        "cv": float(np.median([f["gap_cv"] for f in found])),
        **{
            f"{side} {q}": float(np.median([f[f"{side}_tokens"][q] for f in found]))
            for side in ("input", "output")
            for q in ("mean", "p50", "p90", "p99")
        },
    }


@pytest.mark.parametrize(
    ("name", "process", "expected"),
    [
        (
            "conv",
            "steps",
            {
                "rate": 5.53, "cv": 1.09,
                "input mean": 1155, "input p50": 1020, "input p90": 2735, "input p99": 4142,
                "output mean": 211, "output p50": 129, "output p90": 424, "output p99": 601,
            },
        ),
        (
            "code",
            "onoff",
            {
                "rate": 2.57, "cv": 13.2,
                "input mean": 2048, "input p50": 1469, "input p90": 5188, "input p99": 7436,
                "output mean": 27.9, "output p50": 13, "output p90": 55, "output p99": 251,
            },
        ),
    ],
)  # fmt: skip
def test_a_fit_reproduces_burstiness_and_quantiles(
    traces: Path, tmp_path: Path, name: str, process: str, expected: dict[str, float]
) -> None:
    """Bounds: rate 15 %, CV 20 %, means and quantiles 8 %; KS of the lengths 0.015."""
    found = fit(traces / f"azure_llm_2023_{name}.csv.gz")
    assert found.workload.arrival.startswith(process)
    path = tmp_path / "fitted.toml"
    path.write_text(render_toml(found.workload, found.notes))
    assert load_workload(str(path)) == found.workload
    drawn = figures_over_seeds(found.workload, 7)
    for key, value in expected.items():
        bound = {"rate": 0.15, "cv": 0.2}.get(key, 0.08)
        assert drawn[key] == pytest.approx(value, rel=bound), key
    for side in ("input_tokens", "output_tokens"):
        assert found.goodness[side]["ks"] <= 0.015
        assert min(found.goodness[side]["ks_of_families"].values()) > 0.05, "no single family is right"
    assert found.goodness["rank_correlation"] == pytest.approx(0.07 if name == "conv" else -0.02, abs=0.005)


def test_a_process_is_recognised(tmp_path: Path) -> None:
    for arrival, rate in (("gamma(cv=2.5)", 20.0), ("onoff(on=5s, off=15s)", 10.0), ("poisson", 20.0)):
        plan = Workload(arrival=arrival, rate_per_s=rate, duration_s=300).plan(3)
        path = tmp_path / "rows"
        text = [f"{at / 1e9:.9f},9,9" for at in plan.arrival_ns.tolist()]
        path.write_text("at,in,out\n" + "\n".join(text))
        table = read_trace(path, ReadOptions(columns="time=at,input=in,output=out"))
        found = fit_table(table, "f")
        goodness = found.goodness["arrival"]
        assert found.workload.arrival.partition("(")[0] == arrival.partition("(")[0]
        assert goodness["gap_cv"][1] == pytest.approx(goodness["gap_cv"][0], rel=0.25)
        assert goodness["gap_ks"] < 0.12


def test_what_is_not_fitted_is_said(traces: Path) -> None:
    path = traces / "mooncake_fast25_conversation.jsonl.gz"
    notes = " ".join(fit(path).notes)
    assert "ticks of 3 s" in notes
    assert "shared prefixes (ideal hit rate 37.4%) are not fitted" in notes
    spread = fit_table(dequantized(read_trace(path), Streams(0)), "f")
    assert "ticks" not in " ".join(spread.notes)
    assert spread.goodness["arrival"]["gap_cv"][1] == pytest.approx(1, abs=0.05)


def test_lengths_without_times_are_fitted_alone(traces: Path) -> None:
    found = fit(traces / "vidur_arxiv_summarization_lengths.csv.gz")
    assert found.workload.rate_per_s is None
    assert "arrival" not in found.goodness


def test_too_few_rows_are_told(write: Callable[[str], Path]) -> None:
    path = write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n")
    with pytest.raises(WorkloadError, match="1 rows are too few to fit"):
        fit(path)


def test_servegen_becomes_clients(traces: Path) -> None:
    rates = traces / "servegen_deepseek-r1_clients.csv.gz"
    workload = load_servegen(rates, traces / "servegen_deepseek-r1_lengths.jsonl.gz", (36_000, 37_800))
    plan = workload.plan(1)
    table = np.genfromtxt(rates, delimiter=",", skip_header=1, usecols=(1, 2))
    inside = (table[:, 0] >= 36_000) & (table[:, 0] < 37_800)
    assert len(plan) == pytest.approx(600 * table[inside, 1].sum(), rel=0.1)
    counts = np.sort(np.bincount(plan.class_id))[::-1]
    assert counts[:10].sum() / counts.sum() > 0.75, "a few heavy clients carry the traffic"
    assert plan.source["realised"]["input_tokens"]["p50"] == pytest.approx(208, rel=0.35)


@pytest.mark.parametrize(
    ("name", "rows", "clients", "top_ten"), [("deepseek-r1", 3111, 73, 0.68), ("mm-image", 2094, 35, 0.83)]
)
def test_golden_figures_of_servegen(traces: Path, name: str, rows: int, clients: int, top_ten: float) -> None:
    path = traces / f"servegen_{name}_clients.csv.gz"
    workload = load_servegen(path, None, None)
    assert len(workload.clients) == clients
    assert len(gzip.decompress(path.read_bytes()).splitlines()) == rows + 1
    shares = sorted((client.share for client in workload.clients), reverse=True)
    assert sum(shares[:10]) / sum(shares) == pytest.approx(top_ten, abs=0.006)


def test_a_published_servegen_file_has_no_header(write: Callable[[str], Path]) -> None:
    path = write("0,2.0,0.97,Gamma,1.06,1.49\n600,0,0,,0,0\n1200,4,1.5,Weibull,0.6,0.2\n")
    workload = load_servegen(path, None, None)
    assert workload.duration_s == 1800
    plan = workload.plan(1)
    assert np.histogram(plan.arrival_ns / 6e11, [0, 1, 2, 3])[0] == pytest.approx(
        [1200, 0, 2400], rel=0.15, abs=1
    )
