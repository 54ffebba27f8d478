"""A loss may go through its backward pass long after others have been stored: its gradient is the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_memory import BATCH_SIZE, EVERY, D, M, batch, state
from pytorch_metric_learning.distances import DotProductSimilarity, LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss, SupConLoss, TripletMarginLoss
from torch import Tensor, nn

from pml_xbn import PerClassXBN, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

LOSSES: dict[str, Callable[[], nn.Module]] = {
    "SupCon": SupConLoss,
    "Contrastive": ContrastiveLoss,
    "Triplet": TripletMarginLoss,
    "SupCon, dot product": lambda: SupConLoss(
        temperature=50.0, distance=DotProductSimilarity(normalize_embeddings=False)
    ),
    "Contrastive, Lp": lambda: ContrastiveLoss(0, 9, distance=LpDistance(normalize_embeddings=False)),
}
KINDS = ["plain", "xbn", "momentum", "per class", "absent stay"]


def made(kind: str, loss: str, **options: bool) -> AdaptiveCrossBatchMemory:
    return EVERY[kind](LOSSES[loss](), memory_dtype=torch.float64, **options)


def pending_step(memory: nn.Module, number: int) -> tuple[Tensor, Tensor]:
    embeddings, labels = batch(number, torch.float64)
    return memory(embeddings, labels), embeddings


def gradient(loss: Tensor, embeddings: Tensor) -> Tensor:
    return torch.autograd.grad(loss, embeddings, retain_graph=True)[0]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("num_pending", [2, 3, 5, 10])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_many_forwards_before_one_backward(kind: str, loss: str, num_pending: int) -> None:
    memory, immediate = made(kind, loss), made(kind, loss)
    for first in range(0, 20, num_pending):
        numbers = range(first, first + num_pending)
        expected = [gradient(*pending_step(immediate, number)) for number in numbers]
        pending = [pending_step(memory, number) for number in numbers]
        sum(loss for loss, _ in pending).backward()
        for (_, embeddings), of_immediate in zip(pending, expected, strict=True):
            assert of_immediate.any() or memory.num_rows <= BATCH_SIZE or loss != "SupCon"
            close(embeddings.grad, of_immediate)


@pytest.mark.parametrize("what", ["save", "look", "fill", "reset", "write", "load", "convert"])
@pytest.mark.parametrize("loss", LOSSES)
def test_so_it_does_whatever_happens_to_the_memory(loss: str, what: str) -> None:
    memory = made("per class", loss)
    for number in range(3):
        pending_step(memory, number)
    saved = state(memory)
    happen: dict[str, Callable[[], object]] = {
        "save": memory.state_dict,
        "look": lambda: memory.embedding_memory,
        "fill": lambda: memory.fill_memory(*(x.detach() for x in batch(9))),
        "reset": memory.reset_queue,
        "write": lambda: memory.embedding_memory.fill_(3.0),
        "load": lambda: memory.load_state_dict(saved),
        "convert": memory.half,
    }
    pending = pending_step(memory, 3)
    expected = gradient(*pending)
    for number in range(4, 8):
        happen[what]()
        close(gradient(*pending), expected)
        pending_step(memory, number)
        close(gradient(*pending), expected)


@pytest.mark.parametrize("cls", [XBNWrapper, PerClassXBN])
def test_losses_that_are_kept_hold_no_rows(cls: type[AdaptiveCrossBatchMemory]) -> None:
    """``running_loss += loss``, without detach, is a common mistake."""
    memory = cls(SupConLoss(), 64, 400)
    memory.fill_memory(torch.randn(400, 64), torch.arange(400) // 2)
    losses = [memory(torch.randn(4, 64, requires_grad=True), torch.arange(4) % 2) for _ in range(5)]
    saved = [value for node in _nodes(losses[-1].grad_fn) for value in getattr(node, "saved_tensors", ())]
    assert saved
    assert sum(value.numel() for value in saved) <= 4 * 64


def _nodes(node: Any) -> list[Any]:
    return [node, *(x for after, _ in node.next_functions if after is not None for x in _nodes(after))]


def test_a_second_derivative_is_refused() -> None:
    loss_fn, embeddings = XBNWrapper(SupConLoss(), D, M), torch.randn(4, D, requires_grad=True)
    loss = loss_fn(embeddings, torch.arange(4) % 2)
    (gradient,) = torch.autograd.grad(loss, embeddings, create_graph=True)
    penalties = gradient.sum(), loss + gradient.square().sum()  # the second has another way to the embeddings
    for penalty in penalties:
        with pytest.raises(RuntimeError, match="no second derivative"):
            penalty.backward(retain_graph=True)


def test_a_gradient_can_be_differentiated_with_respect_to_a_weight_of_the_loss() -> None:
    """As GradNorm does."""
    loss_fn, embeddings = XBNWrapper(SupConLoss(), D, M), torch.randn(4, D, requires_grad=True)
    weight = torch.tensor(2.0, requires_grad=True)
    loss = weight * loss_fn(embeddings, torch.arange(4) % 2)
    (gradient,) = torch.autograd.grad(loss, embeddings, create_graph=True)
    (found,) = torch.autograd.grad(gradient.sum(), weight, retain_graph=True)
    torch.testing.assert_close(found, gradient.detach().sum() / 2)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


def test_a_loss_that_is_kept_keeps_no_embeddings() -> None:
    loss_fn, leaf = XBNWrapper(SupConLoss(), D, M), torch.randn(4, D, requires_grad=True)
    embeddings = 2 * leaf
    loss = loss_fn(embeddings, torch.arange(4) % 2)
    loss.backward()
    kept = weakref.ref(embeddings)
    del embeddings
    assert kept() is None
    assert loss.requires_grad
