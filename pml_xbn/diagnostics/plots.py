"""Figures of diagnostics. The title of each is the question that it answers.

A history is a mapping from the number of the step to what was measured there. To compare several memories in
one figure pass a mapping from their names to their histories. The functions return a
``matplotlib.figure.Figure``, for ``figure.savefig(path)`` or ``SummaryWriter.add_figure``; they show and save
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from .class_separability import ClassSeparability
from .common_mode_push import CommonModePush
from .embedding_distances import EmbeddingDistances
from .feature_drift import Drift
from .staleness import AdaptedStaleness
from .valid_pairs import ValidPairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", ":", "-.")

Measured = TypeVar("Measured")
# Of one memory, or of several by their names.
History = Mapping[int, Measured] | Mapping[str, Mapping[int, Measured]]


def plot_feature_drift(history: History[Mapping[int, Drift]]) -> Figure:
    r"""How far does an image's embedding move? Drift over steps, one colour per :math:`\Delta k`.

    Args:
        history: what ``FeatureDrift.update`` returned, by step. Steps without a measurement may be there. Of
            several memories only the means are drawn, with a colour per memory.

    Example:
        >>> import torch
        >>> from pml_xbn.diagnostics import feature_drift
        >>> drift = feature_drift(torch.ones(2, 2), torch.zeros(2, 2))
        >>> plot_feature_drift({10: {1: drift}, 20: {1: drift}}).axes[0].get_title()
        "How far does an image's embedding move?"
    """
    figure, axes = _figure("How far does an image's embedding move?", "step", "feature drift")
    histories = _by_memory(history)
    for memory_number, (memory, drifts_at) in enumerate(histories.items()):
        for number, delta in enumerate(sorted({delta for drifts in drifts_at.values() for delta in drifts})):
            steps = [step for step in sorted(drifts_at) if delta in drifts_at[step]]
            drifts, name = [drifts_at[step][delta] for step in steps], rf"$\Delta k$ = {delta}"
            if len(histories) > 1:
                style = _STYLES[number % len(_STYLES)]
                _line(axes, memory_number, steps, [d.mean for d in drifts], f"{memory}, {name}", style)
            else:
                _line(axes, number, steps, [d.mean for d in drifts], f"{name}, mean")
                _line(axes, number, steps, [d.maximum for d in drifts], f"{name}, maximum", "--")
    return _finished(figure, axes, from_zero=True)


def plot_staleness(measured: AdaptedStaleness | Mapping[str, AdaptedStaleness]) -> Figure:
    """How stale are the rows of the memory? Mean distance to a fresh embedding, by age of the row.

    Args:
        measured: what ``RowTracker.staleness`` returned. To compare several memories pass a mapping from
            name to that; then the means are drawn and the maxima are not.
    """
    figure, axes = _figure(
        "How stale are the rows of the memory?", "age of the row (steps)", "distance to a fresh embedding"
    )
    if isinstance(measured, AdaptedStaleness):
        for number, (name, part) in enumerate(measured._asdict().items()):
            _line(axes, number, part.ages.tolist(), part.mean_by_age, f"{name} adaptation, mean")
            _line(axes, number, part.ages.tolist(), part.maximum_by_age, f"{name} adaptation, maximum", "--")
        for line in axes.lines[:2]:
            line.set_linewidth(4)  # still to be seen where the others lie upon them
        return _finished(figure, axes, from_zero=True)
    for number, (memory, (before, after)) in enumerate(measured.items()):
        _line(axes, number, before.ages.tolist(), before.mean_by_age, f"{memory}, before adaptation", ":")
        _line(axes, number, after.ages.tolist(), after.mean_by_age, f"{memory}, after adaptation")
    return _finished(figure, axes, from_zero=True)


def plot_valid_pairs(history: History[ValidPairs]) -> Figure:
    """Where do the valid pairs come from? Numbers of pairs over steps, by kind and source.

    Args:
        history: what ``WatchedLoss.valid_pairs`` returned, by step. Of several memories only the pairs with
            rows from memory are drawn.
    """
    figure, axes = _figure("Where do the valid pairs come from?", "step", "valid pairs per step")
    histories = _by_memory(history)
    for memory_number, (memory, pairs) in enumerate(histories.items()):
        for name in ValidPairs._fields:
            style, is_from_memory = "-" if name.startswith("negatives") else "--", name.endswith("memory")
            if len(histories) == 1:
                _history(axes, int(is_from_memory), pairs, name, name.replace("_", " "), style)
            elif is_from_memory:
                _history(axes, memory_number, pairs, name, f"{memory}, {name.replace('_', ' ')}", style)
    axes.set_yscale("symlog", linthresh=1)
    return _finished(figure, axes, from_zero=True)


def plot_embedding_distances(history: History[EmbeddingDistances]) -> Figure:
    """Do the embeddings separate while their classes become compact? Mean distances over steps.

    Args:
        history: what :func:`embedding_distances` returned, by step.
    """
    figure, axes = _figure(
        "Do embeddings separate while classes become compact?", "step", "mean Euclidean distance"
    )
    for number, (memory, distances) in enumerate(_by_memory(history).items()):
        prefix = f"{memory}, " if memory else ""
        _history(axes, number, distances, "between_embeddings", f"{prefix}between embeddings")
        _history(axes, number, distances, "to_class_mean", f"{prefix}to the mean of the class", "--")
    return _finished(figure, axes, from_zero=True)


def plot_superclass_neighbours(shares: Mapping[str, Tensor]) -> Figure:
    """Is an embedding near the mean of its superclass? Shares over k, one line per name.

    Args:
        shares: what :func:`superclass_neighbours` returned, ``(max_k,)``, by name, for example of a method.
    """
    figure, axes = _figure(
        "Is an embedding near the mean of its superclass?",
        "k",
        "share with their superclass among the k nearest",
    )
    for number, (name, share) in enumerate(shares.items()):
        _line(axes, number, range(1, len(share) + 1), share, name)
    axes.set_xticks(range(1, max((len(share) for share in shares.values()), default=1) + 1))
    axes.set_ylim(0, 1.02)
    return _finished(figure, axes)


def plot_class_separability(history: History[ClassSeparability]) -> Figure:
    """How well are the classes separated? The class separability criterion over steps.

    Args:
        history: what :func:`class_separability` returned, by step.
    """
    figure, axes = _figure("How well are the classes separated?", "step", "class separability criterion")
    for number, (memory, separability) in enumerate(_by_memory(history).items()):
        _history(axes, number, separability, "criterion", memory or r"trace $S_b$ / trace $S_w$")
    return _finished(figure, axes, from_zero=True)


def plot_common_mode_push(history: History[CommonModePush]) -> Figure:
    """Does the loss push all anchors alike, away from the memory? The common mode over steps.

    The upper axes show the size of the common mode, and its part along the displacement of the memory. Both
    are relative to the rms gradient of an anchor, so they can be compared with each other and between runs.
    The lower axes show the length of the displacement. Where that is tiny its direction means nothing: see
    :func:`common_mode_push`.

    Args:
        history: what ``WatchedLoss.common_mode_push`` returned, by step.
    """
    figure, (axes, below) = _figures(
        "Does the loss push all anchors alike, away from the memory?",
        "step",
        "relative to the rms gradient",
        "displacement",
    )
    for number, (memory, pushes) in enumerate(_by_memory(history).items()):
        prefix, steps = f"{memory}, " if memory else "", sorted(pushes)
        along = [pushes[step].share * pushes[step].cosine for step in steps]
        _history(axes, number, pushes, "share", f"{prefix}common to all anchors")
        _line(axes, number, steps, along, f"{prefix}of that, away from the memory", "--")
        _history(below, number, pushes, "displacement", memory or "displacement")
    for part in (axes, below):
        part.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    return _finished(figure, axes)


def _by_memory(history: Any) -> Mapping[str, Mapping[int, Any]]:
    """Returns histories by the name of their memory; a history of one memory has an empty name."""
    return history if any(isinstance(key, str) for key in history) else {"": history}


def _figure(question: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure, (axes,) = _figures(question, xlabel, ylabel)
    return figure, axes


def _figures(question: str, xlabel: str, *ylabels: str) -> tuple[Figure, list[Axes]]:
    """Returns a figure and its axes, one below the other over the same steps. The first is the highest."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f'the plots need matplotlib ({error}); install it with: pip install "pml_xbn[examples]"'
        ) from error
    heights = [2.0] + [1.0] * (len(ylabels) - 1)
    figure = Figure(figsize=(7, 2.2 + 1.1 * sum(heights)), layout="constrained")
    all_axes = figure.subplots(len(ylabels), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, ylabel in zip(all_axes, ylabels, strict=True):
        axes.set_ylabel(ylabel)
        axes.grid(axis="y", color="0.85")
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].set_title(question)
    all_axes[-1].set_xlabel(xlabel)
    return figure, list(all_axes)


def _history(
    axes: Axes, number: int, history: Mapping[int, Any], field: str, label: str, style: str = "-"
) -> None:
    steps = sorted(history)
    _line(axes, number, steps, [getattr(history[step], field) for step in steps], label, style)


def _line(
    axes: Axes, number: int, x: Sequence[int], y: Tensor | Sequence[Tensor], label: str, style: str = "-"
) -> None:
    values = [float(value) for value in y]
    colour = _COLOURS[number % len(_COLOURS)]
    axes.plot(x, values, style, color=colour, marker="o", markersize=3, label=label)


def _finished(figure: Figure, axes: Axes, *, from_zero: bool = False) -> Figure:
    if from_zero:
        axes.set_ylim(bottom=0)
    if axes.lines:
        handles, labels = axes.get_legend_handles_labels()  # below the axes, where it hides no line
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure
