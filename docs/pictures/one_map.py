"""Where rows are stored while they are read elsewhere, and the parts in which a loss is computed."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor

from pml_xbn import XBNWrapper

from .style import Style, in_both, recolour, save

BATCH, ROWS, STEPS = 8, 80, 60


def draw_one_map(folder: Path) -> None:
    """Writes ``one-map-*.svg`` and ``loss-parts-*.svg``, of light and of dark pages."""
    stored, read = paths_of_rows()
    for figure, style in in_both((8, 3)):
        left, right = figure.subplots(1, 2, sharex=True)
        for axes, rows, title in (
            (left, read, "Rows as they are read: a ∘ u + b"),
            (right, stored, "Stored rows u"),
        ):
            axes.plot(rows, color=style.blue, linewidth=1.2)
            for wrap_around in range(ROWS // BATCH - 1, STEPS, ROWS // BATCH):
                axes.axvline(wrap_around, color=style.faint, linestyle="--", linewidth=1)
            axes.set(title=title, xlabel="step (dashed: the queue wraps around)", ylabel="one dimension")
            recolour(axes, style)
        save(figure, folder, "one-map", style)
    for figure, style in in_both((8, 2.6)):
        axes = figure.subplots()
        draw_parts(axes, style)
        save(figure, folder, "loss-parts", style)


def paths_of_rows() -> tuple[Tensor, Tensor]:
    """One dimension of the first four rows, stored and read, ``(steps, 4)``; NaN between two rows."""
    torch.manual_seed(0)
    memory = XBNWrapper(SupConLoss(), embedding_size=2, memory_size=ROWS)
    paths = torch.full((2, STEPS, ROWS), torch.nan)
    for step in range(STEPS):
        scale, mean = 1 + 0.5 * torch.sin(torch.tensor(step / 9)), 0.1 * step
        memory(mean + scale * torch.randn(BATCH, 2), torch.arange(BATCH) % 4)
        n = memory.num_rows
        paths[0, step, :n] = memory.queue.contents.rows.stored[:n, 0]
        paths[1, step, :n] = memory.embedding_memory[:n, 0]
        # A row that has just been overwritten begins another line.
        indices = memory.curr_batch_idx
        if step >= ROWS // BATCH:
            paths[:, step - 1, indices] = torch.nan
    return paths[0, :, :4], paths[1, :, :4]


def draw_parts(axes: Axes, style: Style) -> None:
    """Draws the matrix of anchors and rows in parts, and what is kept of it."""
    for part in range(3):
        colour = style.orange if part == 1 else style.faint
        axes.add_patch(Rectangle((0, 2 - part), 5, 0.85, facecolor=colour, edgecolor=style.ink, alpha=0.6))
    axes.text(2.5, 1.4, "a part: its terms, their sums,\nand their gradient", ha="center", va="center")
    axes.text(2.5, 3.05, "M rows", ha="center")
    axes.text(-0.15, 1.45, "anchors", ha="center", va="center", rotation=90)
    for y, text in ((2.2, "sums and counts  →  the loss"), (0.5, "gradient  ·  rows  →  (anchors, d)")):
        axes.annotate("", (6.1, y + 0.1), (5.2, 1.45), arrowprops={"arrowstyle": "-|>", "color": style.ink})
        axes.text(6.2, y, text, va="bottom")
    axes.text(6.2, 0.15, "all that the graph keeps", va="top", style="italic")
    axes.set(xlim=(-0.4, 9.6), ylim=(-0.1, 3.4), xticks=[], yticks=[])
    recolour(axes, style)
    axes.spines[["left", "bottom"]].set_visible(False)
