"""`bench check`: assertions and a baseline gate on a finished run; the exit code is the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.cli.report import newest_run, write
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.measure.assertions import AssertionResult

COLOURS = {"pass": "green", "fail": "red", "invalid": "red", "undecided": "yellow"}


def check(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder (default: the newest under ./runs).", metavar="RUN")
    ] = None,
    assertions: Annotated[
        list[str] | None,
        typer.Option(
            "--assert", help="'ttft.p99 < 400ms', 'errors.rate < 0.1%'; repeat for more.", metavar="TEXT"
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Run to compare with: 'itl.p99 vs baseline <= +5%'.", metavar="RUN")
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Decide assertions on a finished run: 0 all pass, 1 one fails, 3 the run is invalid, 4 undecided."""
    from loadgen.measure.assertions import check as decide
    from loadgen.measure.assertions import exit_code, parse_assertion
    from loadgen.store import load
    from reports.export import gate

    if not assertions:
        raise UsageError("nothing to check: give --assert 'ttft.p99 < 400ms'")
    asked = [parse_assertion(text) for text in assertions]
    judged = load(run or newest_run(Path("runs")))
    results = decide(judged, asked, load(baseline) if baseline else None)
    if junit:
        write(junit, gate.render_junit(results, judged.path.name).encode())
    if markdown:
        write(markdown, gate.render_gate_markdown(results, judged.path.name).encode())
    if action_benchmark:
        for shape, text in gate.render_action_benchmark(results).items():
            write(action_benchmark / f"{shape}.json", text.encode())
    if as_json:
        document = {"run": judged.path.name, "assertions": [described(result) for result in results]}
        typer.echo(json.dumps(document, allow_nan=False))
    else:
        for result in results:
            label = typer.style(
                f"{result.decision.value.upper():<10}", fg=COLOURS[result.decision.value], bold=True
            )
            typer.echo(f"{label} {result.assertion.text}: {result.message}")
    raise typer.Exit(exit_code(results))


def described(result: AssertionResult) -> dict[str, Any]:
    """An outcome as JSON."""
    return {
        "assertion": result.assertion.text,
        "decision": result.decision.value,
        "value": result.value,
        "interval": list(result.interval) if result.interval else None,
        "message": result.message,
    }
