"""A batch that is refused on its device leaves a memory as it was, whatever its call and the state before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from as_on_a_gpu import read_as
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor

from pml_xbn import AXBNWrapper, PerClassXBN, XBNWrapper

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
