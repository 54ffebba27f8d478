"""The data of every figure are the numbers, and its title is a question."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pml_xbn import diagnostics
from pml_xbn.diagnostics import (
    AdaptedStaleness,
    CommonModePush,
    ValidPairs,
    class_separability,
    common_mode_push,
    embedding_distances,
    feature_drift,
    staleness,
    superclass_neighbours,
)

matplotlib_figure = pytest.importorskip("matplotlib.figure")

STEPS = [20, 0, 10]  # in any order
LABELS = torch.arange(8) % 3


def rows() -> Tensor:
    return torch.randn(8, 3)


def named_lines(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def check(figure: Any, expected: dict[str, tuple[Sequence[int], Sequence[float]]]) -> None:
    assert isinstance(figure, matplotlib_figure.Figure)
    axes = figure.axes[0]
    assert axes.get_title().endswith("?")
    assert figure.axes[-1].get_xlabel()
    assert all(axes.get_ylabel() for axes in figure.axes)
    lines = named_lines(axes)
    assert list(lines) == list(expected)
    for label, (x, y) in expected.items():
        assert list(lines[label].get_xdata()) == list(x)
        assert list(lines[label].get_ydata()) == pytest.approx([float(value) for value in y])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(expected)
    figure.savefig(io.BytesIO(), format="png")


def test_plot_feature_drift() -> None:
    drift = {step: feature_drift(rows(), rows()) for step in STEPS}
    history = {0: {}, 10: {1: drift[10]}, 20: {1: drift[20], 10: drift[0]}, 21: {}}
    check(
        diagnostics.plot_feature_drift(history),
        {
            r"$\Delta k$ = 1, mean": ([10, 20], [drift[10].mean, drift[20].mean]),
            r"$\Delta k$ = 1, maximum": ([10, 20], [drift[10].maximum, drift[20].maximum]),
            r"$\Delta k$ = 10, mean": ([20], [drift[0].mean]),
            r"$\Delta k$ = 10, maximum": ([20], [drift[0].maximum]),
        },
    )


def test_plot_staleness() -> None:
    before, after = (staleness(rows(), rows(), torch.arange(8) // 3 + 1) for _ in range(2))
    check(
        diagnostics.plot_staleness(AdaptedStaleness(before, after)),
        {
            "before adaptation, mean": ([1, 2, 3], before.mean_by_age),
            "before adaptation, maximum": ([1, 2, 3], before.maximum_by_age),
            "after adaptation, mean": ([1, 2, 3], after.mean_by_age),
            "after adaptation, maximum": ([1, 2, 3], after.maximum_by_age),
        },
    )


def test_plot_staleness_of_several_memories() -> None:
    ages = torch.arange(8) // 3 + 1
    measured = {
        name: AdaptedStaleness(*(staleness(rows(), rows(), ages) for _ in range(2)))
        for name in ("XBM", "XBN")
    }
    expected = {
        f"{name}, {when} adaptation": ([1, 2, 3], part.mean_by_age)
        for name, parts in measured.items()
        for when, part in parts._asdict().items()
    }
    check(diagnostics.plot_staleness(measured), expected)


def test_plot_valid_pairs() -> None:
    history = {step: ValidPairs(*torch.randint(1000, (4,))) for step in STEPS}
    check(
        diagnostics.plot_valid_pairs(history),
        {
            name.replace("_", " "): ([0, 10, 20], [getattr(history[step], name) for step in (0, 10, 20)])
            for name in ValidPairs._fields
        },
    )


def test_plot_embedding_distances() -> None:
    history = {step: embedding_distances(rows(), LABELS) for step in STEPS}
    between, to_mean = zip(*(history[step] for step in (0, 10, 20)), strict=True)
    check(
        diagnostics.plot_embedding_distances(history),
        {"between embeddings": ([0, 10, 20], between), "to the mean of the class": ([0, 10, 20], to_mean)},
    )


def test_plot_superclass_neighbours() -> None:
    shares = {name: superclass_neighbours(rows(), LABELS, max_k=3) for name in ("XBM", "XBN")}
    figure = diagnostics.plot_superclass_neighbours(shares)
    check(figure, {name: ([1, 2, 3], share) for name, share in shares.items()})


def test_plot_class_separability() -> None:
    history = {step: class_separability(rows(), LABELS) for step in STEPS}
    criteria = [history[step].criterion for step in (0, 10, 20)]
    check(
        diagnostics.plot_class_separability(history), {r"trace $S_b$ / trace $S_w$": ([0, 10, 20], criteria)}
    )


def pushes() -> tuple[dict[int, CommonModePush], tuple[list[Tensor], list[Tensor], list[Tensor]]]:
    """A history, and by ascending step its shares, its pushes over the rms gradient, and displacements."""
    gradients, anchors = [rows() for _ in STEPS], rows()
    history = {
        step: common_mode_push(g, anchors, anchors - 1) for step, g in zip(STEPS, gradients, strict=True)
    }
    rms = [g.square().sum(dim=1).mean().sqrt() for g in (gradients[1], gradients[2], gradients[0])]
    ordered = [history[step] for step in (0, 10, 20)]
    along = [push.push / size for push, size in zip(ordered, rms, strict=True)]
    return history, ([push.share for push in ordered], along, [push.displacement for push in ordered])


def test_plot_common_mode_push() -> None:
    history, (shares, along, displacements) = pushes()
    figure = diagnostics.plot_common_mode_push(history)
    lines = {"common to all anchors": shares, "of that, away from the memory": along}
    check(figure, {label: ([0, 10, 20], values) for label, values in lines.items()})
    line = named_lines(figure.axes[1])["displacement"]
    assert list(line.get_ydata()) == pytest.approx([float(value) for value in displacements])


def test_plot_common_mode_push_of_several_memories() -> None:
    histories, expected = {}, {}
    for name in ("XBM", "XBN"):
        histories[name], (shares, along, _) = pushes()
        expected[f"{name}, common to all anchors"] = [0, 10, 20], shares
        expected[f"{name}, of that, away from the memory"] = [0, 10, 20], along
    figure = diagnostics.plot_common_mode_push(histories)
    check(figure, expected)
    assert list(named_lines(figure.axes[1])) == ["XBM", "XBN"]


def test_plots_over_steps_compare_several_memories() -> None:
    kinds = {
        "feature_drift": (
            lambda: {1: feature_drift(rows(), rows())},
            {r"$\Delta k$ = 1": lambda x: x[1].mean},
        ),
        "valid_pairs": (
            lambda: ValidPairs(*torch.randint(1000, (4,))),
            {
                "positives from memory": lambda x: x.positives_from_memory,
                "negatives from memory": lambda x: x.negatives_from_memory,
            },
        ),
        "embedding_distances": (
            lambda: embedding_distances(rows(), LABELS),
            {
                "between embeddings": lambda x: x.between_embeddings,
                "to the mean of the class": lambda x: x.to_class_mean,
            },
        ),
        "class_separability": (lambda: class_separability(rows(), LABELS), {"": lambda x: x.criterion}),
    }
    for kind, (measure, lines) in kinds.items():
        histories = {memory: {step: measure() for step in STEPS} for memory in ("XBM", "XBN")}
        expected = {
            f"{memory}, {label}" if label else memory: ([0, 10, 20], [value(history[x]) for x in (0, 10, 20)])
            for memory, history in histories.items()
            for label, value in lines.items()
        }
        check(getattr(diagnostics, f"plot_{kind}")(histories), expected)


def test_every_plot_takes_an_empty_history() -> None:
    for name in diagnostics.__all__:
        if name.startswith("plot_"):
            figure = getattr(diagnostics, name)({})
            figure.savefig(io.BytesIO(), format="png")


def test_plots_without_matplotlib_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "pml_xbn\[examples\]"'):
        diagnostics.plot_class_separability({})
