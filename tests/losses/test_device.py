"""A step on the device of the tests is the step in float64 on the CPU, whatever it is called with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from pml_xbn.losses import AdaptiveCrossBatchMemory

B, D, M, CLASSES = 32, 32, 160, 12
CPU = torch.device("cpu")


def batch(step: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Four rows each of classes that take turns, of a model that drifts."""
    centres = torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(99))
    draw = torch.Generator().manual_seed(1000 * seed + step)
    labels = ((step * B // 4 + torch.arange(B // 4)) % CLASSES).repeat_interleave(4)
    return centres[labels] + 0.7 * torch.randn(B, D, generator=draw) * (1 + step / 40) + step / 25, labels


def mask(step: int, labels: Tensor) -> dict[str, Any]:
    return {"enqueue_mask": torch.arange(B) % 4 > 0}


def pairs(step: int, labels: Tensor) -> dict[str, Any]:
    return {"indices_tuple": tuple(x[::2] for x in lmu.get_all_pairs_indices(labels))}


def samples(step: int, labels: Tensor) -> dict[str, Any]:
    """Samples that come again every third step, with the same label, and some that have no number."""
    ids = (step * B + torch.arange(B)) % (8 * CLASSES)
    return {"sample_ids": ids.index_fill(0, torch.arange(0, B, 8), -1)}


# What a call is given beside embeddings and labels, and the options of the memory.
CALLS: dict[str, tuple[Callable[[int, Tensor], dict[str, Any]], dict[str, Any]]] = {
    "nothing": (lambda step, labels: {}, {}),
    "a mask": (mask, {}),
    "pairs": (pairs, {}),
    "samples": (samples, {}),
    "samples, averaged": (samples, {"update": "average", "update_momentum": 0.9}),
}


def moved(value: Any, device: torch.device) -> Any:
    return tuple(x.to(device) for x in value) if isinstance(value, tuple) else value.to(device)


def take(
    memory: AdaptiveCrossBatchMemory,
    inputs: tuple[Tensor, Tensor],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    **given: Any,
) -> list[Tensor]:
    """Loss, gradient and rows of a step."""
    embeddings, labels = inputs[0].to(device, dtype).requires_grad_(), inputs[1].to(device)
    loss = memory(embeddings, labels, **{name: moved(value, device) for name, value in given.items()})
    (gradient,) = torch.autograd.grad(loss, embeddings)
    return [loss.detach(), gradient, memory.embedding_memory.clone()]


def assert_within(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Relative to the largest number."""
    for one, other in zip(found, expected, strict=True):
        error = (one.cpu().double() - other.cpu().double()).abs().max()
        assert error <= tolerance * other.abs().max()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_step_is_that_of_float64_on_the_cpu(kind: str, call: str, device: torch.device) -> None:
    give, options = CALLS[call]
    memory = KINDS[kind].memory(SupConLoss(), D, M, **options).to(device)
    exact = KINDS[kind].memory(SupConLoss(), D, M, memory_dtype=torch.float64, **options)
    for step in range(16):
        inputs = batch(step)
        given = give(step, inputs[1])
        found, expected = (
            take(memory, inputs, device, **given),
            take(exact, inputs, CPU, torch.float64, **given),
        )
        assert_within(found, expected, 1e-3)  # of a class there may be three rows, whose spread is small
        assert torch.equal(memory.label_memory.cpu(), exact.label_memory)
        assert torch.equal(memory.id_memory.cpu(), exact.id_memory)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_two_memories_at_the_same_time_are_the_same_two_in_turn(kind: str, device: torch.device) -> None:
    """Each in a stream of its own, where there are streams."""
    inputs = [[tuple(moved(x, device) for x in batch(step, seed)) for step in range(40)] for seed in range(2)]
    alone = []
    for mine in inputs:
        memory = KINDS[kind].memory(SupConLoss(), D, M).to(device)
        alone.append(
            [take(memory, given, device)[:2] for given in mine] + [[memory.embedding_memory.clone()]]
        )
    memories = [KINDS[kind].memory(SupConLoss(), D, M).to(device) for _ in inputs]
    streams, found = [stream(device) for _ in inputs], [[], []]
    wait_for(device)
    for step in range(40):
        for memory, mine, own_stream, results in zip(memories, inputs, streams, found, strict=True):
            with own_stream:
                embeddings = mine[step][0].clone().requires_grad_()
                loss = memory(embeddings, mine[step][1])
                results.append([loss.detach(), *torch.autograd.grad(loss, embeddings)])
    wait_for(device)
    for memory, results, expected in zip(memories, found, alone, strict=True):
        for one, other in zip([*results, [memory.embedding_memory]], expected, strict=True):
            assert_within(one, other, 2e-4)


def stream(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
