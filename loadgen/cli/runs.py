"""`bench runs`: the run folders of this machine, and the way to and from other tools."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from loadgen.errors import RunFolderError, UsageError

app = typer.Typer(help="List, show, import and export run folders.", no_args_is_help=True)

Out = Annotated[Path, typer.Option("--out", help="Folder of the run folders.", metavar="DIR")]


class Format(StrEnum):
    """What a run can be exported as."""

    VLLM = "vllm"


@app.command("list")
def list_runs(out: Out = Path("runs")) -> None:
    """List run folders, oldest first: name, status, verdict, requests, what was measured."""
    from loadgen.store import load

    for manifest in sorted(out.glob("*/manifest.json")):
        try:
            run = load(manifest.parent)
            summary = run.summary or {}
        except RunFolderError as exc:
            typer.echo(f"{manifest.parent}  unreadable: {exc}")
            continue
        verdict = (summary.get("verdict") or {}).get("status", "not judged")
        num_ok, num = (str((summary.get("counts") or {}).get(name, "?")) for name in ("ok", "scheduled"))
        target = run.manifest.get("target") or {}
        what = target.get("url") or target.get("model") or "?"
        typer.echo(f"{run.path}  {run.manifest['status']}  {verdict}  {num_ok}/{num} ok  {what}")


@app.command("show")
def show_run(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json.")] = False,
) -> None:
    """Print the summary of a run as `bench run` did."""
    from loadgen.store import load

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
    to: Annotated[Format, typer.Option("--as", help="vllm: the keys of vLLM bench --save-detailed.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File (default: stdout).", metavar="FILE")
    ] = None,
) -> None:
    """Write a run as another tool's result file."""
    from loadgen.interchange import export_vllm
    from loadgen.store import load

    assert to is Format.VLLM
    text = json.dumps(export_vllm(load(run)), allow_nan=False)
    if output is None:
        typer.echo(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"cannot write {output}: {exc.strerror}") from exc
    typer.echo(output)
