"""`bench check`: assertions and a baseline gate on a finished run; the exit code is the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.cli.options import read_toml
from loadgen.cli.report import newest, write
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.measure.assertions import Assertion, AssertionResult
    from loadgen.measure.baseline import Figures
    from loadgen.store import Run

NOISE = Path("runs/noise.json")
COLOURS = {"pass": "green", "fail": "red", "invalid": "red", "undecided": "yellow"}


def check(
    run: Annotated[
        Path | None,
        typer.Argument(help="Run, or folder of --repeat (default: the newest under ./runs).", metavar="RUN"),
    ] = None,
    assertions: Annotated[
        list[str] | None,
        typer.Option(
            "--assert", help="'ttft.p99 < 400ms', 'errors.rate < 0.1%'; repeat for more.", metavar="TEXT"
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Run, or file of bench runs export --baseline: 'itl.p99 vs baseline <= +5%'.", metavar="RUN"
        ),
    ] = None,
    noise: Annotated[
        Path | None,
        typer.Option(
            help="Noise of this machine, by bench doctor --aa (default: runs/noise.json where it is).",
            metavar="FILE",
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.", metavar="FILE")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write a Markdown table here.", metavar="FILE")
    ] = None,
    action_benchmark: Annotated[
        Path | None,
        typer.Option(
            help="Folder for smaller.json and bigger.json of github-action-benchmark.", metavar="DIR"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help=r"Its table \[check] holds assert = \[...], baseline and noise (default: ./bench.toml).",
            metavar="FILE",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Decide assertions on a finished run: 0 all pass, 1 one fails, 3 the run is invalid, 4 undecided."""
    from loadgen.measure.assertions import exit_code, parse_assertion
    from loadgen.measure.replicates import DOCUMENT
    from reports.export import gate

    kept = read_gate(config)
    assertions = assertions or kept.get("assert") or []
    baseline, noise = (given or kept.get(key) for given, key in ((baseline, "baseline"), (noise, "noise")))
    if not assertions:
        raise UsageError(
            "nothing to check: give --assert 'ttft.p99 < 400ms', or [check] assert in bench.toml"
        )
    asked = [parse_assertion(text) for text in assertions]
    judged = load_side(run or newest(Path("runs"), "manifest.json", DOCUMENT))
    results = decide(judged, asked, load_side(baseline) if baseline else None, noise)
    name = name_of(judged)
    if junit:
        write(junit, gate.render_junit(results, name).encode())
    if markdown:
        write(markdown, gate.render_gate_markdown(results, name).encode())
    if action_benchmark:
        for shape, text in gate.render_action_benchmark(results).items():
            write(action_benchmark / f"{shape}.json", text.encode())
    if as_json:
        document = {"run": name, "assertions": [described(result) for result in results]}
        typer.echo(json.dumps(document, allow_nan=False))
    else:
        for result in results:
            label = typer.style(
                f"{result.decision.value.upper():<10}", fg=COLOURS[result.decision.value], bold=True
            )
            typer.echo(f"{label} {result.assertion.text}: {result.message}")
    raise typer.Exit(exit_code(results))


def read_gate(path: Path | None) -> dict[str, Any]:
    """Read the table [check] of a TOML file; paths in it are relative to the file."""
    path = path or (Path("bench.toml") if Path("bench.toml").is_file() else None)
    if path is None:
        return {}
    found = read_toml(path).get("check", {})
    kinds = {"assert": list, "baseline": str, "noise": str}
    for key, value in found.items() if isinstance(found, dict) else [("check", found)]:
        if key not in kinds or not isinstance(value, kinds[key]):
            raise UsageError(
                f"{path}: [check] takes assert = [...], baseline and noise, not {key} = {value!r}"
            )
    if not all(isinstance(text, str) for text in found.get("assert", [])):
        raise UsageError(f"{path}: [check] assert must be a list of texts")
    return {key: value if key == "assert" else path.parent / value for key, value in found.items()}


def load_side(path: Path) -> Run | Figures:
    """Open a run, the runs of a folder, or a baseline file."""
    from loadgen.measure.baseline import Figures, read_baseline
    from loadgen.measure.replicates import load_replicates

    if path.is_file():
        return read_baseline(path)
    runs = load_replicates(path)
    return runs[0] if len(runs) == 1 else Figures.of(path.resolve().name, runs)


def decide(
    ours: Run | Figures, asked: list[Assertion], theirs: Run | Figures | None, noise: Path | None
) -> list[AssertionResult]:
    """Decide the assertions; a baseline of another workload and a margin below the noise are refused."""
    from loadgen.measure import assertions
    from loadgen.measure.baseline import (
        Figures,
        check_margin,
        check_same_workload,
        figure_of,
        paired_ratio,
        read_noise,
    )

    if theirs is None:
        return assertions.check(ours, asked)
    check_same_workload(workload_of(ours), workload_of(theirs))
    path = noise or NOISE
    floors = theirs.noise if isinstance(theirs, Figures) else {}
    floors = read_noise(path) if noise or path.exists() else floors
    num_pairs = min(len(side.valid) if isinstance(side, Figures) else 1 for side in (ours, theirs))
    for assertion in asked:
        check_margin(assertion, floors, max(num_pairs, 1))

    def paired(assertion: Assertion) -> tuple[float, tuple[float, float]] | None:
        if isinstance(ours, Figures) and isinstance(theirs, Figures):
            return paired_ratio(ours, theirs, figure_of(assertion))
        return None

    return assertions.check(ours, asked, theirs, paired)


def workload_of(side: Run | Figures) -> dict[str, Any]:
    """What was asked of the load; empty where that is not known."""
    from loadgen.store import Run

    if not isinstance(side, Run):
        return side.workload
    workload: dict[str, Any] = side.plan_source.get("workload") or {}
    return workload


def name_of(side: Run | Figures) -> str:
    """What the runs are called."""
    from loadgen.store import Run

    return side.path.name if isinstance(side, Run) else side.name


def described(result: AssertionResult) -> dict[str, Any]:
    """An outcome as JSON."""
    return {
        "assertion": result.assertion.text,
        "decision": result.decision.value,
        "value": result.value,
        "interval": list(result.interval) if result.interval else None,
        "message": result.message,
    }
