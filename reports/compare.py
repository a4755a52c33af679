"""A comparison in the terminal: a verdict a figure, the primary ones first, with interval, margin and p."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.stats.paired import MAX_REPLICATES
from reports.repeat import format_named
from reports.sides import cause_sentences, side_columns, side_rows, sides_of

COLOURS = {"better": "green", "worse": "red", "equivalent": "green", "undecided": "yellow"}
GAP = 2  # between columns


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


def print_comparison(document: Mapping[str, Any], console: Console, *, wide: bool = False) -> None:
    """Print compare.json in 80 columns; wide: the figures that are not primary with their tests too."""
    margin = f"margin {100 * document['rule']['margin']:g} %"
    _print_sides(sides_of(document), console)
    for comparison in document["comparisons"]:
        arms = f"{comparison['base']} -> {comparison['arm']}"
        console.print(Text.assemble((arms, "bold"), f", {margin}"), soft_wrap=True)
        primary = [figure for figure in comparison["figures"] if figure["is_primary"]]
        rest = [figure for figure in comparison["figures"] if not figure["is_primary"]]
        for figure in (*primary, *rest):
            console.print(_line(figure), soft_wrap=True)
            if wide or figure["is_primary"]:
                console.print(Text(f"{'':12}{describe_test(figure, comparison)}", style="dim"))
        for line in (*comparison["notes"], *(f"left out: {said}" for said in comparison["left_out"])):
            console.print(Text(f"  {line}", style="yellow"), soft_wrap=True)
        if not comparison["figures"]:
            console.print(Text("  no pair of valid runs to compare", style="red"))
    _print_advice(document, console)


def _print_sides(sides: Sequence[Mapping[str, Any]], console: Console) -> None:
    if not sides:
        return
    columns = list(zip(side_columns(sides), *side_rows(sides), strict=True))
    for shown in _columns_that_fit(columns, console.width):
        table = Table.grid(padding=(0, GAP, 0, 0))
        for number, _ in enumerate(shown):
            table.add_column(justify="right" if number else "left")
        for number, row in enumerate(zip(*shown, strict=True)):
            table.add_row(*map(Text, row), style="" if number else "dim")
        console.print(table)
        console.print()
    grid = Table.grid(padding=(0, GAP, 0, 0))
    for name, sentence in cause_sentences(sides):
        grid.add_row(Text(name, style="bold"), Text(sentence))
    if grid.row_count:
        console.print(grid)
        console.print()


def _columns_that_fit(columns: Sequence[Sequence[str]], width: int) -> Iterator[list[Sequence[str]]]:
    """Part the arms into tables that fit, each with the names of the figures as its first column."""
    names, *arms = columns
    shown, taken = [names], _width(names)
    for arm in arms:
        if len(shown) > 1 and taken + _width(arm) > width:
            yield shown
            shown, taken = [names], _width(names)
        shown.append(arm)
        taken += _width(arm)
    yield shown


def _width(column: Sequence[str]) -> int:
    return GAP + max(map(len, column))


def _line(figure: Mapping[str, Any]) -> Text:
    change, name = figure["change"], figure["name"]
    style = f"bold {COLOURS[change]}" if figure["is_primary"] else "dim"
    label = change.upper() if figure["is_primary"] else change
    return Text.assemble(
        (f"{label:<10}", style),
        f"  {name:<13} {format_change(figure['ratio']):>8}  {format_interval(figure['interval']):<20}",
        f"  {format_named(name, figure['base'])} -> {format_named(name, figure['other'])}",
    )


def _print_advice(document: Mapping[str, Any], console: Console) -> None:
    is_undecided = any(
        figure["is_primary"] and figure["change"] == "undecided"
        for comparison in document["comparisons"]
        for figure in comparison["figures"]
    )
    if document["num_planned"] and is_undecided:
        detect = 100 * document["rule"]["detect"]
        num, found = document["num_planned"], f"would find a change of {detect:g} % nine times in ten"
        advice = f"{num} pairs {found}: --repeat {num}"
        if num >= MAX_REPLICATES:
            advice = f"only more than {MAX_REPLICATES:,} pairs {found}"
        console.print(Text(advice), soft_wrap=True)
