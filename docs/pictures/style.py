"""How all pictures of the site look, on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure


class Style(NamedTuple):
    """Colours that can be told from each other and from the page; Okabe and Ito's, lighter on dark pages."""

    name: str
    ink: str
    paper: str
    faint: str
    blue: str
    orange: str
    green: str


STYLES = (
    Style("light", "#202020", "#ffffff", "#c8c8c8", "#0072B2", "#D55E00", "#007A59"),
    Style("dark", "#e8e8e8", "#131416", "#606060", "#56B4E9", "#FF8A3D", "#2BD4A4"),
)


def recolour(axes: Axes, style: Style) -> None:
    """Gives frame, ticks and writing the ink of the style."""
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(style.ink)
    axes.tick_params(colors=style.ink)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts):
        text.set_color(style.ink)


def save(figure: Figure, folder: Path, name: str, style: Style) -> None:
    figure.savefig(folder / f"{name}-{style.name}.svg", transparent=True, metadata={"Date": None})


def in_both(figsize: tuple[float, float]) -> Iterator[tuple[Figure, Style]]:
    """An empty figure for each style."""
    for style in STYLES:
        yield Figure(figsize=figsize, layout="constrained"), style
