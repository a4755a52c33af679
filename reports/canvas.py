"""The paper that figures are drawn on: size, type, palette, and an SVG that follows the page's colours.

Decides how every figure looks and how large it is, not what it shows. Colours are Okabe and Ito's (distinct
to colour-blind eyes); in a page each one becomes a CSS variable with the printed colour as its fallback, so
that one drawing serves light, dark and paper. The same data give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b1b1f"
MUTED = "#5f6369"
RULE = "#d8d9de"
PAPER = "#fefefe"
BLUE = "#0072b2"
VERMILLION = "#d55e00"
GREEN = "#009e73"
PURPLE = "#b5569a"
AMBER = "#c98a00"
BROWN = "#8a5a44"
SHADE = "#eceef1"
CSS_NAMES = {
    INK: "--ink",
    MUTED: "--muted",
    RULE: "--rule",
    PAPER: "--paper",
    BLUE: "--blue",
    VERMILLION: "--vermillion",
    GREEN: "--green",
    PURPLE: "--purple",
    AMBER: "--amber",
    BROWN: "--brown",
    SHADE: "--shade",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How wide a figure is, its height as a share of its own, its type in points."""

    width_inches: float
    height_share: float
    points: float


SIZES = {
    "screen": Size(width_inches=5.6, height_share=1.0, points=9.5),
    "column": Size(width_inches=3.5, height_share=0.72, points=6.5),  # of two on a page
    "page": Size(width_inches=7.0, height_share=1.1, points=9.0),
}
MAX_VECTOR_POINTS = 1500  # a scatter of more points is drawn as an image inside the SVG

_STYLE: dict[str, object] = {
    "svg.hashsalt": "bench",
    "path.simplify": False,  # the page's script reads values out of the paths
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.minor.width": 0.5,
    "ytick.minor.width": 0.5,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.5,
    "lines.solid_capstyle": "round",
    "axes.formatter.useoffset": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.04,
    "figure.constrained_layout.w_pad": 0.04,
}


@contextmanager
def new_figure(
    num_rows: int = 1, height_inches: float = 3.3, size: Size = SIZES["screen"]
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Open a figure in the house style, its rows on one x axis; no global state stays.

    On a page it takes the reader's type; as a file it carries its own, as outlines in SVG.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    small = 0.95 * size.points
    is_in_page = size is SIZES["screen"]
    style = _STYLE | {
        "svg.fonttype": "none" if is_in_page else "path",
        "savefig.dpi": 200 if is_in_page else 300,
        "font.size": size.points,
        "xtick.labelsize": small,
        "ytick.labelsize": small,
        "legend.fontsize": small,
    }
    with matplotlib.rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=(size.width_inches, size.height_share * height_inches))
        FigureCanvasAgg(figure)
        grid = figure.subplots(num_rows, 1, sharex=True, squeeze=False)
        yield figure, [row[0] for row in grid]


def save_figure(figure: Figure, file_format: str) -> bytes:
    """Write the figure as `svg`, `pdf` or `png`, without dates, fonts embedded where the format can."""
    buffer = io.BytesIO()
    metadata: Mapping[str, None] = {
        "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        "png": {"Software": None},
    }[file_format]
    figure.savefig(buffer, format=file_format, metadata=metadata)
    return buffer.getvalue()


def inline_svg(svg: str, name: str, title: str, description: str) -> str:
    """Turn a saved SVG into an element of a page: its colours and type, unique ids, words for readers."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = body.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    body = re.sub(r"(\d\.\d{3})\d+", r"\1", body)  # a thousandth of a point is enough
    body = page_colours(body)
    view_box = re.search(r'viewBox="([^"]+)"', body)
    assert view_box is not None
    head = (
        f'<svg viewBox="{view_box.group(1)}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    return head + body[body.index(">") + 1 :].strip()


def page_colours(text: str) -> str:
    """Write each colour of the palette as the page's own, the printed one as its fallback."""

    def in_page(match: re.Match[str]) -> str:
        colour = match.group(0)
        name = CSS_NAMES.get(colour)
        return f"var({name}, {colour})" if name else colour

    return re.sub(r"#[0-9a-f]{6}\b", in_page, text)
