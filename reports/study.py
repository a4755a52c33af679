"""A study in the terminal and as Markdown: each claim, what was measured, and whether it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from loadgen.measure.replicates import read_document
from reports.export.markdown import escape, table
from reports.quantities import format_number, format_percent, format_time

Json = Mapping[str, Any]
STYLES = {"holds": "green", "holds under conditions": "yellow", "does not hold": "red", "undecided": "dim"}
TALLIED = {
    "holds": ("holds", "hold"),
    "holds under conditions": ("holds under conditions", "hold under conditions"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
}
FORMATS = {"time": format_time, "share": format_percent, "number": format_number}


def tally(document: Json) -> str:
    """Count the verdicts in words: `9 hold, 12 hold under conditions, 3 do not hold`."""
    counts = Counter(claim["verdict"] for one in document["experiments"] for claim in one["claims"])
    return ", ".join(
        f"{num} {one if num == 1 else many}"
        for verdict, (one, many) in TALLIED.items()
        if (num := counts[verdict])
    )


def origin(experiment: Json) -> str:
    """Say whether an experiment was simulated or live; what was timed without a server is live, too."""
    return "simulated" if experiment["kind"] == "simulated" else "live"


def where(claim: Json) -> str:
    """The condition of a verdict, as it follows the verdict; empty without one."""
    return f": {claim['condition']}" if claim["condition"] else ""


def format_cells(experiment: Json, row: Json) -> list[str]:
    """Write the figures of an arm, each in the unit of its column."""
    pairs = zip(experiment["columns"], row["values"], strict=True)
    return [FORMATS[column["unit"]](value) for column, value in pairs]


def print_study(document: Json, folder: str, console: Console) -> None:
    """Print every claim with its verdict and the figures behind it."""
    for one in document["experiments"]:
        runs = one["skipped"] or f"{one['num_runs']} runs"
        console.print(Text.assemble((one["title"], "bold"), (f"  {origin(one)}, {runs}", "dim")))
        for claim in one["claims"]:
            console.print(
                Text.assemble(
                    (f"  {claim['verdict'].upper()}", f"bold {STYLES[claim['verdict']]}"),
                    (f"  §{claim['section']} ", "dim"),
                    claim["claim"],
                )
            )
            console.print(Text(f"    {claim['measured']}"))
            if claim["condition"]:
                console.print(Text(f"    {claim['condition']}", style=STYLES[claim["verdict"]]))
    num_claims = sum(len(one["claims"]) for one in document["experiments"])
    console.print(Text(f"of {num_claims} claims, {tally(document)}", style="bold"))
    console.print(Text(f"report  {folder}/report.html"), soft_wrap=True)


def render_study_markdown(folder: Path) -> str:
    """Return the table of claims of the study whose study.json lies in `folder`."""
    document = read_document(folder / "study.json")
    rows = [
        [
            escape(claim["claim"]),
            claim["section"],
            escape(claim["measured"]),
            f"**{claim['verdict']}**{escape(where(claim))}",
            f"{origin(one)}: {one['name']}",
        ]
        for one in document["experiments"]
        for claim in one["claims"]
    ]
    head = f"{tally(document)}. `{document['command']}`, {document['started'][:10]}, seed {document['seed']}."
    return f"{head}\n\n{table(['claim', '§', 'what was measured', 'verdict', 'experiment'], rows)}\n"
