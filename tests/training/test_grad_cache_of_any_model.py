"""A step with GradCache is one without, of models drawn at random from what models do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest
import torch
from drawn_models import (
    RETURNS,
    Batch,
    DrawnModel,
    Traits,
    as_it_was,
    call,
    drawn_batch,
    drawn_traits,
    embeddings_of,
    num_alive,
    part_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor, nn

from pml_xbn import XBNWrapper
from pml_xbn.diagnostics import batch_noise
from pml_xbn.losses import BatchLoss
from pml_xbn.training import GradCache

LABELS = torch.arange(12) % 3


class Curriculum(PairMarginMiner):
    """A miner with a state: negatives become harder with every call."""

    calls = 0

    def mine(self, *args: Any) -> Any:
        self.calls += 1
        self.neg_margin = 1.2 / (1 + 0.1 * self.calls)
        return super().mine(*args)


def stateful_loss(has_memory: bool) -> nn.Module:
    if not has_memory:
        return BatchLoss(SupConLoss(), Curriculum(0.2, 1.2))
    return XBNWrapper(SupConLoss(), 4, 30, Curriculum(0.2, 1.2), memory_dtype=torch.float64)


def assert_close(value: Any, expected: Any) -> None:
    torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-11)


def trained(embed: Callable[[Batch], Tensor], loss_fn: nn.Module, model: nn.Module) -> tuple[Any, ...]:
    """Takes two steps, and returns losses, gradients, the model's state, and the next random number."""
    torch.manual_seed(1)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for seed in range(2):
        loss = loss_fn(embed(drawn_batch(seed)), LABELS)
        optimizer.zero_grad()
        loss.backward()
        found.append((loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]))
        optimizer.step()
    return found, dict(model.state_dict()), torch.rand(())


@settings(max_examples=60, deadline=None)
@given(drawn_traits(), st.sampled_from([2, 3, 5, 7, 12, 50]), st.booleans())
def test_training_with_any_model_is_training_without_it(
    traits: Traits, part_size: int, has_memory: bool
) -> None:
    torch.manual_seed(0)
    model = DrawnModel(traits)
    once, whole = copy.deepcopy(model), copy.deepcopy(model)
    num_parts = -(-12 // part_size)
    cached = GradCache(model, part_size)

    def cache(batch: Batch) -> Tensor:
        before, first = asdict(batch), len(model.seen)
        embeddings = embeddings_of(call(cached, batch, traits.takes))
        assert as_it_was(batch, before)
        if traits.returns != "its dictionary":  # which the caller keeps
            assert num_alive(model) == 0
        assert len(model.seen) - first == num_parts
        return embeddings

    def embed_once(batch: Batch) -> Tensor:
        ends = [12 * number // num_parts for number in range(num_parts + 1)]
        slices = [slice(*both) for both in pairwise(ends)]
        return torch.cat([embeddings_of(call(once, part_of(batch, rows), traits.takes)) for rows in slices])

    found = trained(cache, stateful_loss(has_memory), model)
    assert_close(found, trained(embed_once, stateful_loss(has_memory), once))
    if not traits.sees_parts:
        expected = trained(
            lambda batch: embeddings_of(call(whole, part_of(batch, slice(None)), traits.takes)),
            stateful_loss(has_memory),
            whole,
        )
        assert_close(found, expected)


@pytest.mark.parametrize("returns", RETURNS)
@pytest.mark.parametrize("part_size", [5, 50])
def test_what_is_returned_is_what_the_model_returns_of_the_whole(part_size: int, returns: str) -> None:
    model = DrawnModel(Traits(*[False] * 8, takes="encoding", returns=returns))
    found = call(GradCache(model, part_size), drawn_batch(0), "encoding")
    expected = call(model, drawn_batch(0), "encoding")
    assert type(found) is type(expected)
    if returns == "dataclass":
        found, expected = vars(found), vars(expected)
    if returns == "its dictionary":
        found, expected = found.data, expected.data
        assert (found.pop("modality"), found.pop("names")) == (
            expected.pop("modality"),
            expected.pop("names"),
        )
    if returns == "dictionary":
        assert found.pop("modality") == expected.pop("modality") == "image"
    assert_close(found, expected)


def test_a_tensor_that_is_given_twice_stays_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4).double()

        def forward(self, one: Tensor, two: list[Tensor]) -> Tensor:
            one.mul_(2)
            return self.linear(one + two[0])

    model, images = Twice(), drawn_batch(0).images
    expected = 4 * images @ model.linear.weight.T + model.linear.bias
    torch.testing.assert_close(GradCache(model, 5)(images, [images]), expected)


def test_images_with_a_gradient_get_it() -> None:
    model = GradCache(nn.Sequential(nn.LeakyReLU(inplace=True), nn.Linear(6, 4)).double(), 5)
    images, plain = (drawn_batch(0).images.sub(1).requires_grad_() for _ in range(2))
    model(images).square().sum().backward()
    model.module(plain.clone()).square().sum().backward()
    torch.testing.assert_close(images.grad, plain.grad)


def test_a_batch_that_the_caller_writes_to_before_the_backward_pass_is_refused() -> None:
    model, images = GradCache(nn.Linear(6, 4).double(), 5), drawn_batch(0).images
    loss = model(images).sum()
    images.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_dictionaries_that_the_caller_changes_are_not_looked_at_again() -> None:
    model = DrawnModel(Traits(*[False] * 8, takes="dictionary", returns="tensor"))
    plain = copy.deepcopy(model)
    given = {name: getattr(drawn_batch(0), name) for name in Batch.__annotations__}
    expected = plain(dict(given)).sum()
    loss = GradCache(model, 5)(given).sum()
    given.clear()
    for one in (loss, expected):
        one.backward()
    for found, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, other.grad)


def test_an_error_in_the_second_pass_leaves_the_buffers_as_they_were() -> None:
    class Fails(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(6).double(), nn.Linear(6, 4).double()

        def forward(self, images: Tensor) -> Tensor:
            self.calls += 1
            normalized = self.norm(images)
            if self.calls > 2:
                raise ArithmeticError("out of luck")
            return self.linear(normalized)

    model = Fails()
    loss = GradCache(model, 6)(drawn_batch(0).images).sum()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArithmeticError, match="out of luck"):
        loss.backward()
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda net: torch.jit.trace(net, torch.ones(4, 6))])
@pytest.mark.parametrize("is_inner", [False, True])
def test_scripted_models_train_as_they_do_without_it(
    compiled: Callable[[nn.Module], nn.Module], is_inner: bool
) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8)
    net = nn.Sequential(
        nn.Linear(6, 8), norm, nn.LeakyReLU(0.1, True), nn.Linear(8, 8), norm, nn.Linear(8, 4)
    )
    model, plain = (compiled(copy.deepcopy(net)) for _ in range(2))
    cached = GradCache(nn.Sequential(model) if is_inner else model, 5)  # three parts of four
    for seed in range(4):  # TorchScript optimizes what it has seen twice
        images = drawn_batch(seed).images.float()
        for embed in (cached, lambda images: torch.cat([plain(part) for part in images.split(4)])):
            SupConLoss()(embed(images), LABELS).backward()
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))


def test_what_cannot_be_put_together_is_refused() -> None:
    class Returns(nn.Module):
        def __init__(self, returned: Callable[[Tensor], Any]) -> None:
            super().__init__()
            self.linear, self.returned = nn.Linear(6, 4).double(), returned

        def forward(self, images: Tensor) -> Any:
            return self.returned(self.linear(images))

    images = drawn_batch(0).images[:11]  # in parts of three and four
    for returned, error, match in (
        (lambda x: (x, x.sum()), ValueError, r"shape \(\) of 3 images: pass one that returns embeddings"),
        (lambda x: x[:2], ValueError, r"shape \(2, 4\) of 3 images"),
        (lambda x: {"x": x, len(x): 1}, TypeError, "returns a dict of .* and something else of the next"),
        (lambda x: (x, object()), TypeError, "returns a object, and another one of the next part"),
    ):
        with pytest.raises(error, match=match):
            GradCache(Returns(returned), 5)(images)


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize("layer", [nn.LazyLinear, lambda width: nn.LazyBatchNorm1d()])
def test_lazy_layers_are_to_have_seen_a_batch(layer: Callable[[int], nn.Module]) -> None:
    model, images = layer(4), drawn_batch(0).images.float()
    for measure in (GradCache(model, 5), lambda images: batch_noise(model, images, images + 1)):
        with pytest.raises(ValueError, match="lazy layer that has not seen a batch yet: call the model once"):
            measure(images)
    model(images)
    GradCache(model, 5)(images).sum().backward()
    assert model.weight.grad is not None
