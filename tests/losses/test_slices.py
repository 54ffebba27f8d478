"""Losses that are computed some anchors at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning import losses, reducers
from pytorch_metric_learning.distances import LpDistance
from torch import Tensor

from pml_xbn.losses import XBNWrapper, _seam, _sums
from pml_xbn.losses._choice import Choice
from pml_xbn.losses._forms import FORMS, Pairs

A, N = 7, 6
LOSSES: dict[str, Callable[[], losses.GenericPairLoss]] = {
    "ContrastiveLoss": lambda: losses.ContrastiveLoss(pos_margin=0.8, neg_margin=0.2),
    "MultiSimilarityLoss": losses.MultiSimilarityLoss,
    "NTXentLoss": losses.NTXentLoss,
    "SupConLoss": losses.SupConLoss,
    "SupConLoss of distances": lambda: losses.SupConLoss(temperature=0.3, distance=LpDistance()),
    "SupConLoss, summed": lambda: losses.SupConLoss(reducer=reducers.SumReducer()),
    "TupletMarginLoss": losses.TupletMarginLoss,
}


@pytest.fixture(params=LOSSES)
def make(request: pytest.FixtureRequest) -> Callable[[], losses.GenericPairLoss]:
    return LOSSES[request.param]


@pytest.fixture
def two_anchors_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sums, "_PAIRS_AT_ONCE", {"cpu": 2 * N, "gpu": 2 * N})


def value_of(loss: losses.GenericPairLoss, mat: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Our loss of a matrix of distances."""
    form, choice, labels = FORMS[type(loss)], Choice(positive, negative), torch.arange(len(mat))
    pairs = Pairs(mat, choice, labels, torch.arange(mat.shape[1]), None)
    return _seam._share(loss, form, pairs).loss(loss)


def pmls_value_of(loss: losses.GenericPairLoss, mat: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    infos = loss.loss_method(mat, Choice(positive, negative).lists())
    return loss.reducer(infos, mat, torch.arange(len(mat)))


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
    mat = torch.rand(A, N, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(signs)))
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sums, "_PAIRS_AT_ONCE", {"cpu": pairs_at_once})
        for value_by in (value_of, pmls_value_of):
            leaf = mat.clone().requires_grad_()
            value = value_by(LOSSES[name](), leaf, chosen > 0, chosen < 0)
            (3 * value).backward()
            results.append((value.detach(), leaf.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other.nan_to_num(0), rtol=1e-12, atol=1e-13)


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

    sliced = steps()
    monkeypatch.setattr(_seam, "form_of", lambda _: None)  # PML's lists of pairs
    for one, other in zip(sliced, steps(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("two_anchors_at_once")
@pytest.mark.parametrize(
    ("make_loss", "num_anchors", "is_sliced"),
    [
        (losses.SupConLoss, A, True),
        (losses.SupConLoss, 2, False),  # a slice is all
        (losses.IntraPairVarianceLoss, A, False),  # not by anchor
    ],
)
def test_what_is_sliced(make_loss: Callable, num_anchors: int, is_sliced: bool) -> None:
    mat = torch.rand(num_anchors, N, requires_grad=True)
    loss, positive = make_loss(), torch.rand(num_anchors, N) > 0.5
    pairs = Pairs(mat, Choice(positive, ~positive), torch.arange(num_anchors), torch.arange(N), None)
    sums = _seam._share(loss, FORMS[make_loss], pairs).sums
    assert (type(sums.grad_fn).__name__ == "_SumsBackward") == is_sliced


@pytest.mark.usefixtures("two_anchors_at_once")
@pytest.mark.parametrize("wrap", [torch.nn.Parameter, lambda value: value.clone().requires_grad_()])
def test_a_learnable_temperature_gets_its_gradient(wrap: Callable[[Tensor], Tensor]) -> None:
    temperatures = [wrap(torch.tensor(0.1, dtype=torch.float64)) for _ in range(2)]
    mat, positive = torch.rand(A, N, dtype=torch.float64), torch.rand(A, N) > 0.5
    for temperature, value_by in zip(temperatures, (value_of, pmls_value_of), strict=True):
        value_by(losses.SupConLoss(temperature=temperature), mat, positive, ~positive).backward()
    assert temperatures[0].grad != 0
    torch.testing.assert_close(temperatures[0].grad, temperatures[1].grad)


@pytest.mark.usefixtures("two_anchors_at_once")
@pytest.mark.parametrize("wrap", [torch.nn.Parameter, lambda value: value.clone().requires_grad_()])
def test_learnable_class_weights_get_their_gradient(wrap: Callable[[Tensor], Tensor]) -> None:
    weights = [wrap(torch.linspace(0.5, 2, A, dtype=torch.float64)) for _ in range(2)]
    mat, positive = torch.rand(A, N, dtype=torch.float64), torch.rand(A, N) > 0.5
    for of_classes, value_by in zip(weights, (value_of, pmls_value_of), strict=True):
        loss = losses.SupConLoss(reducer=reducers.ClassWeightedReducer(of_classes))
        value_by(loss, mat, positive, ~positive).backward()
    torch.testing.assert_close(weights[0].grad, weights[1].grad)


@pytest.mark.usefixtures("two_anchors_at_once")
def test_a_memory_learns_a_temperature() -> None:
    temperature = torch.nn.Parameter(torch.tensor(0.1))
    loss_fn = XBNWrapper(losses.SupConLoss(temperature=temperature), 3, 20)
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        embeddings = torch.randn(A, 3, generator=generator, requires_grad=True)
        loss_fn(embeddings, torch.arange(A) % 3).backward()
    assert temperature.grad is not None
    assert temperature.grad != 0


@pytest.mark.usefixtures("two_anchors_at_once")
def test_without_gradient(make: Callable) -> None:
    mat, positive = torch.rand(A, N, requires_grad=True), torch.rand(A, N) > 0.5
    with torch.no_grad():
        evaluated = value_of(make(), mat, positive, ~positive)
    assert not evaluated.requires_grad
    trained = value_of(make(), mat, positive, ~positive)
    assert trained.requires_grad
    assert torch.equal(evaluated, trained.detach())


@pytest.mark.usefixtures("two_anchors_at_once")
def test_a_second_backward_gives_the_same_gradients(make: Callable) -> None:
    """Although the first takes what has been computed along with the loss."""
    mat, positive = torch.rand(A, N, requires_grad=True), torch.rand(A, N) > 0.5
    value = value_of(make(), mat, positive, ~positive)
    (first,) = torch.autograd.grad(3 * value, mat, retain_graph=True)
    expected = first.clone()
    (second,) = torch.autograd.grad(3 * value, mat)
    torch.testing.assert_close(second, expected)
    assert torch.equal(first, expected)


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
    for value_by in (value_of, pmls_value_of):
        value = value_by(loss, mat, positive, negative) ** 2
        (gradient,) = torch.autograd.grad(value, mat, create_graph=True)
        (second,) = torch.autograd.grad((weights * gradient).sum(), mat)
        results.append((gradient, second))
    for one, other in zip(*results, strict=True):
        # PML's SupConLoss, summed, divides zero by zero for an anchor without positives.
        assert other.nan_to_num(0).any()
        torch.testing.assert_close(one, other.nan_to_num(0), rtol=1e-9, atol=1e-11)


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
    monkeypatch.setattr(_seam, "form_of", lambda _: None)
    try:
        plain = penalised()
    except NotImplementedError as error:
        pytest.skip(f"PML's own distances have no second derivative here: {error}")
    for one, other in zip(sliced, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
