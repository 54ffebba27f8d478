"""The picture of a comparison."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.moco.training import History

# Of Okabe and Ito's palette, which colour-blind readers can tell apart.
_STYLES = (("#000000", "o", "-"), ("#D55E00", "s", "--"), ("#0072B2", "D", "-."), ("#009E73", "^", ":"))
_MARKED_EPOCHS = 20  # as many markers fit on a curve


def draw_accuracy(histories: dict[str, History], title: str, path: Path) -> None:
    """Weighted kNN accuracy over epochs.

    Args:
        histories: by method.
        title: of the picture.
        path: the image file, its format by its suffix.
    """
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.subplots()
    for (method, history), (colour, marker, line) in zip(histories.items(), _STYLES, strict=False):
        axes.plot(
            [row["epoch"] for row in history.epochs],
            [row["weighted_knn"] for row in history.epochs],
            color=colour,
            marker=marker,
            linestyle=line,
            markevery=max(1, len(history.epochs) // _MARKED_EPOCHS),
            markeredgecolor="white",
            linewidth=2,
            label=method,
        )
    axes.set(title=title, xlabel="epoch", ylabel="weighted kNN accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="0.85")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
