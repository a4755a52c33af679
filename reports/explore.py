"""What the page's script has to know of a figure: where its axes lie, their scales, which paths are a series.

The values themselves stand nowhere twice: the script reads them out of the drawing. An artist without a label
belongs to the series before it; what is not drawn in values (a mark at a rate, a limit) is no series.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Json = dict[str, Any]


def name_series(axes: list[Axes]) -> list[list[Json]]:
    """Give each artist that shows values an id in the drawing; return the series of each pair of axes."""
    return [_series(ax, number) for number, ax in enumerate(axes)]


def _series(ax: Axes, number: int) -> list[Json]:
    series: list[Json] = []
    bars = {bar: container.get_label() for container in ax.containers for bar in container}
    for position, artist in enumerate(ax.get_children()):
        kind, colour = _look(ax, artist)
        label = str(bars.get(artist) or artist.get_label())
        if label.startswith("_") and not series:
            label = ax.get_ylabel()
        if kind is None or not label:
            continue
        if not label.startswith("_") and (not series or series[-1]["label"] != label):
            series.append({"label": label, "kind": kind, "colour": colour, "ids": []})
        gid = f"series-{number}-{position}"
        artist.set_gid(gid)
        series[-1]["ids"].append(gid)
    return series


def _look(ax: Axes, artist: Artist) -> tuple[str | None, str]:
    """Kind (line, points, area) and colour of an artist that shows values; None for all others."""
    from matplotlib.collections import PathCollection, PolyCollection
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, PathPatch, Rectangle

    if isinstance(artist, PathCollection | PolyCollection):
        return "points" if isinstance(artist, PathCollection) else "area", to_hex(
            np.asarray(artist.get_facecolor())[0]
        )
    is_bar = isinstance(artist, Rectangle) and any(artist in container for container in ax.containers)
    if isinstance(artist, Patch) and (is_bar or isinstance(artist, PathPatch)):
        return "area", to_hex(artist.get_facecolor())
    if not isinstance(artist, Line2D) or len(np.asarray(artist.get_xdata())) == 0:
        return None, ""
    if artist.get_transform().contains_branch_seperately(ax.transData) != (True, True):
        return None, ""
    return "points" if artist.get_linestyle() == "None" else "line", to_hex(artist.get_color())


def describe_axes(axes: list[Axes], series: list[list[Json]]) -> list[Json]:
    """Describe the axes of a figure that has been drawn, in points from its upper left corner."""
    described = []
    for ax, named in zip(axes, series, strict=True):
        width, height = (72 * inches for inches in ax.get_figure(root=True).get_size_inches())  # type: ignore[union-attr]
        box = ax.get_position()
        described.append(
            {
                "box": [width * box.x0, height * (1 - box.y1), width * box.width, height * box.height],
                "x": _scale(ax.get_xlim(), ax.get_xscale(), ax.fmt_xdata),
                "y": _scale(ax.get_ylim(), ax.get_yscale(), ax.fmt_ydata),
                "series": named,
            }
        )
    return described


def _scale(limits: tuple[float, float], scale: str, write: Any) -> Json:
    """A scale; the script writes values as the function of this name does."""
    low, high = map(float, limits)
    return {
        "low": low,
        "high": high,
        "is_log": scale == "log",
        "format": getattr(write, "__name__", "format_number"),
    }
