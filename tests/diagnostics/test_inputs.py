"""Every diagnostic on too few rows, on half precision and on what does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pml_xbn.diagnostics import (
    class_separability,
    common_mode_push,
    embedding_distances,
    feature_drift,
    scalars,
    staleness,
    superclass_neighbours,
    valid_pairs,
)

DIAGNOSTICS: dict[str, Callable[[Tensor], Any]] = {
    "drift": lambda rows: feature_drift(rows, rows + 1),
    "staleness": lambda rows: staleness(rows, rows + 1, torch.arange(len(rows))),
    "pairs": lambda rows: valid_pairs(
        rows, torch.arange(len(rows)), torch.arange(4), torch.tensor([True] * 4)
    ),
    "distances": lambda rows: embedding_distances(rows, torch.arange(len(rows))),
    "superclasses": lambda rows: superclass_neighbours(rows, torch.arange(len(rows))),
    "separability": lambda rows: class_separability(rows, torch.arange(len(rows))),
    "push": lambda rows: common_mode_push(rows, rows, rows[:-1]),
}


def tensors_of(measured: Any) -> list[Tensor]:
    return [measured] if isinstance(measured, torch.Tensor) else list(measured)


@pytest.mark.parametrize("diagnostic", DIAGNOSTICS)
@pytest.mark.parametrize("fill", [0.0, 0.1, 1e-30, 6e4])
@pytest.mark.parametrize("num_rows", [0, 1, 2])
def test_few_or_equal_rows_give_numbers(diagnostic: str, num_rows: int, fill: float) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        measured = DIAGNOSTICS[diagnostic](torch.full((num_rows, 4), fill, dtype=dtype))
        for tensor in tensors_of(measured):
            assert torch.isfinite(tensor).all()
            assert tensor.dtype in (torch.int64, torch.float32, torch.float64)
        assert all(math.isfinite(value) for value in scalars(diagnostic, measured).values())


@pytest.mark.parametrize("diagnostic", DIAGNOSTICS)
def test_nothing_is_part_of_a_graph(diagnostic: str) -> None:
    rows = torch.randn(5, 4, requires_grad=True)
    assert not any(tensor.requires_grad for tensor in tensors_of(DIAGNOSTICS[diagnostic](rows)))


ROWS, LABELS, MASK = torch.zeros(3, 2), torch.zeros(3).long(), torch.zeros(3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: feature_drift(ROWS[0], ROWS[0]), r"now has shape \(2,\): pass one row per embedding"),
        (lambda: feature_drift(ROWS, ROWS[:2]), r"before has shape \(2, 2\): pass \(3, 2\)"),
        (lambda: feature_drift(ROWS.long(), ROWS), r"now has dtype torch.int64: pass a floating dtype"),
        (lambda: staleness(ROWS, ROWS[:, :1], LABELS), r"fresh has shape \(3, 1\)"),
        (lambda: staleness(ROWS, ROWS, LABELS[:2]), r"ages has shape \(2,\): pass .* \(3,\)"),
        (lambda: staleness(ROWS, ROWS, ROWS[:, 0]), r"ages has dtype torch.float32: pass integers"),
        (lambda: valid_pairs(ROWS, LABELS, LABELS, MASK[:2]), r"row_labels has shape \(3,\): .* \(2,\)"),
        (lambda: valid_pairs(ROWS, LABELS[:2], LABELS[:2], MASK[:2]), r"anchor_labels has shape \(2,\)"),
        (lambda: valid_pairs(ROWS, LABELS, LABELS[:2], LABELS[:2]), r"is_from_batch .*torch.int64: pass"),
        (lambda: embedding_distances(ROWS, LABELS[:2]), r"labels has shape \(2,\)"),
        (lambda: class_separability(ROWS, MASK), r"labels has dtype torch.bool: pass integers"),
        (lambda: superclass_neighbours(ROWS, LABELS, max_k=0), r"max_k=0: pass an integer, 1 or more"),
        (lambda: superclass_neighbours(ROWS[None], LABELS), r"embeddings has shape \(1, 3, 2\)"),
        (lambda: common_mode_push(ROWS[:2], ROWS, ROWS), r"gradient has shape \(2, 2\): pass \(3, 2\)"),
        (lambda: common_mode_push(ROWS, ROWS, ROWS[:, :1]), r"memory has shape \(3, 1\): pass \(n, 2\)"),
    ],
)
def test_what_does_not_fit_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: feature_drift([[0.0]], ROWS),
        lambda: embedding_distances(ROWS, [0, 0, 0]),
        lambda: valid_pairs(ROWS, LABELS, LABELS[:2], [True, False]),
    ],
)
def test_what_is_no_tensor_is_a_type_error(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="is a list: pass a"):
        call()
