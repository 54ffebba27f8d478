"""A class that inherits from a loss or miner of PML and changes nothing is computed as PML's is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn

from pml_xbn import XBNWrapper

D, M = 4, 20


class SameLoss(losses.SupConLoss):
    """With a docstring, an annotation, and a method that PML's has not."""

    note: str

    def describe(self) -> str:
        return "mine"


class SameMiner(miners.PairMarginMiner):
    pass


class Mixin:
    extra = 1


class MixedLoss(Mixin, losses.SupConLoss):
    pass


class OwnDefaults(losses.SupConLoss):
    def __init__(self) -> None:
        super().__init__(temperature=0.1)  # PML's default


class SetsMethod(losses.SupConLoss):
    def __init__(self) -> None:
        super().__init__()
        self.compute_loss = lambda *args: losses.SupConLoss.compute_loss(self, *args)


class OtherMethod(losses.SupConLoss):
    def compute_loss(self, *args: Any) -> Any:
        return super().compute_loss(*args)


class OtherAttribute(losses.SupConLoss):
    dump_patches = True


class InheritsFromOther(OtherMethod):
    pass


class OtherMixin:
    def forward(self, *args: Any) -> Any:
        return super().forward(*args)  # type: ignore[misc]


class OtherByMixin(OtherMixin, losses.SupConLoss):
    pass


class OtherMiner(miners.PairMarginMiner):
    def mine(self, *args: Any) -> Any:
        return super().mine(*args)


def train(loss: nn.Module, miner: nn.Module | None, calls: list[str], name: str) -> list[Tensor]:
    """Trains two steps, and notes when PML's code computes the loss or chooses pairs."""
    torch.manual_seed(0)
    loss_fn = XBNWrapper(loss, D, M, miner)
    method = getattr(losses.SupConLoss if name == "compute_loss" else miners.PairMarginMiner, name)

    def noted(*args: Any) -> Any:
        calls.append(name)
        return method(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses.SupConLoss if name == "compute_loss" else miners.PairMarginMiner, name, noted)
        values = []
        for _ in range(2):
            embeddings = torch.randn(8, D, requires_grad=True)
            value = loss_fn(embeddings, torch.arange(8) % 4)
            value.backward()
            values += [value.detach(), embeddings.grad]
    return values


@pytest.mark.parametrize("make", [losses.SupConLoss, SameLoss, MixedLoss, OwnDefaults])
def test_a_loss_that_changes_nothing_is_not_called(make: Callable[[], nn.Module]) -> None:
    calls: list[str] = []
    values = train(make(), None, calls, "compute_loss")
    assert not calls
    torch.testing.assert_close(values, train(losses.SupConLoss(), None, [], "compute_loss"))


@pytest.mark.parametrize("make", [OtherMethod, OtherAttribute, InheritsFromOther, OtherByMixin, SetsMethod])
def test_a_loss_that_changes_something_is_called(make: Callable[[], nn.Module]) -> None:
    calls: list[str] = []
    values = train(make(), None, calls, "compute_loss")
    assert len(calls) == 2
    torch.testing.assert_close(values, train(losses.SupConLoss(), None, [], "compute_loss"))


@pytest.mark.parametrize(("make", "count"), [(SameMiner, 0), (OtherMiner, 2)])
def test_so_it_is_of_miners(make: Callable[..., nn.Module], count: int) -> None:
    calls: list[str] = []
    values = train(losses.SupConLoss(), make(0.3, 0.9), calls, "mine")
    assert len(calls) == count
    torch.testing.assert_close(
        values, train(losses.SupConLoss(), miners.PairMarginMiner(0.3, 0.9), [], "mine")
    )
