"""A fused loss reads no number of a device: it is traced, compiled, and given indices without a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from pmls_value import chosen_of_each, value_and_gradients
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pml_xbn.pairwise._loss import Comparison, loss_against
from pml_xbn.pairwise._supported import fused_loss_of

A, N, D = 6, 40, 8
LOSSES = {
    kind.__name__: kind
    for kind in (
        losses.CircleLoss,
        losses.ContrastiveLoss,
        losses.MultiSimilarityLoss,
        losses.NTXentLoss,
        losses.SupConLoss,
        losses.TripletMarginLoss,
    )
}
MINERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "pair margin": lambda: miners.PairMarginMiner(0.5, 0.9),
    "multi-similarity": miners.MultiSimilarityMiner,
    "hard": miners.BatchHardMiner,
    "easy, semihard": lambda: miners.BatchEasyHardMiner("easy", "semihard"),
    "triplet margin": miners.TripletMarginMiner,
}


class Rows:
    """Rows ``stored * scale + shift``, of which a few are read at a time."""

    def __init__(
        self, stored: Tensor, scale: Tensor, shift: Tensor, num_rows: Any, is_row: Tensor | None
    ) -> None:
        self.stored, self.scale, self.shift = stored, scale, shift
        self.num_rows, self.is_row = num_rows, is_row
        self.most_rows_here = len(stored)

    def with_number_on_host(self) -> Rows:
        num_rows = int(self.num_rows)
        return Rows(self.stored[:num_rows], self.scale, self.shift, num_rows, None)

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        for first in range(0, self.most_rows_here, 16):
            part = slice(first, min(first + 16, self.most_rows_here))
            yield part, self.read(dtype)[part]

    def read(self, dtype: torch.dtype) -> Tensor:
        return (self.stored * self.scale + self.shift).to(dtype)

    def weighted_sum(self, weights: Tensor, row_factors: Tensor | None = None) -> Tensor:
        weights = weights if row_factors is None else weights * row_factors
        return weights @ self.read(weights.dtype)

    def products(self, vectors: Tensor) -> Tensor:
        return vectors @ self.read(vectors.dtype).t()

    def lengths(self, dtype: torch.dtype) -> Tensor:
        return self.read(dtype).norm(dim=1)

    def least_length(self, _: torch.dtype) -> float:
        return 1e-12


def inputs(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Anchors and labels, rows and labels, a map, the anchors' self-pairs, and which rows are occupied."""
    draw = torch.Generator().manual_seed(seed)
    anchors, stored = (torch.randn(size, D, generator=draw, dtype=dtype) for size in (A, N))
    labels, row_labels = (torch.randint(0, 4, (size,), generator=draw) for size in (A, N))
    scale, shift = (torch.rand(D, generator=draw, dtype=dtype) + x for x in (0.5, -0.5))
    own = torch.arange(A) + seed
    row_labels[own] = labels
    return [anchors, labels, stored, row_labels, scale, shift, own, torch.arange(N) < 30 + seed]


def loss_of(loss: nn.Module, miner: Any) -> Callable[..., Tensor]:
    def compute(anchors: Tensor, labels: Tensor, *rest: Tensor) -> Tensor:
        stored, row_labels, scale, shift, own, is_row = rest
        rows: Any = Rows(stored, scale, shift, is_row.sum(), is_row)
        compared = Comparison(loss, miner, anchors, labels, rows, row_labels, own)
        return loss_against(compared, fused_loss_of(compared.loss))

    return compute


def with_gradient(compute: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def both(anchors: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        leaf = anchors.detach().requires_grad_()
        value = compute(leaf, *rest)
        (gradient,) = torch.autograd.grad(value, leaf)
        return value.detach(), gradient

    return both


@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_traced_loss_is_the_loss_of_other_inputs_too(loss: str, miner: str) -> None:
    both = with_gradient(loss_of(LOSSES[loss](), MINERS[miner]()))
    traced = make_fx(both)(*inputs(0))  # raises if a number of a tensor is read
    for seed in range(1, 5):
        found, expected = traced(*inputs(seed)), both(*inputs(seed))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("miner", [*MINERS, "angular"])
@pytest.mark.parametrize(
    "loss", [name for name in losses.CrossBatchMemory.supported_losses() if name != "LiftedStructureLoss"]
)
def test_rows_that_are_not_occupied_have_no_part(loss: str, miner: str) -> None:
    """The loss is PML's of the others. (LiftedStructureLoss has other pairs than PML's.)"""
    inner, chooser = getattr(losses, loss)(), (MINERS | {"angular": miners.AngularMiner})[miner]()
    anchors, labels, *of_rows, own, is_row = inputs(3, torch.float64)
    found = with_gradient(loss_of(inner, chooser))(anchors, labels, *of_rows, own, is_row)
    stored, row_labels, scale, shift = of_rows
    rows, row_labels = (stored * scale + shift)[is_row], row_labels[is_row]
    chosen = chosen_of_each(chooser, anchors, labels, rows, row_labels, own)
    expected = value_and_gradients(inner, anchors, labels, chosen, rows, row_labels)[:2]
    torch.testing.assert_close(found, (expected[0], expected[1] / 3))
