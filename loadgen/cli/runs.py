"""`bench runs`: the run folders of this machine, and the way to and from other tools."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from loadgen.cli.report import write
from loadgen.errors import RunFolderError, UsageError

app = typer.Typer(help="List, show, import and export run folders.", no_args_is_help=True)

SERIES = ("repeat", "sweep", "capacity", "compare", "study")  # the file that each leaves beside its runs
Out = Annotated[Path, typer.Option("--out", help="Folder of the run folders.", metavar="DIR")]


class Format(StrEnum):
    """What a run can be exported as."""

    VLLM = "vllm"


@app.command("list")
def list_runs(out: Out = Path("runs")) -> None:
    """List run folders and series, oldest first: name, status, verdict, requests, what was measured."""
    for folder in sorted(out.glob("*/")):
        if (folder / "manifest.json").exists():
            typer.echo(describe_run(folder))
        elif series := describe_series(folder):
            from reports.origin import describe_series as describe_runs

            typer.echo(f"{folder}  {series}  {describe_runs(folder)}".rstrip())


def describe_series(folder: Path) -> str:
    """What a folder of several runs is, `sweep of 4 runs`; empty for any other."""
    kinds = [kind for kind in SERIES if (folder / f"{kind}.json").exists()]
    num = len(list(folder.glob("**/manifest.json")))
    return f"{kinds[0]} of {num} run{'s' * (num != 1)}" if kinds else ""


def describe_run(folder: Path) -> str:
    """One run in one line."""
    from loadgen.store import load
    from reports import words
    from reports.origin import rate_of, what_was_measured

    try:
        run = load(folder)
        summary = run.summary or {}
    except RunFolderError as exc:
        return f"{folder}  unreadable: {exc}"
    verdict = (summary.get("verdict") or {}).get("status", "not judged")
    codes = f" ({words.codes(summary)})" if summary and words.notices(summary) else ""
    num_ok, num = (str((summary.get("counts") or {}).get(name, "?")) for name in ("ok", "scheduled"))
    rate = rate_of(run.manifest)
    told = [str(folder), run.manifest["status"], f"{verdict}{codes}", f"{num_ok}/{num} ok"]
    told += [f"{rate:.4g} /s"] if rate else []
    return "  ".join([*told, what_was_measured(run.manifest)])


@app.command("show")
def show_run(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json.")] = False,
) -> None:
    """Print the summary of a run as `bench run` did."""
    from loadgen.store import load

    if series := describe_series(run):
        raise UsageError(f"{run} is a {series}: bench report {run} shows it")
    loaded = load(run)
    if loaded.summary is None:
        raise UsageError(f"{run} has no summary: the run broke off")
    if as_json:
        typer.echo(json.dumps({**loaded.summary, "folder": str(loaded.path)}, allow_nan=False))
        return
    from rich.console import Console

    from reports.terminal import print_summary

    print_summary(loaded, Console())


@app.command("import")
def import_runs(
    file: Annotated[Path, typer.Argument(help="Result file of vLLM bench or SGLang.", metavar="FILE")],
    out: Out = Path("runs"),
    name: Annotated[str, typer.Option(help="Name of the runs, part of their folders' names.")] = "import",
) -> None:
    """Make run folders of another tool's result file, and say what it does not hold."""
    from loadgen.interchange import import_result, read_results

    for result in read_results(file):
        run = import_result(result, file, out, name)
        typer.echo(run.path)
        for line in result.missing:
            typer.echo(f"  not in the file: {line}", err=True)


@app.command("export")
def export_run(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    to: Annotated[
        Format | None, typer.Option("--as", help="vllm: the keys of vLLM bench --save-detailed.")
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="A file for bench check --baseline, of a run or of --repeat.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File (default: stdout).", metavar="FILE")
    ] = None,
) -> None:
    """Write a run as another tool's result file, or as a baseline that can live in a repository."""
    from loadgen.interchange import export_vllm
    from loadgen.store import load

    if baseline == (to is not None):
        raise UsageError("say what to write: --as vllm, or --baseline")
    text = describe_baseline(run) if baseline else json.dumps(export_vllm(load(run)), allow_nan=False)
    typer.echo(text if output is None else write(output, text + "\n"))


def describe_baseline(folder: Path) -> str:
    """The figures of a run, or of all runs of a folder, with the noise of this machine where it is known."""
    from loadgen.cli.check import NOISE
    from loadgen.measure.baseline import Figures, read_noise
    from loadgen.measure.replicates import load_replicates

    noise = read_noise(NOISE) if NOISE.exists() else {}
    figures = Figures.of(folder.resolve().name, load_replicates(folder), noise)
    if figures.faults:
        raise UsageError(f"{folder} is no baseline: it is invalid ({', '.join(figures.faults)})")
    return json.dumps(figures.to_json(), indent=1, allow_nan=False)
