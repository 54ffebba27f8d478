from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss, SupConLoss, TripletMarginLoss
from pytorch_metric_learning.miners import BatchEasyHardMiner, MultiSimilarityMiner
from ranks import on_ranks
from torch import Tensor, distributed, nn

from pml_xbn import PerClassXBN, XBNWrapper
from pml_xbn.heads import MomentumBatchNorm
from pml_xbn.losses import BatchLoss
from pml_xbn.training import GradCache, freeze_batch_norm

_GENERATOR = torch.Generator().manual_seed(0)
BATCHES = torch.randn(3, 16, 5, dtype=torch.float64, generator=_GENERATOR)
LABELS = torch.randint(4, (3, 16), generator=_GENERATOR)
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "no memory": lambda: BatchLoss(SupConLoss(temperature=0.1)),
    "no memory, miner": lambda: BatchLoss(TripletMarginLoss(), BatchEasyHardMiner()),
    "xbn": lambda: XBNWrapper(SupConLoss(temperature=0.1), 3, 40, memory_dtype=torch.float64),
    "per class": lambda: PerClassXBN(
        MultiSimilarityLoss(),
        3,
        40,
        MultiSimilarityMiner(),
        batch_loss_weight=0.5,
        memory_dtype=torch.float64,
    ),
}


def plain_network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)).double()


def train(model: nn.Module, loss_fn: nn.Module, own: slice = slice(None)) -> list[Tensor]:
    """Takes three steps with a part of every batch, and returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in zip(BATCHES, LABELS, strict=True):
        loss = loss_fn(model(images[own]), labels[own])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


class KeepsGraph(nn.Module):
    """Embeds a batch in parts and keeps all their activations: what a cached batch is compared with."""

    def __init__(self, module: nn.Module, part_size: int) -> None:
        super().__init__()
        self.module, self.part_size = module, part_size

    def forward(self, images: Tensor) -> Tensor:
        num_parts = -(-len(images) // self.part_size)
        ends = [len(images) * number // num_parts for number in range(1, num_parts)]
        return torch.cat([self.module(part) for part in images.tensor_split(ends)])


def noisy_network() -> nn.Module:
    """A network whose output depends on random numbers, on the batch, and on the batches before."""
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 6)),
        *(MomentumBatchNorm(6, num_calls=20, ideal_batch_size=64), nn.Dropout(0.1), nn.Linear(6, 3)),
        nn.BatchNorm1d(3),  # in the part that need not be computed again
    ).double()


def assert_equal_states(model: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("part_size", [1, 5, 16, 100])
@pytest.mark.parametrize("loss", LOSSES)
def test_training_in_parts_is_training_with_whole_batches(loss: str, part_size: int) -> None:
    whole, model = plain_network(), GradCache(plain_network(), part_size)
    losses = [train(one, loss_fn) for one, loss_fn in ((whole, LOSSES[loss]()), (model, LOSSES[loss]()))]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-10, atol=1e-12)
    assert_equal_states(model.module, whole)


def test_frozen_batch_norm_sees_no_difference_between_parts_and_the_whole() -> None:
    whole = nn.Sequential(plain_network(), nn.BatchNorm1d(3)).double()
    whole[1].running_mean.fill_(0.3)
    freeze_batch_norm(whole)
    model = GradCache(copy.deepcopy(whole), 5)
    for one in (whole, model):
        train(one, LOSSES["xbn"]())
    assert_equal_states(model.module, whole)


def test_batch_norm_trains_although_a_last_part_would_be_one_image() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    assert GradCache(model, 4)(torch.randn(9, 5)).shape == (9, 4)


def test_random_numbers_and_running_statistics_are_those_of_parts_that_are_embedded_once() -> None:
    once, model = KeepsGraph(noisy_network(), 6), GradCache(noisy_network(), 6)
    states = []
    for one in (once, model):
        torch.manual_seed(2)
        train(one, LOSSES["xbn"]())
        states.append(torch.get_rng_state())
    assert_equal_states(model, once)
    assert torch.equal(*states)


def test_autocast_is_that_of_the_forward_pass() -> None:
    gradients = []
    for one in (KeepsGraph(plain_network().float(), 5), GradCache(plain_network().float(), 5)):
        with torch.autocast("cpu", torch.bfloat16):
            embeddings = one(BATCHES[0].float())
        assert embeddings.dtype == torch.bfloat16
        LOSSES["no memory"]()(embeddings.float(), LABELS[0]).backward()
        gradients.append([p.grad for p in one.parameters()])
    # A weight's gradient is summed over the parts in bfloat16, in an order of its own.
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0.02, atol=1e-4)


def test_a_part_is_embedded_again_when_the_gradients_of_the_part_behind_it_are_done() -> None:
    events: list[str] = []

    class Noting(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            events.append(f"embed {len(features)}")
            size = len(features)
            features.register_hook(lambda _: events.append(f"gradient {size}"))
            return features

    layers = plain_network()
    model = GradCache(nn.Sequential(layers[0], Noting(), *layers[1:]), 6)
    model(BATCHES[0]).sum().backward()
    first = ["embed 5", "embed 5", "embed 6"]
    assert events == [*first, "embed 6", "gradient 6", "embed 5", "gradient 5", "embed 5", "gradient 5"]


def test_without_gradients_a_part_is_embedded_once() -> None:
    model = GradCache(noisy_network().eval(), 5)
    with torch.no_grad():
        embeddings = model(BATCHES[0])
    assert not embeddings.requires_grad
    torch.testing.assert_close(embeddings, model.module(BATCHES[0]))


class Text(nn.Module):
    """Takes what a tokenizer gives, and more, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(7, 3, mode="sum").double()

    def forward(self, features: dict[str, Tensor], weights: Tensor, scale: float, shift: Tensor) -> Tensor:
        words: Tensor = self.words(features["words"], per_sample_weights=features["mask"])
        return scale * words * weights[:, None] + shift


def test_tensors_in_dictionaries_and_by_name_are_split() -> None:
    torch.manual_seed(0)
    features = {"words": torch.randint(7, (6, 4)), "mask": torch.rand(6, 4).double()}
    arguments: dict[str, Any] = {"weights": torch.rand(6).double(), "scale": 2.0, "shift": torch.tensor(1.0)}
    model = Text()
    embeddings, expected = GradCache(model, 4)(features, **arguments), model(features, **arguments)
    torch.testing.assert_close(embeddings, expected)
    (gradient,), (other,) = (
        torch.autograd.grad(x.square().sum(), list(model.parameters())) for x in (embeddings, expected)
    )
    torch.testing.assert_close(gradient, other)


def test_inputs_that_are_no_batch_are_refused() -> None:
    model = GradCache(plain_network(), 4)
    with pytest.raises(ValueError, match=r"given tensors of \[3, 4\] rows: pass tensors of one batch"):
        model(torch.zeros(3, 5), torch.zeros(4))
    with pytest.raises(ValueError, match="given no tensor: pass"):
        model("images")
    with pytest.raises(ValueError, match=r"shape \(1, 3\) of 4 images: pass one that returns embeddings"):
        GradCache(nn.LSTM(5, 3).double(), 4)(BATCHES[0])
    with pytest.raises(ValueError, match="part_size=0: pass an integer, 1 or more"):
        GradCache(plain_network(), 0)


@on_ranks(2)
def test_ranks_with_parts_train_as_one_process_with_whole_batches() -> None:
    def memory(is_shared: bool) -> XBNWrapper:
        loss = SupConLoss(temperature=0.1)
        return XBNWrapper(loss, 3, 40, memory_dtype=torch.float64, gather_distributed=is_shared)

    whole, cached = plain_network(), GradCache(plain_network(), 3)
    own = slice(0, 7) if distributed.get_rank() == 0 else slice(7, 16)
    losses = train(whole, memory(is_shared=False))
    found = train(nn.parallel.DistributedDataParallel(cached), memory(is_shared=True), own)
    torch.testing.assert_close(found, losses, rtol=1e-9, atol=1e-12)
    states = dict(cached.module.state_dict()), dict(whole.state_dict())
    torch.testing.assert_close(*states, rtol=1e-9, atol=1e-12)
