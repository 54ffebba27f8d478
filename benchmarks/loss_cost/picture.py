"""Which losses fit where, and how long a step takes, as one picture."""

from __future__ import annotations

from math import log10
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from benchmarks.engine.figures import BLUE, ORANGE, YELLOW

_TIMES = LinearSegmentedColormap.from_list("times", ["#EAF3F8", BLUE])
_FASTEST, _SLOWEST = 0.001, 10.0  # seconds, of the lightest and the darkest
_MEMORIES = {"XBNWrapper": "ours", "CrossBatchMemory": "PML's"}


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """A column of panels for each number of classes; above without miner, below with the usual one."""
    kinds = sorted({row["classes"] for row in rows}, reverse=True)
    mined = sorted({row["miner"] != "none" for row in rows})
    losses = sorted({row["loss"] for row in rows}, reverse=True)
    sizes = sorted({int(row["rows"]) for row in rows})
    width, height = 2 + 1.6 * len(sizes) * len(kinds), 1.2 + len(mined) * (0.9 + 0.3 * len(losses))
    figure = Figure(figsize=(max(width, 8), height), layout="constrained")
    panels = figure.subplots(len(mined), len(kinds), squeeze=False, sharey="row")
    for row_of_panels, has_miner in zip(panels, mined, strict=True):
        of_row = [row for row in rows if (row["miner"] != "none") == has_miner]
        for panel, kind in zip(row_of_panels, kinds, strict=True):
            _fill(panel, [row for row in of_row if row["classes"] == kind], losses, sizes)
            miner = "with its usual miner" if has_miner else "without miner"
            panel.set_title(f"{miner}, {kind} classes", fontsize=11, pad=24)
        miners = {row["loss"]: row["miner"] for row in of_row}
        names = [
            loss.removesuffix("Loss") + (f"\n{miners.get(loss, '')}" if has_miner else "") for loss in losses
        ]
        row_of_panels[0].set_yticks(range(len(losses)), names, fontsize=8)
    limits = float(rows[0]["time_limit_s"]), float(rows[0]["memory_limit_gb"])
    figure.legend(
        handles=[
            Patch(color=_TIMES(0.5), label="a step in ms, or in s where it says so"),
            Patch(color=YELLOW, label=f"takes over {limits[0]:g} s"),
            Patch(color=ORANGE, label=f"does not fit in {limits[1]:g} GB"),
        ],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    figure.savefig(path, dpi=150)


def _fill(panel: Axes, rows: list[dict[str, str]], losses: list[str], sizes: list[int]) -> None:
    """A cell for every loss and size, ours left of PML's."""
    first_of = {memory: i * (len(sizes) + 0.35) for i, memory in enumerate(_MEMORIES)}
    for row in rows:
        text, colour, ink = _look(row)
        x, y = first_of[row["memory"]] + sizes.index(int(row["rows"])), losses.index(row["loss"])
        panel.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour, linewidth=0))
        panel.text(x, y, text, ha="center", va="center", fontsize=8.5, color=ink)
    for memory, name in _MEMORIES.items():
        middle = first_of[memory] + (len(sizes) - 1) / 2
        panel.text(middle, len(losses) + 0.1, name, ha="center", fontsize=10, weight="bold")
    places = [first + i for first in first_of.values() for i in range(len(sizes))]
    names = [f"{size / 1000:.0f}k" if size >= 1000 else str(size) for size in sizes]
    panel.set_xticks(places, names * len(first_of), fontsize=8)
    panel.set(xlim=(-0.6, max(places) + 0.6), ylim=(-0.6, len(losses) - 0.4), xlabel="rows in memory")
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)


def _look(row: dict[str, str]) -> tuple[str, object, str]:
    """Writing, colour, and colour of the writing."""
    if row["outcome"] == "does not fit":
        return "✗", ORANGE, "white"
    if row["outcome"].startswith("over"):
        return f">{float(row['time_limit_s']):g} s", YELLOW, "black"
    if row["outcome"] != "fits":
        return "fails", "0.6", "black"
    seconds = float(row["ms"]) / 1000
    share = (log10(seconds) - log10(_FASTEST)) / (log10(_SLOWEST) - log10(_FASTEST))
    text = f"{1000 * seconds:.0f}" if seconds < 0.9995 else f"{seconds:.1f} s"
    return text, _TIMES(min(max(share, 0.0), 1.0)), "white" if share > 0.7 else "black"
