"""What a figure is, whatever it shows: title, caption, a function that draws; as a file, or in a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from reports.canvas import SIZES, inline_svg, new_figure, page_colours, save_figure
from reports.explore import describe_axes, name_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec(Generic[Shown]):
    """One figure. `draw` returns False where what is to be shown holds no data for it."""

    title: str
    caption: str
    draw: Callable[[Shown, list[Axes]], bool]
    num_rows: int | Callable[[Shown], int] = 1
    height_inches: float = 3.3

    def render(self, shown: Shown, file_format: str = "svg", size: str = "column") -> bytes | None:
        """Draw as a file, svg, pdf or png, for a column or a page; None where there is nothing to draw."""
        with new_figure(self._count_rows(shown), self.height_inches, SIZES[size]) as (figure, axes):
            return save_figure(figure, file_format) if self.draw(shown, axes) else None

    def inline(self, shown: Shown, name: str) -> tuple[str, str] | None:
        """Draw as an element of a page, beside what its script has to know of the axes, as JSON."""
        with new_figure(self._count_rows(shown), self.height_inches) as (figure, axes):
            if not self.draw(shown, axes):
                return None
            series = name_series(axes)
            svg = save_figure(figure, "svg").decode()
            described = json.dumps(describe_axes(axes, series), ensure_ascii=False, allow_nan=False)
        return inline_svg(svg, name, self.title, self.caption), page_colours(described)

    def _count_rows(self, shown: Shown) -> int:
        return self.num_rows if isinstance(self.num_rows, int) else self.num_rows(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnFigure:
    """A figure as it stands in a page."""

    name: str
    number: int
    title: str
    caption: str
    svg: str
    axes: str


def files_of(
    specs: Mapping[str, FigureSpec[Shown]], shown: Shown, file_format: str, size: str
) -> dict[str, bytes]:
    """Draw the figures that there is data for, each as a file that bears its name."""
    drawn = {f"{name}.{file_format}": spec.render(shown, file_format, size) for name, spec in specs.items()}
    return {name: content for name, content in drawn.items() if content is not None}


def draw_all(specs: Mapping[str, FigureSpec[Shown]], shown: Shown) -> list[DrawnFigure]:
    """Draw the figures that there is data for, numbered in their order."""
    drawn: list[DrawnFigure] = []
    for name, spec in specs.items():
        inline = spec.inline(shown, name)
        if inline is not None:
            svg, axes = inline
            number = len(drawn) + 1
            drawn.append(
                DrawnFigure(
                    name=name, number=number, title=spec.title, caption=spec.caption, svg=svg, axes=axes
                )
            )
    return drawn
