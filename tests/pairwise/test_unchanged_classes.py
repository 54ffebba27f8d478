"""A class that inherits from a loss or miner of PML and changes nothing is computed as PML's is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses, miners, reducers
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


class OfAnotherBase(losses.GenericPairLoss):
    def compute_loss(self, *args: Any) -> Any:
        return super().compute_loss(*args)


class OtherBehind(losses.SupConLoss, OfAnotherBase):
    """Whose second base stands between SupConLoss and the first one's own base."""

    def __init__(self) -> None:
        super().__init__()


class OtherSetting(losses.SupConLoss):
    """A setting that torch.compile would read once."""

    temperature = property(lambda self: 0.1, lambda self, value: None)


class HoldsLearned(losses.SupConLoss):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)


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


CHANGED = [
    OtherMethod,
    OtherAttribute,
    InheritsFromOther,
    OtherByMixin,
    SetsMethod,
    OtherBehind,
    OtherSetting,
]


@pytest.mark.parametrize("make", [*CHANGED, HoldsLearned])
def test_a_loss_that_changes_something_is_called(make: Callable[[], nn.Module]) -> None:
    calls: list[str] = []
    values = train(make(), None, calls, "compute_loss")
    assert len(calls) == 2
    torch.testing.assert_close(values, train(losses.SupConLoss(), None, [], "compute_loss"))


class OwnMarginMiner(miners.PairMarginMiner):
    def __init__(self, pos_margin: float, neg_margin: float) -> None:
        super().__init__(pos_margin, neg_margin)


class DivisorsWithout(losses.SupConLoss):
    def __init__(self) -> None:
        super().__init__(reducer=reducers.DivisorReducer())


class LearnedAngle(losses.AngularLoss):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.7))


def test_a_reducer_that_the_loss_of_pml_does_not_serve_is_refused_in_a_subclass_too() -> None:
    with pytest.raises(ValueError, match="DivisorsWithout with DivisorReducer"):
        XBNWrapper(DivisorsWithout(), D, M)


def test_what_an_angular_loss_learns_is_computed_by_pml() -> None:
    memory = XBNWrapper(LearnedAngle(), D, M)
    for _ in range(2):
        memory(torch.randn(8, D, requires_grad=True), torch.arange(8) % 4).backward()
    assert memory.loss.alpha.grad.isfinite()


@pytest.mark.parametrize(("make", "count"), [(SameMiner, 0), (OwnMarginMiner, 0), (OtherMiner, 2)])
def test_so_it_is_of_miners(make: Callable[..., nn.Module], count: int) -> None:
    calls: list[str] = []
    values = train(losses.SupConLoss(), make(0.3, 0.9), calls, "mine")
    assert len(calls) == count
    torch.testing.assert_close(
        values, train(losses.SupConLoss(), miners.PairMarginMiner(0.3, 0.9), [], "mine")
    )
