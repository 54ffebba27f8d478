"""The picture of a comparison."""

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.demo.training import History

# Okabe and Ito's palette, which colour-blind readers can tell apart, and a grey.
_COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
_MARKERS = "osD^vPX*<>h"
_LINES = ("-", "--", "-.", ":")


def draw_comparison(histories: dict[str, History], warmup_epochs: int, path: Path) -> None:
    """Recall@1 over epochs on the left, feature drift over epochs on the right.

    Args:
        histories: by method; all with the same number of epochs.
        warmup_epochs: the shared epochs at the beginning, shaded.
        path: the image file, its format by its suffix.
    """
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    accuracy, drift = figure.subplots(1, 2)
    for number, (method, history) in enumerate(histories.items()):
        epochs = [row["epoch"] for row in history.epochs]
        style = {
            "color": _COLOURS[number % len(_COLOURS)],
            "marker": _MARKERS[number % len(_MARKERS)],
            "linestyle": _LINES[number % len(_LINES)],
            "linewidth": 2,
            # Smaller and smaller with a white rim, so that equal methods show behind each other.
            "markersize": max(5, 11 - 1.5 * number),
            "markeredgecolor": "white",
            "label": method,
        }
        accuracy.plot(epochs, [row["recall_at_1"] for row in history.epochs], **style)
        drift.plot(epochs, [row["drift"] for row in history.epochs], **style)
    accuracy.set(title="Test accuracy", ylabel="Recall@1 (%)", ylim=(0, None))
    drift.set(
        title="Feature drift per step",
        ylabel=r"$\|z^k - z^{k-1}\|_2$, mean over the epoch",
        ylim=(0, None),
    )
    for axes in (accuracy, drift):
        axes.axvspan(0.5, warmup_epochs + 0.5, color="0.92", zorder=0)
        axes.set(xlabel="epoch", xlim=(0.5, max(epochs) + 0.5), xticks=epochs)
        axes.text(
            (warmup_epochs + 1) / 2,
            0.02,
            "shared start,\nno memory",
            color="0.35",
            ha="center",
            va="bottom",
            transform=axes.get_xaxis_transform(),
        )
        axes.grid(axis="y", color="0.85")
        axes.spines[["top", "right"]].set_visible(False)
    accuracy.legend(frameon=False)
    figure.savefig(path, dpi=150)
