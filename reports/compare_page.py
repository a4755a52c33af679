"""A comparison as one self-contained HTML page: a verdict a figure, each pair as a point, the runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.measure.replicates import read_document
from reports.canvas import BLUE, INK, MUTED, SHADE, VERMILLION
from reports.compare import describe_test, format_change, format_interval
from reports.figure_spec import FigureSpec
from reports.pages import Cell, SeriesPage, Table, run_link
from reports.repeat import format_named
from reports.sides import cause_sentences, side_columns, side_figures, side_rows, sides_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]
ROW_INCHES = 0.32
CHANGES = (
    "worse",
    "undecided",
    "better",
    "equivalent",
)  # what the page is headed with, the first that was found


def describe_comparison(folder: Path) -> SeriesPage:
    """Return the page of the comparison whose compare.json lies in `folder`."""
    document = read_document(folder / "compare.json")
    sides = sides_of(document)
    comparisons = [one for one in document["comparisons"] if one["figures"]]
    specs: dict[str, FigureSpec[Json]] = {
        f"pairs-{number}": FigureSpec(
            title=f"{one['base']} → {one['arm']}",
            caption="Each dot is one pair of runs on the same requests; the bar is the interval of their "
            "mean, the shaded band the change that does not matter.",
            draw=partial(draw_changes, one),
            height_inches=1.0 + ROW_INCHES * len(one["figures"]),
        )
        for number, one in enumerate(comparisons)
    }
    margin = f"{100 * document['rule']['margin']:g} %"
    found = {f["change"] for one in comparisons for f in one["figures"] if f["is_primary"]}
    causes = Table(heading="Where the time of a mean request goes", facts=cause_sentences(sides))
    return SeriesPage(
        kind="compare",
        folder=folder,
        badge=next((change.upper() for change in CHANGES if change in found), "UNDECIDED"),
        claim=" and ".join(f"{one['base']} → {one['arm']}" for one in document["comparisons"]),
        answer=" ".join(map(_sentence, comparisons)) or "No pair of valid runs to compare.",
        notes=[f"A change within {margin} does not matter."],
        before=[
            *(_decisions(one, margin) for one in document["comparisons"]),
            Table(heading="Side by side", columns=side_columns(sides), rows=side_rows(sides)),
        ],
        figures={**side_figures(len(sides)), **specs},
        after=[causes, *(_runs(arm, folder) for arm in document["arms"])],
        document=document,
    )


def _sentence(one: Json) -> str:
    told = [
        f"{figure['name']} {figure['change']}, {format_change(figure['ratio'])}"
        for figure in one["figures"]
        if figure["is_primary"]
    ]
    return f"{one['base']} → {one['arm']}: {'; '.join(told)}."


def _decisions(one: Json, margin: str) -> Table:
    notes = [*one["notes"], *(f"left out: {said}" for said in one["left_out"])]
    return Table(
        heading=f"{one['base']} → {one['arm']}",
        columns=["figure", f"verdict, margin {margin}", "change", "95 % interval", "base", "arm", "test"],
        rows=[
            [
                figure["name"],
                Cell(text="", badge=figure["change"].upper()) if figure["is_primary"] else figure["change"],
                format_change(figure["ratio"]),
                format_interval(figure["interval"]),
                format_named(figure["name"], figure["base"]),
                format_named(figure["name"], figure["other"]),
                describe_test(figure, one),
            ]
            for figure in one["figures"]
        ],
        note=". ".join(notes) or ("" if one["figures"] else "No pair of valid runs to compare."),
        texts=frozenset([1, 6]),
    )


def _runs(arm: Json, folder: Path) -> Table:
    return Table(
        heading=f"Runs of {arm['name']}",
        columns=["run", "verdict", "seed", "plan"],
        rows=[
            [
                run_link(folder, run["folder"], run["folder"]),
                Cell(text=", ".join(run["reasons"]), badge="INVALID" if run["reasons"] else "VALID"),
                str(run["seed"]),
                run["plan_digest"],
            ]
            for run in arm["replicates"]
        ],
        texts=frozenset([1]),
    )


def draw_changes(comparison: Json, document: Json, axes: list[Axes]) -> bool:
    """Draw every figure as a row: its pairs, its interval, the margin as a band around no change."""
    (ax,) = axes
    figures = comparison["figures"][::-1]
    margin = document["rule"]["margin"]
    ax.axvspan(100 / (1 + margin) - 100, 100 * margin, color=SHADE, linewidth=0, zorder=0)
    ax.axvline(0, color=INK, linewidth=0.6)
    for row, figure in enumerate(figures):
        colour = VERMILLION if figure["change"] == "worse" else BLUE
        ax.plot(
            [100 * (ratio - 1) for ratio in figure["ratios"]],
            [row] * len(figure["ratios"]),
            "o",
            color=MUTED,
            markersize=3,
            alpha=0.5,
        )
        if figure["interval"]:
            ends = [100 * (end - 1) for end in figure["interval"]]
            ax.plot(ends, [row, row], color=colour, linewidth=2.2 if figure["is_primary"] else 1.2)
        ax.plot(100 * (figure["ratio"] - 1), row, "|", color=colour, markersize=9)
    ax.set_yticks(range(len(figures)), [figure["name"] for figure in figures])
    ax.set_xlabel(f"{comparison['arm']} against {comparison['base']}, %")
    ax.grid(axis="y", visible=False)
    return bool(figures)
