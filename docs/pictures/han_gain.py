"""How much of the difference between batch and memory `MeasuredGain` follows along a run on Han."""

from __future__ import annotations

from pathlib import Path

from benchmarks.engine.results import read_csv
from benchmarks.han.cases import STEPS
from benchmarks.han.gain import GAINS

from .style import in_both, recolour, save

_BEGINS = {"first": "from the first step", "after an epoch": "warmed up, filled"}
_PARTS = {"gain_of_mean": ("-", "mean"), "gain_of_std": ("--", "standard deviation")}
_COLOURS = {"first": "blue", "after an epoch": "orange"}


def gains_of(results: Path, begins: str, part: str) -> list[tuple[int, float]]:
    """Returns steps, and K at each."""
    rows = read_csv(results / GAINS)
    return [(int(row["step"]), float(row[part])) for row in rows if row["begins"] == begins]


def draw_han_gain(results: Path, folder: Path) -> None:
    """Writes ``han_gain``, light and dark."""
    for figure, style in in_both((6.4, 3.6)):
        axes = figure.subplots()
        for begins, words in _BEGINS.items():
            for part, (line, of) in _PARTS.items():
                steps, gains = zip(*gains_of(results, begins, part), strict=True)
                ink = getattr(style, _COLOURS[begins])
                axes.plot(steps, gains, line, color=ink, linewidth=1.2, label=f"{of}, {words}")
        axes.set(ylim=(0, 1), xlim=(0, STEPS))
        axes.set_xlabel("step", fontsize=9)
        axes.set_ylabel("part K that rows follow", fontsize=9)
        recolour(axes, style)
        options = {"frameon": False, "labelcolor": style.ink, "fontsize": 8.5}
        figure.legend(loc="outside lower center", ncols=2, **options)
        save(figure, folder, "han_gain", style)
