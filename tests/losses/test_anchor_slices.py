"""Losses that are computed some anchors at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pml_xbn.losses._anchor_slices import are_worth_it, sliced_losses
from pytorch_metric_learning import losses, reducers
from pytorch_metric_learning.distances import LpDistance
from torch import Tensor

from pml_xbn.losses import XBNWrapper, _anchor_slices, _seam

A, N = 7, 6
LOSSES: dict[str, Callable[[], losses.GenericPairLoss]] = {
    "SupConLoss": losses.SupConLoss,
    "SupConLoss of distances": lambda: losses.SupConLoss(temperature=0.3, distance=LpDistance()),
    "SupConLoss, summed": lambda: losses.SupConLoss(reducer=reducers.SumReducer()),
    "MultiSimilarityLoss": losses.MultiSimilarityLoss,
}


@pytest.fixture(params=LOSSES)
def make(request: pytest.FixtureRequest) -> Callable[[], losses.GenericPairLoss]:
    return LOSSES[request.param]


@pytest.fixture
def two_anchors_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_anchor_slices, "_PAIRS_AT_ONCE", {"cpu": 2 * N, "gpu": 2 * N})


@settings(deadline=None)
@given(
    signs=st.lists(st.sampled_from([-1, 0, 1]), min_size=A * N, max_size=A * N).filter(
        lambda signs: {-1, 1} <= set(signs)
    ),
    pairs_at_once=st.integers(1, A * N),
)
@pytest.mark.parametrize("name", LOSSES)
def test_slices_equal_the_loss_of_lists(name: str, signs: list[int], pairs_at_once: int) -> None:
    """Whatever the pairs: anchors, and slices, with pairs of one kind alone or of none."""
    chosen = torch.tensor(signs).view(A, N)
    positive, negative = chosen > 0, chosen < 0
    loss = LOSSES[name]()
    mat = torch.rand(A, N, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(signs)))
    results = []
    for is_sliced in (True, False):
        leaf = mat.clone().requires_grad_()
        if is_sliced:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(_anchor_slices, "_PAIRS_AT_ONCE", {"cpu": pairs_at_once})
                elements = sliced_losses(loss, leaf, positive, negative)
        else:
            lists = (*positive.nonzero(as_tuple=True), *negative.nonzero(as_tuple=True))
            elements = loss.mat_based_loss(leaf, lists)
        value = loss.reducer(elements, leaf, torch.arange(A))
        (3 * value).backward()
        results.append((value.detach(), leaf.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-15)


@pytest.mark.usefixtures("two_anchors_at_once")
def test_a_memory_trains_the_same_in_slices(make: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> list[Tensor]:
        loss_fn, out = XBNWrapper(make(), 3, 20, memory_dtype=torch.float64), []
        for step in range(5):
            embeddings = torch.randn(A, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            value = loss_fn(embeddings.requires_grad_(), torch.arange(A) % 3)
            value.backward()
            out += [value.detach(), embeddings.grad]
        return out

    used = []
    monkeypatch.setattr(_anchor_slices, "sliced_losses", lambda *args: used.append(1) or sliced_losses(*args))
    sliced = steps()
    assert len(used) == 5
    monkeypatch.setattr(_seam, "_is_one_of", lambda *_: False)  # PML's lists of pairs
    for one, other in zip(sliced, steps(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("two_anchors_at_once")
def test_what_is_not_worth_it() -> None:
    mat = torch.rand(A, N)
    assert are_worth_it(losses.SupConLoss(), mat)
    assert not are_worth_it(losses.SupConLoss(), mat[:2])  # a slice is all
    assert not are_worth_it(losses.SupConLoss(), mat.half())
    assert not are_worth_it(losses.CircleLoss(), mat)
    assert not are_worth_it(type("Mine", (losses.SupConLoss,), {})(), mat)


@pytest.mark.usefixtures("two_anchors_at_once")
@pytest.mark.parametrize("wrap", [torch.nn.Parameter, lambda value: value.clone().requires_grad_()])
def test_a_learnable_temperature_gets_its_gradient(wrap: Callable[[Tensor], Tensor]) -> None:
    temperature = wrap(torch.tensor(0.1))
    loss_fn = XBNWrapper(losses.SupConLoss(temperature=temperature), 3, 20)
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        embeddings = torch.randn(A, 3, generator=generator, requires_grad=True)
        loss_fn(embeddings, torch.arange(A) % 3).backward()
    assert temperature.grad is not None
    assert temperature.grad != 0


@pytest.mark.usefixtures("two_anchors_at_once")
def test_without_gradient(make: Callable) -> None:
    mat, positive = torch.rand(A, N), torch.rand(A, N) > 0.5
    leaf = mat.clone().requires_grad_()
    with torch.no_grad():
        evaluated = sliced_losses(make(), leaf, positive, ~positive)["loss"]["losses"]
    assert not evaluated.requires_grad
    trained = sliced_losses(make(), leaf, positive, ~positive)["loss"]["losses"]
    assert trained.requires_grad
    assert torch.equal(evaluated, trained.detach())


@pytest.mark.usefixtures("two_anchors_at_once")
@pytest.mark.parametrize("kinds", ["both", "no positives"])
def test_second_derivatives_equal_those_of_the_plain_loss(make: Callable, kinds: str) -> None:
    loss, mat = make(), torch.rand(A, N, dtype=torch.float64, requires_grad=True)
    positive = torch.rand(A, N) > 0.6
    negative = ~positive & (torch.rand(A, N) > 0.2)
    if kinds == "no positives":  # of some anchors
        positive[:3] = False
    weights = torch.rand(A, N, dtype=torch.float64)
    results = []
    for is_sliced in (True, False):
        if is_sliced:
            elements = sliced_losses(loss, mat, positive, negative)
        else:
            elements = loss._compute_loss(mat, positive.to(mat), negative.to(mat))
        value = loss.reducer(elements, mat, torch.arange(A)) ** 2
        (gradient,) = torch.autograd.grad(value, mat, create_graph=True)
        (second,) = torch.autograd.grad((weights * gradient).sum(), mat)
        results.append((gradient, second))
    for one, other in zip(*results, strict=True):
        # PML's SupConLoss, summed, divides zero by zero for an anchor without positives.
        assert other.nan_to_num(0).any()
        torch.testing.assert_close(one, other.nan_to_num(0), rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("two_anchors_at_once")
def test_a_memory_has_second_derivatives(make: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a gradient penalty, say: through slices, distances and cosines."""

    def penalised() -> list[Tensor]:
        loss_fn, out = XBNWrapper(make(), 3, 20, memory_dtype=torch.float64), []
        for step in range(3):
            embeddings = torch.randn(A, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            value = loss_fn(embeddings.requires_grad_(), torch.arange(A) % 3)
            (gradient,) = torch.autograd.grad(value, embeddings, create_graph=True)
            out += [gradient, *torch.autograd.grad(gradient.square().sum(), embeddings)]
        return out

    sliced = penalised()
    monkeypatch.setattr(_seam, "_is_one_of", lambda *_: False)
    try:
        plain = penalised()
    except NotImplementedError as error:
        pytest.skip(f"PML's own distances have no second derivative here: {error}")
    for one, other in zip(sliced, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
