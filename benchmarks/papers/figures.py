"""The picture of the curves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.papers.run import History

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw_curves(histories: Mapping[str, History], warmup_epochs: int, path: Path) -> None:
    """Recall@1 over epochs on the left, the loss over epochs on the right.

    Args:
        histories: by name; each with an epoch or more.
        warmup_epochs: the epochs of the new layers alone, shaded.
        path: the image file, its format by its suffix.
    """
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    accuracy, loss = figure.subplots(1, 2)
    for number, (name, history) in enumerate(histories.items()):
        epochs = [row["epoch"] for row in history.epochs]
        style = {"color": _COLOURS[number % len(_COLOURS)], "linewidth": 2, "marker": "o", "label": name}
        accuracy.plot(epochs, [row["recall_at_1"] for row in history.epochs], **style)
        loss.plot(epochs, [row["loss"] for row in history.epochs], **style)
    accuracy.set(title="Test accuracy", ylabel="Recall@1 (%)")
    loss.set(title="Loss", ylabel="mean over the epoch")
    for axes in (accuracy, loss):
        if warmup_epochs:
            axes.axvspan(0.5, warmup_epochs + 0.5, color="0.92", zorder=0)
        axes.set(xlabel="epoch", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color="0.85")
        axes.spines[["top", "right"]].set_visible(False)
    accuracy.legend(frameon=False)
    figure.savefig(path, dpi=150)
