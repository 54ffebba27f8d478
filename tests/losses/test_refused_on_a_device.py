"""A batch that is refused on its device leaves a memory as it was, whatever its call and the state before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from as_on_a_gpu import read_as
from pytorch_metric_learning.losses import AngularLoss, SupConLoss
from torch import Tensor, nn

from pml_xbn import AXBNWrapper, PerClassXBN, XBNWrapper
from pml_xbn.adapters import Affine, BaseAdapter, Moments
from pml_xbn.losses import AdaptiveCrossBatchMemory

B, D, M = 8, 4, 32
WRAPPERS: dict[str, Callable[..., Any]] = {
    "xbn": XBNWrapper,
    "momentum": lambda *args, **options: XBNWrapper(*args, momentum=0.5, **options),
    "axbn": AXBNWrapper,
    "per-class": PerClassXBN,
}


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, D, generator=generator) + 3, torch.arange(B) % 4


def held(memory: Any) -> dict[str, Tensor]:
    """What the memory holds, but for how it stores it."""
    rows = {"rows": memory.embedding_memory.clone(), "labels": memory.label_memory.clone()}
    numbers = [memory.num_rows, memory.queue_idx, memory.num_calls]
    return {**rows, "ids": memory.id_memory, "numbers": torch.tensor(numbers)}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    read_as(monkeypatch, lambda _: False)


def filled(memory: Any) -> None:
    for seed in range(M // B):
        memory.fill_memory(*batch(seed), sample_ids=None)


def trained(memory: Any) -> None:
    for seed in range(2 * M // B):
        memory(batch(seed)[0].requires_grad_(), batch(seed)[1])


def trained_with_samples(memory: Any) -> None:
    for seed in range(M // B):
        memory(*batch(seed), sample_ids=torch.arange(B) + seed * B)


BEFORE = {"empty": lambda _: None, "filled": filled, "trained": trained, "samples": trained_with_samples}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("call", ["step", "fill_memory"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_leaves_rows_labels_samples_and_numbers(
    wrapper: str, call: str, before: str, dtype: torch.dtype
) -> None:
    memory = WRAPPERS[wrapper](SupConLoss(), D, M, nonfinite="skip", memory_dtype=dtype)
    BEFORE[before](memory)
    expected = held(memory)
    bad, labels = batch(99)
    bad[2, 1] = torch.nan
    (memory if call == "step" else memory.fill_memory)(bad, labels + 50)
    found = held(memory)
    for name, values in expected.items():
        # What is stored anew is rounded anew.
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(found[name], values, rtol=tolerance, atol=tolerance)
    # The state can be saved and loaded, and training goes on with finite numbers.
    other = WRAPPERS[wrapper](SupConLoss(), D, M, nonfinite="skip", memory_dtype=dtype)
    other.load_state_dict(memory.state_dict())
    for seed in range(3):
        memory(*batch(seed))
        assert torch.isfinite(other(*batch(seed)))
    assert torch.isfinite(memory.embedding_memory).all()
    assert 77 not in memory.label_memory


def loss_of_pairs(memory: Any) -> Tensor:
    pairs = (torch.tensor([0]), torch.tensor([4]), torch.tensor([0]), torch.tensor([1]))
    return memory.eval()(*batch(1), pairs)


def loss_after_a_hook(memory: Any) -> Tensor:
    memory.register_memory_hook(lambda rows, *_: rows + len(rows))
    return memory(*batch(1))


def loss_at_unit_length(memory: Any) -> Tensor:
    memory.normalize_memory = True
    return memory(*batch(1))


def loss_of_steps(memory: Any) -> Tensor:
    return torch.stack([memory(*batch(seed)) for seed in range(1, 4)])


@pytest.mark.parametrize("later", [loss_of_pairs, loss_after_a_hook, loss_at_unit_length, loss_of_steps])
def test_later_calls_see_no_row_where_it_would_have_gone(later: Callable[[Any], Tensor]) -> None:
    memories = [XBNWrapper(SupConLoss(), D, M, nonfinite="skip") for _ in range(2)]
    for memory in memories:
        memory(*batch(0))
    memories[0](batch(9)[0] * torch.nan, batch(9)[1])
    torch.testing.assert_close(*map(later, memories))
    (found, expected) = map(held, memories)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-5)
    moments = [memory.queue.contents.rows.measured().moments() for memory in memories]
    torch.testing.assert_close(*moments, rtol=1e-5, atol=1e-5)


def test_a_loss_that_lists_its_pairs_may_get_it_first() -> None:
    memory = XBNWrapper(AngularLoss(), D, M, nonfinite="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody says that nothing is stored in eval()
        assert torch.isnan(memory(batch(9)[0] * torch.nan, batch(9)[1]))
    memory(*batch(0))
    assert memory.num_rows == B


class Lazy(BaseAdapter):
    """Makes its state at the first batch: an attribute, a buffer, and one that was not there; and counts."""

    average: Moments | None = None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", None)
        self.num_batches = 0

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        if self.average is None:
            self.average, self.largest, self.first = batch, batch.std, batch.mean
        self.average = Moments(*((x + y) / 2 for x, y in zip(self.average, batch, strict=True)))
        self.largest = torch.maximum(self.largest, batch.std)
        self.num_batches += 1
        return self.average

    def map(self, memory: Moments, target: Moments) -> Affine:
        return memory.affine_to(target)

    def held(self) -> list[Tensor]:
        assert self.average is not None
        return [*self.average, self.largest, self.first, torch.tensor(self.num_batches)]


class Learner(BaseAdapter):
    """Its map learns: how far batches were from the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(D, dtype=torch.float64))

    def map(self, memory: Moments, target: Moments) -> Affine:
        self.total = self.total + (target.mean - memory.mean).square()
        return memory.affine_to(target)

    def held(self) -> list[Tensor]:
        return [self.total]


class LazyLearner(BaseAdapter):
    """Its map makes its state of the first rows that it sees, and counts."""

    scales: Tensor | None = None
    num_maps = 0

    def map(self, memory: Moments, target: Moments) -> Affine:
        self.scales = memory.std if self.scales is None else self.scales.lerp(memory.std, 0.5)
        self.num_maps += 1
        return Affine(target.std / self.scales, target.mean - memory.mean)

    def held(self) -> list[Tensor]:
        assert self.scales is not None
        return [self.scales, torch.tensor(self.num_maps)]


class WithAParameter(Learner):
    """What its map learns is a parameter that is made anew."""

    def __init__(self) -> None:
        super().__init__()
        del self.total
        self.total = nn.Parameter(torch.zeros(D, dtype=torch.float64), requires_grad=False)

    def map(self, memory: Moments, target: Moments) -> Affine:
        self.total = nn.Parameter(self.total + (target.mean - memory.mean).square(), requires_grad=False)
        return memory.affine_to(target)


@pytest.mark.parametrize("make", [Lazy, Learner, LazyLearner, WithAParameter])
@pytest.mark.parametrize("is_refused_first", [True, False])
def test_it_leaves_what_an_adapter_has_learned(
    make: type[Lazy | Learner | LazyLearner], is_refused_first: bool
) -> None:
    adapters = [make(), make()]
    for adapter in adapters:
        memory = AdaptiveCrossBatchMemory(SupConLoss(), D, M, nonfinite="skip")
        memory.register_memory_hook(adapter)
        for seed in range(3):
            if adapter is adapters[0] and (is_refused_first or seed > 0):
                memory(batch(9)[0] * torch.nan, batch(9)[1])
            memory(*batch(seed))
    for found, expected in zip(*(adapter.held() for adapter in adapters), strict=True):
        torch.testing.assert_close(found, expected)


def test_rows_that_momentum_lets_drift_are_standardized_after_a_wrap_around() -> None:
    memory = XBNWrapper(SupConLoss(), D, M, momentum=0.95)
    generator = torch.Generator().manual_seed(0)
    for step in range(40 * M // B):
        rows = torch.randn(B, D, generator=generator) * (1 + step / 40) + step / 4
        memory(rows, torch.arange(B) % 4)
    rows = memory.queue.contents.rows
    mean, square = (rows.sums / M).unbind()
    # Within a wrap-around and a step of the last time it was looked at.
    assert (square < 16).all()
    assert (mean.abs() < 3).all()


@pytest.mark.parametrize("memory_size", [15 * B, 16 * B], ids=["15 steps", "16 steps a wrap-around"])
def test_float16_rows_are_standardized_once_a_dimension_is_dead(memory_size: int) -> None:
    """However many steps a wrap-around takes: both looks are made, also where they fall together."""
    memory = XBNWrapper(SupConLoss(), D, memory_size, memory_dtype=torch.float16)
    generator = torch.Generator().manual_seed(0)
    for step in range(6 * 16):
        rows = torch.randn(B, D, generator=generator)
        rows[:, 1] *= 1e-6 if step > 32 else 1
        memory(rows, torch.arange(B) % 4)
    rows = memory.queue.contents.rows
    assert rows.affine.scale[1] >= 2.0**-12 * rows.moments().std.square().mean().sqrt() * 0.9


def test_samples_that_return_for_ever_leave_a_state_that_can_be_loaded() -> None:
    memory, ids = XBNWrapper(SupConLoss(), D, M), torch.arange(B)
    for seed in range(3 * M // B):  # more rows are replaced than the memory holds
        memory(batch(seed)[0].requires_grad_(), batch(seed)[1], sample_ids=ids)
    twin = XBNWrapper(SupConLoss(), D, M)
    twin.load_state_dict(memory.state_dict())
    for name, value in held(memory).items():
        torch.testing.assert_close(held(twin)[name], value)
