"""Measuring changes nothing, of models, miners and batches drawn at random from what they do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn_models import DrawnModel, Traits, drawn_batch, drawn_traits, embeddings_of
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import MEMORIES
from pytorch_metric_learning import losses
from pytorch_metric_learning.miners import BaseMiner, PairMarginMiner, TripletMarginMiner
from torch import Tensor, nn
from torch.nn.functional import normalize

from pml_xbn.diagnostics import FeatureDrift, RowTracker, WatchedLoss, batch_noise, memory_rows


@settings(max_examples=60, deadline=None)
@given(drawn_traits(takes=["images"], returns=["tensor"]), st.sampled_from([2, 3, 5, 12]), st.booleans())
def test_batch_noise_is_that_of_copies_of_the_model_and_leaves_no_trace(
    traits: Traits, num_parts: int, has_begun: bool
) -> None:
    torch.manual_seed(0)
    model, images, others = DrawnModel(traits), drawn_batch(0).images, drawn_batch(1).images
    if has_begun:  # else some buffers are None, or not there yet
        model(images.clone())
    before, given_images = copy.deepcopy(model), images.clone()
    random_state = torch.get_rng_state()
    measured = batch_noise(model, images, others, num_parts=num_parts)
    assert torch.equal(torch.get_rng_state(), random_state)

    def embed(batch: Tensor) -> Tensor:
        torch.set_rng_state(random_state)
        with torch.no_grad():
            return normalize(copy.deepcopy(before)(batch.clone()))

    once = embed(images)
    apart = torch.empty_like(once)
    replaced = torch.empty(12, dtype=once.dtype)
    for part in torch.arange(12).tensor_split(num_parts):
        replaced[part] = (12 - len(part)) / 12
        apart[part] = embed(others.index_copy(0, part, images[part]))[part]
    squares = (once[:, None] - apart).square().sum(dim=2)
    noise = (squares.diagonal() / 2 / replaced).mean()
    spread = squares[~torch.eye(12, dtype=torch.bool)].mean() / 2
    torch.testing.assert_close(measured.noise, noise, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(measured.spread, spread, rtol=1e-8, atol=1e-12)
    assert torch.equal(images, given_images)
    torch.set_rng_state(random_state)
    torch.testing.assert_close(dict(model.state_dict()), dict(before.state_dict()), rtol=0, atol=0)
    found = embeddings_of(model(images.clone()))
    torch.set_rng_state(random_state)
    torch.testing.assert_close(found, embeddings_of(before(images.clone())), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_batch_noise_of_a_scripted_model_is_that_of_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 4)).double()
    images, others = drawn_batch(0).images, drawn_batch(1).images
    expected, scripted = batch_noise(model, images, others), torch.jit.script(model)
    before = copy.deepcopy(scripted.state_dict())
    torch.testing.assert_close(batch_noise(scripted, images, others), expected)
    torch.testing.assert_close(scripted.state_dict(), before, rtol=0, atol=0)


class Curriculum(PairMarginMiner):
    """Negatives become harder with every call."""

    calls = 0

    def mine(self, *args: Any) -> Any:
        self.calls += 1
        self.neg_margin = 1.2 / (1 + 0.1 * self.calls)
        return super().mine(*args)


class Drawing(BaseMiner):
    """Draws pairs from a generator of its own, and from PyTorch's."""

    def __init__(self, has_own: bool) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0) if has_own else None

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> Any:
        drawn = torch.rand(len(labels), len(ref_labels), generator=self.generator) < 0.5
        is_positive = labels[:, None] == ref_labels
        return *(drawn & is_positive).nonzero(as_tuple=True), *(drawn & ~is_positive).nonzero(as_tuple=True)


class Counting:
    """A miner that is a function, and no module."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, embeddings: Tensor, labels: Tensor, ref_emb: Any, ref_labels: Any) -> Any:
        self.calls += 1
        ref_labels = labels if ref_labels is None else ref_labels
        is_positive, kept = labels[:, None] == ref_labels, torch.arange(len(ref_labels)) % 3 < self.calls % 4
        return (
            *(is_positive & kept).nonzero(as_tuple=True),
            *(~is_positive & kept).nonzero(as_tuple=True),
        )


MINERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "curriculum": lambda: Curriculum(0.2, 1.2),
    "generator of its own": lambda: Drawing(has_own=True),
    "random numbers": lambda: Drawing(has_own=False),
    "function": Counting,
    "triplets": lambda: TripletMarginMiner(margin=0.3),
}
LOSSES = {
    "supcon": losses.SupConLoss,
    "contrastive": losses.ContrastiveLoss,
    "triplet": losses.TripletMarginLoss,
    "angular": losses.AngularLoss,
}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(MEMORIES)),
    st.sampled_from(sorted(LOSSES)),
    st.sampled_from(sorted(MINERS)),
    st.booleans(),
    st.booleans(),
)
def test_training_goes_on_as_if_nobody_watched(
    memory: str, loss: str, miner: str, by_name: bool, has_batch_loss: bool
) -> None:
    def trained(is_watched: bool) -> Any:
        torch.manual_seed(1)
        model, hooked = nn.Linear(6, 4).double(), []
        options: dict[str, Any] = {"miner": MINERS[miner]()}
        if memory != "pml":
            options |= {"memory_dtype": torch.float64, "batch_loss_weight": float(has_batch_loss)}
        loss_fn = MEMORIES[memory](LOSSES[loss](), 4, 20, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in range(4):
            embeddings, labels = model(drawn_batch(seed).images), torch.arange(12) % 4
            embeddings.register_hook(lambda gradient: hooked.append(gradient.clone()))
            embeddings.retain_grad()
            given: dict[str, Any] = {"embeddings": embeddings} if by_name else {}
            arguments = () if by_name else (embeddings,)
            if is_watched:
                with WatchedLoss(loss_fn) as seen:
                    value = loss_fn(*arguments, labels=labels, **given)
                assert len(hooked) == seed
            else:
                value = loss_fn(*arguments, labels=labels, **given)
            optimizer.zero_grad()
            value.backward()
            if is_watched:
                torch.testing.assert_close(seen.gradient, embeddings.grad)
            optimizer.step()
            hooked[-1] = hooked[-1], embeddings.grad
        return value.detach(), model.weight.detach(), memory_rows(loss_fn), hooked, torch.rand(())

    torch.testing.assert_close(trained(True), trained(False), rtol=0, atol=0)


def test_what_embeds_for_a_measurement_takes_no_random_numbers_from_training() -> None:
    model, images = nn.Sequential(nn.Linear(6, 4), nn.Dropout()).double(), drawn_batch(0).images
    loss_fn = MEMORIES["pml"](losses.ContrastiveLoss(), 4, 24)
    loss_fn.double()
    drift, tracker = FeatureDrift(lambda: model(images), deltas=(1,), every=1), RowTracker(loss_fn)
    for step in range(3):
        stored = loss_fn.embedding_memory.clone()
        loss_fn(model(images), torch.arange(12) % 3)
        tracker.update(step, torch.arange(12))
        state = torch.get_rng_state()
        drift.update(step)
        tracker.staleness(stored, lambda indices: model(images[indices]))
        assert torch.equal(torch.get_rng_state(), state)
