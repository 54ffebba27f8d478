"""Every adapter passes the check that is offered for others', and wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kinds import ADAPTERS
from torch import Tensor, nn

from pml_xbn.adapters import Affine, BaseAdapter, MomentMatching, Moments, check_adapter


class Slowing(BaseAdapter):
    """Forgets how far it has slowed down."""

    share = 1.0

    def map(self, memory: Moments, target: Moments) -> Affine:
        self.share *= 0.99
        return Affine(torch.ones_like(memory.std), self.share * (target.mean - memory.mean))


class SlowingAndSaved(Slowing):
    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.share, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.share = state.item()


class Sized(BaseAdapter):
    """Makes what it holds when it is told the size."""

    def set_embedding_size(self, embedding_size: int) -> None:
        self.steps = torch.ones(embedding_size, dtype=torch.float64)

    def map(self, memory: Moments, target: Moments) -> Affine:
        return Affine(torch.ones_like(memory.std), 0.5 * self.steps * (target.mean - memory.mean))


class WritesToTarget(MomentMatching):
    def map(self, memory: Moments, target: Moments) -> Affine:
        target.mean.mul_(0.5)
        return super().map(memory, target)


class WritesToWhatItHolds(MomentMatching):
    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        if self.num_batches:
            self.estimated.mean.add_(1.0)
        return super().estimate(batch, batch_size)


class WritesToItsInput(nn.Module):
    def forward(self, memory: Tensor, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Tensor:
        return memory.sub_(batch.mean(dim=0))


class PlainModule(nn.Module):
    def forward(self, memory: Tensor, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Tensor:
        return memory + 0.1 * (batch.mean(dim=0) - memory)


class ChangesDtype(nn.Module):
    def forward(self, memory: Tensor, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Tensor:
        return memory.float()


class ToTheWrongSide(BaseAdapter):
    def map(self, memory: Moments, target: Moments) -> Affine:
        return target.affine_to(memory)


class ShiftsBeforeItScales(MomentMatching):
    def map(self, memory: Moments, target: Moments) -> Affine:
        scale = torch.where(memory.std > 0, target.std / memory.std, 1.0)
        return Affine(scale, target.mean - memory.mean)


class KeepsTheSpread(MomentMatching):
    def map(self, memory: Moments, target: Moments) -> Affine:
        return memory.affine_to(target, match_std=False)


class FailsWithoutRows(nn.Module):
    def forward(self, memory: Tensor, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Tensor:
        return memory - memory[0] + batch[0]


class Centred(nn.Module):
    """Centres rows of two or more."""

    def forward(self, memory: Tensor, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Tensor | None:
        return memory - memory.mean(dim=0) + batch.mean(dim=0) if len(memory) > 1 else None


def batch_mean(memory: Moments, target: Moments) -> Moments:
    return Moments(target.mean, memory.std)


def half_way(memory: Moments, target: Moments) -> Moments:
    return Moments((memory.mean + target.mean) / 2, memory.std)


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_passes(name: str) -> None:
    check_adapter(ADAPTERS[name]())


@pytest.mark.parametrize("make", [SlowingAndSaved, PlainModule, Sized])
def test_others_adapters_pass(make: Callable[[], nn.Module]) -> None:
    check_adapter(make())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Slowing, r"step 100: .* not in state_dict\(\)"),
        (WritesToTarget, "written to the moments"),
        (WritesToWhatItHolds, "held before the step"),
        (WritesToItsInput, "written to its input"),
        (ChangesDtype, "returned torch.float32"),
        (ToTheWrongSide, "wrong side"),
        (ShiftsBeforeItScales, "away from the target"),
        (KeepsTheSpread, "the std of the adapted rows differs"),
        (
            FailsWithoutRows,
            r"step 0: with 0 rows in memory and 5 in the batch it raised IndexError: .*\(0, d\)",
        ),
    ],
)
def test_wrong_adapters_fail(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_adapter(make())


@pytest.mark.parametrize(
    ("make", "promise", "other"), [(Sized, half_way, batch_mean), (Centred, batch_mean, half_way)]
)
def test_rows_have_to_have_the_promised_moments(
    make: Callable[[], nn.Module],
    promise: Callable[[Moments, Moments], Moments],
    other: Callable[[Moments, Moments], Moments],
) -> None:
    check_adapter(make(), moments_after=promise)
    with pytest.raises(AssertionError, match="the mean of the adapted rows differs"):
        check_adapter(make(), moments_after=other)


def test_the_adapter_is_left_as_it_is() -> None:
    adapter = MomentMatching(momentum=0.5)
    check_adapter(adapter, num_steps=4)
    assert adapter.num_batches == 0
    assert "map" not in vars(adapter)


def test_one_step_checks_nothing_and_is_refused() -> None:
    with pytest.raises(ValueError, match="num_steps=1: pass an integer, 2 or more"):
        check_adapter(MomentMatching(), num_steps=1)


class OfNumbers(BaseAdapter):
    def map(self, memory: Moments, target: Moments) -> Affine:
        return Affine(1.0, 0.0)  # type: ignore[arg-type]


class MadeFor(MomentMatching):
    """Knows its dimension."""

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        self.ones = torch.ones(embedding_size, dtype=torch.float64)

    def map(self, memory: Moments, target: Moments) -> Affine:
        affine = super().map(memory, target)
        return Affine(self.ones * affine.scale, affine.shift)


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (lambda memory, labels, batch, batch_labels: memory, "adapter is a function: pass an instance"),
        (Affine(torch.ones(4), torch.zeros(4)), "adapter is a Affine: pass an instance"),
        (MomentMatching, "adapter is the class MomentMatching: pass an instance"),
        (
            OfNumbers(),
            r"OfNumbers.map returned \[1.0, 0.0\]: .* \(4,\) each \(checked with embedding_size=4\)",
        ),
        (BaseAdapter(), "BaseAdapter has no map"),
    ],
)
def test_what_is_no_adapter_is_a_type_error(adapter: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        check_adapter(adapter)


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("embedding_size", [1, 7, 32])
def test_every_adapter_passes_in_any_dimension(name: str, embedding_size: int) -> None:
    check_adapter(ADAPTERS[name](), embedding_size=embedding_size, num_steps=20)


def test_an_adapter_that_is_made_for_a_dimension_is_checked_in_it() -> None:
    check_adapter(MadeFor(16), embedding_size=16, num_steps=20)
    with pytest.raises(AssertionError, match=r"step 2: .* \(checked with embedding_size=4\)"):
        check_adapter(MadeFor(16))
    with pytest.raises(ValueError, match="embedding_size=0"):
        check_adapter(MadeFor(16), embedding_size=0)
