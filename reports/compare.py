"""A comparison in the terminal: a verdict a figure, the primary ones first, with interval, margin and p."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.repeat import format_named
from reports.sides import cause_sentences, side_columns, side_rows, sides_of

COLOURS = {"better": "green", "worse": "red", "equivalent": "green", "undecided": "yellow"}


def format_change(ratio: float) -> str:
    """A ratio as a change: `+11.8 %`."""
    return f"{100 * (ratio - 1):+.1f} %"


def format_interval(interval: list[float] | tuple[float, float] | None) -> str:
    """The ends of a ratio as changes; a dash where they are not known."""
    return "[–]" if interval is None else f"[{', '.join(map(format_change, interval))}]"


def describe_test(figure: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """How many pairs and what p: `8 paired seeds, sign-flip p = 0.008 (Holm 0.023)`."""
    if figure["p"] is None:
        return "one run an arm"
    what, test = ("paired seeds", "sign-flip") if comparison["is_paired"] else ("runs an arm", "Welch")
    rule = "Holm" if figure["is_primary"] else "BH"
    return (
        f"{comparison['num_pairs']} {what}, {test} p = {figure['p']:.3g} ({rule} {figure['p_adjusted']:.3g})"
    )


def print_comparison(
    document: Mapping[str, Any], folder: str | None, console: Console, *, wide: bool = False
) -> None:
    """Print compare.json; wide: the figures that are not primary with their tests too."""
    margin = f"margin {100 * document['rule']['margin']:g} %"
    _print_sides(sides_of(document), console)
    for comparison in document["comparisons"]:
        console.print(Text(f"{comparison['base']} -> {comparison['arm']}", style="bold"), soft_wrap=True)
        primary = [figure for figure in comparison["figures"] if figure["is_primary"]]
        rest = [figure for figure in comparison["figures"] if not figure["is_primary"]]
        for figure in primary:
            _print_figure(figure, comparison, margin, console)
        for figure in rest:
            if wide:
                _print_figure(figure, comparison, margin, console)
            else:
                console.print(_line(figure), soft_wrap=True)
        for line in (*comparison["notes"], *(f"left out: {said}" for said in comparison["left_out"])):
            console.print(Text(f"  {line}", style="yellow"), soft_wrap=True)
        if not comparison["figures"]:
            console.print(Text("  no pair of valid runs to compare", style="red"))
    _print_advice(document, console)
    if folder is not None:
        console.print(Text(f"data  {folder}"), soft_wrap=True)


def _print_sides(sides: Sequence[Mapping[str, Any]], console: Console) -> None:
    if not sides:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in side_columns(sides):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for row in side_rows(sides):
        table.add_row(*row)
    console.print(table)
    for name, sentence in cause_sentences(sides):
        console.print(Text.assemble((f"{name}  ", "bold"), sentence))
    console.print()


def _line(figure: Mapping[str, Any]) -> Text:
    change = figure["change"]
    style = f"bold {COLOURS[change]}" if figure["is_primary"] else "dim"
    label = change.upper() if figure["is_primary"] else change
    return Text.assemble(
        (f"{label:<10}", style),
        f"  {figure['name']:<13} {format_change(figure['ratio']):>8}  {format_interval(figure['interval'])}",
    )


def _print_figure(
    figure: Mapping[str, Any], comparison: Mapping[str, Any], margin: str, console: Console
) -> None:
    name = figure["name"]
    line = _line(figure)
    line.append(f"  {margin}  {describe_test(figure, comparison)}")
    console.print(line, soft_wrap=True)
    means = f"{format_named(name, figure['base'])} -> {format_named(name, figure['other'])}"
    console.print(Text(f"{'':12}{means}", style="dim"), soft_wrap=True)


def _print_advice(document: Mapping[str, Any], console: Console) -> None:
    is_undecided = any(
        figure["is_primary"] and figure["change"] == "undecided"
        for comparison in document["comparisons"]
        for figure in comparison["figures"]
    )
    if document["num_planned"] and is_undecided:
        detect = 100 * document["rule"]["detect"]
        advice = f"{document['num_planned']} pairs would find a change of {detect:g} % nine times in ten"
        console.print(Text(f"{advice}: --repeat {document['num_planned']}"), soft_wrap=True)
