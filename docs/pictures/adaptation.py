"""The idea in three steps, with embeddings of a network that trains: memory, batch, adaptation."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.engine.distortion import distort
from benchmarks.engine.glyph_net import GlyphNet
from pml_xbn.adapters import MomentMatching
from pml_xbn.datasets import Glyphs

from .style import Style, in_both, recolour, save

BATCH, ROWS, STEPS = 64, 384, 60
TITLES = (
    "1. The memory keeps what it stored",
    "2. The model has moved on: it is stale",
    "3. XBN moves it to the batch",
)


def draw_adaptation(folder: Path) -> None:
    """Writes ``adaptation-1-light.svg`` to ``adaptation-3-dark.svg``.

    To the right is where the mean of the same images has moved. Most of that shift lies across the
    directions in which embeddings spread: it would not be seen on their first two principal components.
    """
    run = embeddings_of_a_run()
    labels = torch.zeros(ROWS), torch.zeros(BATCH)
    adapted = MomentMatching()(run.stored, labels[0], run.batch, labels[1])
    distances = ("", distances_to(run.fresh, run.stored), distances_to(run.fresh, adapted))
    plane = plane_of(run.stored, run.fresh)
    stored, fresh, batch, adapted = (rows @ plane for rows in (run.stored, run.fresh, run.batch, adapted))
    everything = torch.cat([stored, fresh, batch, adapted])
    low, high = everything.min(dim=0).values - 0.3, everything.max(dim=0).values + 0.3
    for number, (title, distance) in enumerate(zip(TITLES, distances, strict=True), 1):
        for figure, style in in_both((3, 4)):
            figure.set_layout_engine("none")
            axes = figure.add_axes((0.04, 0.36, 0.93, 0.57))  # the same in all three
            if number > 1:
                cloud(axes, fresh, style.faint, "the same images, embedded now")
            if number < 3:
                cloud(axes, stored, style.orange, "memory, as stored")
            else:
                cloud(axes, adapted, style.green, "memory, adapted")
            if number > 1:
                cloud(axes, batch, style.blue, "batch, embedded now", size=16)
            if number == 2:
                _arrow(axes, stored.mean(dim=0), fresh.mean(dim=0), style)
            axes.set(xticks=[], yticks=[], xlim=(low[0], high[0]), ylim=(low[1], high[1]))
            axes.set_xlabel("the shift that all rows share →")
            axes.set_title(title, fontsize=11)
            recolour(axes, style)
            figure.text(0.5, 0.285, distance, ha="center", va="top", fontsize=9.5, color=style.ink)
            figure.legend(
                *axes.get_legend_handles_labels(),
                frameon=False,
                fontsize=9.5,
                labelcolor=style.ink,
                loc="upper center",
                bbox_to_anchor=(0.5, 0.2),
                markerscale=1.5,
            )
            save(figure, folder, f"adaptation-{number}", style)


class Run(NamedTuple):
    """Embeddings at the last step of a run, ``(n, d)``."""

    stored: Tensor  # as the memory holds them
    fresh: Tensor  # of the same inputs, by the model as it is by now
    batch: Tensor


def embeddings_of_a_run() -> Run:
    """Trains for some steps with a memory that is not adapted.

    Nothing but age tells stored rows from fresh ones: images keep their distortion, and are embedded again
    in the batches that they came in, as batch normalization would otherwise move them.
    """
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    dataset = Glyphs("train")
    classes = dataset.labels < 400
    images, labels = dataset.images[classes][:, None], dataset.labels[classes]
    model = GlyphNet(128)
    memory = CrossBatchMemory(SupConLoss(temperature=0.1), 128, ROWS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen: deque[Tensor] = deque(maxlen=ROWS // BATCH)
    for step in range(STEPS):
        chosen = torch.randperm(len(images), generator=generator)[:BATCH]
        inputs = distort(images[chosen], generator)
        embeddings = model(inputs)
        if step == STEPS - 1:
            break
        loss = memory(embeddings, labels[chosen])
        seen.append(inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    oldest_first = torch.arange(ROWS).roll(-memory.queue_idx)
    with torch.no_grad():
        fresh = torch.cat([model(inputs) for inputs in seen])
    return Run(memory.embedding_memory[oldest_first], fresh, embeddings.detach())


def distances_to(fresh: Tensor, rows: Tensor) -> str:
    """Says how far rows are from their fresh embeddings, each by itself and all together."""
    one_by_one = (rows - fresh).norm(dim=1).mean()
    together = (rows.mean(dim=0) - fresh.mean(dim=0)).norm()
    return f"from a row to its fresh embedding: {one_by_one:.1f}\nfrom mean to mean: {together:.1f}"


def plane_of(stored: Tensor, fresh: Tensor) -> Tensor:
    """Returns directions ``(d, 2)``: of the shift that all rows share, and of most spread across it."""
    along = normalize(fresh.mean(dim=0) - stored.mean(dim=0), dim=0)
    across = fresh - fresh.mean(dim=0)
    across = across - torch.outer(across @ along, along)
    return torch.stack([along, torch.linalg.svd(across, full_matrices=False).Vh[0]], dim=1)


def cloud(axes: Axes, rows: Tensor, colour: str, label: str, size: int = 7) -> None:
    axes.scatter(rows[:, 0], rows[:, 1], s=size, color=colour, alpha=0.7, linewidths=0, label=label)


def _arrow(axes: Axes, start: Tensor, end: Tensor, style: Style) -> None:
    axes.annotate(
        "",
        xy=(float(end[0]), float(end[1])),
        xytext=(float(start[0]), float(start[1])),
        arrowprops={"arrowstyle": "-|>", "color": style.ink, "linewidth": 2},
    )
