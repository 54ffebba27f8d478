"""The idea in three steps, with embeddings of a network that trains: memory, batch, adaptation."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.axes import Axes
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from torch import Tensor

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
    """Writes ``adaptation-1-light.svg`` to ``adaptation-3-dark.svg``."""
    stored, fresh, batch = embeddings_of_a_run()
    labels = torch.zeros(len(stored)), torch.zeros(len(batch))
    adapted = MomentMatching()(stored, labels[0], batch, labels[1])
    plane = plane_of(stored, batch)
    stored, fresh, batch, adapted = (rows @ plane for rows in (stored, fresh, batch, adapted))
    everything = torch.cat([stored, fresh, batch, adapted])
    low, high = everything.min(dim=0).values - 0.3, everything.max(dim=0).values + 0.3
    for number, title in enumerate(TITLES, 1):
        for figure, style in in_both((3, 3.5)):
            figure.set_layout_engine("none")
            axes = figure.add_axes((0.03, 0.24, 0.94, 0.68))  # the same in all three
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
            axes.set_title(title, fontsize=11)
            recolour(axes, style)
            figure.legend(
                *axes.get_legend_handles_labels(),
                frameon=False,
                fontsize=9.5,
                labelcolor=style.ink,
                loc="upper center",
                bbox_to_anchor=(0.5, 0.23),
                markerscale=1.5,
            )
            save(figure, folder, f"adaptation-{number}", style)


def embeddings_of_a_run() -> tuple[Tensor, Tensor, Tensor]:
    """A memory's rows, the same images embedded by the model as it is by then, and the newest batch."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    dataset = Glyphs("train")
    classes = dataset.labels < 400
    images, labels = dataset.images[classes][:, None], dataset.labels[classes]
    model = GlyphNet(128)
    memory = CrossBatchMemory(SupConLoss(temperature=0.1), 128, ROWS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stored_images = torch.zeros(ROWS, dtype=torch.int64)
    for _ in range(STEPS):
        chosen = torch.randperm(len(images), generator=generator)[:BATCH]
        place = memory.queue_idx
        embeddings = model(distort(images[chosen], generator))
        before = memory.embedding_memory.clone()
        loss = memory(embeddings, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        last = stored_images.clone()
        stored_images[place : place + BATCH] = chosen
        optimizer.step()
    with torch.no_grad():
        fresh = model(distort(images[last], generator))
    return before, fresh, embeddings.detach()


def plane_of(memory: Tensor, batch: Tensor) -> Tensor:
    """Two directions ``(d, 2)``: from the memory's mean to the batch's, and of the most spread across it."""
    along = torch.nn.functional.normalize(batch.mean(0) - memory.mean(0), dim=0)
    across = batch - batch.mean(0)
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
