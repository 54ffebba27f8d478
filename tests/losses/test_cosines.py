"""One matrix of cosines gives the distances that PML computes from copies at unit length."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning.distances import (
    BaseDistance,
    CosineSimilarity,
    DotProductSimilarity,
    LpDistance,
    SNRDistance,
)
from pytorch_metric_learning.losses import ContrastiveLoss
from stored_rows import stored_rows
from torch import Tensor

from pml_xbn import _parts
from pml_xbn.losses import AdaptiveCrossBatchMemory
from pml_xbn.losses._cosines import Distances, _Products, is_of_cosines

DISTANCES = {
    "cosine": CosineSimilarity,
    "squared cosine": lambda: CosineSimilarity(power=2),
    "Euclidean": LpDistance,
    "squared Euclidean": lambda: LpDistance(power=2),
}


def read_off(distance: BaseDistance, anchors: Tensor, rows: Tensor) -> Tensor:
    """The distance from the matrix of cosines; it finds no rows to measure for itself."""
    distances = Distances(anchors, stored_rows(rows))
    assert not distances.placeholder.any()
    mat = distances.measured(distance)
    assert "row_tensor" not in vars(distances)
    return mat


def in_float64(name: str, anchors: Tensor, rows: Tensor) -> Tensor:
    """The distance from its definition, pair by pair."""
    a, r = (x / x.norm(dim=1, keepdim=True).clamp_min(1e-12) for x in (anchors, rows))
    a, r = a[:, None], r[None]
    mat = (a * r).sum(dim=2) if "cosine" in name else (a - r).norm(dim=2)
    return mat**2 if "squared" in name else mat


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_values_and_gradients_equal_a_recomputation_in_float64(name: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randn(7, 5, generator=generator).requires_grad_()
    rows = scale * (torch.randn(40, 5, generator=generator) + 1)
    weights = torch.randn(7, 40, generator=generator)
    distance = DISTANCES[name]()
    mat = read_off(distance, anchors, rows)
    (mat * weights).sum().backward()
    reference = anchors.detach().double().requires_grad_()
    expected = in_float64(name, reference, rows.double())
    (expected * weights).sum().backward()
    torch.testing.assert_close(mat.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(anchors.grad.double(), reference.grad, rtol=1e-4, atol=1e-4)


@given(
    zeros=st.sampled_from(["anchor", "row", "both", "none"]),
    name=st.sampled_from(sorted(DISTANCES)),
    seed=st.integers(0, 2**31),
)
def test_zeros_and_equal_vectors_have_pmls_distance_and_a_finite_gradient(
    zeros: str, name: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(6, 4, generator=generator)
    anchors = rows[:3].clone()
    if zeros in ("anchor", "both"):
        anchors[0] = 0
    if zeros in ("row", "both"):
        rows[0] = 0
    distance = DISTANCES[name]()
    expected = distance(anchors, rows)
    anchors.requires_grad_()
    mat = read_off(distance, anchors, rows)
    mat.sum().backward()
    # The root of a rounding error of 1e-7 is 3e-4; PML's cdist has it too with more than 25 rows.
    torch.testing.assert_close(mat.detach(), expected, rtol=1e-5, atol=1e-3)
    assert torch.isfinite(anchors.grad).all()


@pytest.mark.parametrize(
    "other",
    [
        DotProductSimilarity(normalize_embeddings=False),
        LpDistance(normalize_embeddings=False),
        LpDistance(p=1),
        SNRDistance(collect_stats=True),
        CosineSimilarity(collect_stats=True),
    ],
    ids=repr,
)
def test_other_distances_compute_themselves(other: BaseDistance) -> None:
    anchors, rows = torch.randn(3, 4), torch.randn(5, 4)
    assert not is_of_cosines(other)
    before = dict(vars(other))
    measured, expected = [], other(anchors, rows)
    loss_fn = AdaptiveCrossBatchMemory(ContrastiveLoss(distance=other), 4, 8)
    other.register_forward_hook(lambda _, given, mat: measured.append((given, mat)))
    loss_fn.fill_memory(rows, torch.arange(5))
    loss_fn.eval()(anchors, torch.arange(3))
    ((query_emb, ref_emb), mat), *_ = measured
    assert torch.equal(ref_emb, rows)
    assert torch.equal(query_emb, anchors)
    assert torch.equal(mat, expected)
    assert vars(other).keys() == before.keys()


def test_distances_are_their_own_all_along() -> None:
    anchors, rows = torch.randn(3, 4), torch.randn(5, 4)
    distance = LpDistance()
    before = dict(vars(distance))
    read_off(distance, anchors, rows)
    assert vars(distance) == before
    assert distance(rows, anchors).shape == (5, 3)


def test_autocast_does_not_round_the_rows() -> None:
    anchors, rows = torch.randn(3, 64), 1e5 * torch.randn(5, 64)
    distance = CosineSimilarity()
    expected = distance(anchors, rows)
    anchors.requires_grad_()
    mat = read_off(distance, anchors, rows)
    (gradient,) = torch.autograd.grad(mat.sum(), anchors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = read_off(distance, anchors, rows)
        assert torch.equal(torch.autograd.grad(rounded.sum(), anchors)[0], gradient)
    assert torch.equal(mat, rounded)
    torch.testing.assert_close(mat, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DISTANCES)
def test_other_vectors_than_those_of_the_matrix_are_measured(name: str) -> None:
    anchors, rows, others = (torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 6))
    distance = DISTANCES[name]()
    expected = distance(anchors, others), distance(others)
    reader = Distances(anchors, stored_rows(rows)).reading(distance, rows)
    measured = reader(anchors, others), reader(others)
    assert all(torch.equal(a, b) for a, b in zip(measured, expected, strict=True))


@pytest.mark.parametrize("name", DISTANCES)
def test_who_may_write_to_the_matrix_gets_one_of_its_own(name: str) -> None:
    anchors, rows = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    distances, distance = Distances(anchors, stored_rows(rows)), DISTANCES[name]()
    with torch.no_grad():
        distances.reading(distance, rows)(anchors, rows).fill_(7)
    mat = distances.reading(distance, rows)(anchors, rows)
    assert mat.requires_grad
    torch.testing.assert_close(mat, distance(anchors, rows))


def test_first_and_second_derivatives_of_the_products() -> None:
    directions = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    rows = stored_rows(torch.randn(7, 4, dtype=torch.float64))

    def products(directions: Tensor) -> Tensor:
        return _Products.apply(directions, rows)[0]

    assert torch.autograd.gradcheck(products, directions)
    assert torch.autograd.gradgradcheck(lambda x: products(x) ** 2, directions)


@pytest.mark.parametrize("name", DISTANCES)
def test_first_and_second_derivatives_of_the_distances(name: str) -> None:
    anchors = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    rows, distance = torch.randn(7, 4, dtype=torch.float64), DISTANCES[name]()
    assert torch.autograd.gradcheck(lambda x: read_off(distance, x, rows), anchors)
    assert torch.autograd.gradgradcheck(lambda x: read_off(distance, x, rows), anchors)


def test_parts_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    anchors, rows = torch.randn(3, 4), torch.randn(50, 4)
    whole = read_off(CosineSimilarity(), anchors, rows)
    monkeypatch.setattr(_parts, "_NUMBERS_AT_A_TIME", {"cpu": 28, "gpu": 28})
    torch.testing.assert_close(read_off(CosineSimilarity(), anchors, rows), whole, rtol=1e-6, atol=1e-6)


# -- noise to signal -----------------------------------------------------------------------------------------

of_any_length = pytest.mark.parametrize("is_scaled", [True, False])


@of_any_length
@pytest.mark.parametrize("offset", [0.0, 30.0])  # of all coordinates, which the variance is not to see
def test_noise_to_signal_equals_a_recomputation_in_float64(is_scaled: bool, offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    anchors = (torch.randn(7, 5, generator=generator) + offset).requires_grad_()
    rows = torch.randn(40, 5, generator=generator) + offset
    weights = torch.randn(7, 40, generator=generator)
    distance = SNRDistance(normalize_embeddings=is_scaled)
    reference = anchors.detach().double().requires_grad_()
    expected = distance(reference, rows.double())
    (expected * weights).sum().backward()
    for ours, dtype in (
        (anchors, torch.float32),
        (reference.detach().clone().requires_grad_(), torch.float64),
    ):
        mat = read_off(distance, ours, rows.to(dtype))
        (mat * weights).sum().backward()
        tolerance = 1e-12 if dtype == torch.float64 else 1e-6
        rtol = tolerance * (1 + 10 * offset)
        torch.testing.assert_close(mat.double(), expected, rtol=rtol, atol=rtol)
        torch.testing.assert_close(ours.grad.double(), reference.grad, rtol=10 * rtol, atol=100 * rtol)


@of_any_length
def test_equal_vectors_have_no_noise(is_scaled: bool) -> None:
    rows = torch.randn(9, 64, generator=torch.Generator().manual_seed(0)) + 1
    anchors = rows[:3].clone().requires_grad_()
    mat = read_off(SNRDistance(normalize_embeddings=is_scaled), anchors, rows)
    assert torch.equal(mat == 0, torch.eye(9, dtype=torch.bool)[:3])
    (gradient,) = torch.autograd.grad(mat.diagonal().sum(), anchors)
    assert not gradient.any()


@of_any_length
def test_first_and_second_derivatives_of_noise_to_signal(is_scaled: bool) -> None:
    anchors = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    rows, distance = torch.randn(7, 4, dtype=torch.float64), SNRDistance(normalize_embeddings=is_scaled)
    assert torch.autograd.gradcheck(lambda x: read_off(distance, x, rows), anchors)
    assert torch.autograd.gradgradcheck(lambda x: read_off(distance, x, rows), anchors)


@of_any_length
def test_a_miner_that_asks_first_leaves_the_losss_gradient(is_scaled: bool) -> None:
    anchors, rows = torch.randn(3, 4, requires_grad=True), torch.randn(7, 4)
    distances = Distances(anchors, stored_rows(rows))
    with torch.no_grad():
        distances.measured(SNRDistance(normalize_embeddings=is_scaled))
    (gradient,) = torch.autograd.grad(distances.measured(CosineSimilarity()).sum(), anchors)
    (expected,) = torch.autograd.grad(CosineSimilarity()(anchors, rows).sum(), anchors)
    torch.testing.assert_close(gradient, expected)


def test_noise_to_signal_has_its_power() -> None:
    anchors, rows, distance = torch.randn(3, 4), torch.randn(5, 4), SNRDistance(power=2)
    torch.testing.assert_close(read_off(distance, anchors, rows), distance(anchors, rows))
