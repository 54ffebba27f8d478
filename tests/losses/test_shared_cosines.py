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
from torch import Tensor

from pml_xbn.losses.shared_cosines import shared_cosines

DISTANCES = {
    "cosine": CosineSimilarity,
    "squared cosine": lambda: CosineSimilarity(power=2),
    "Euclidean": LpDistance,
    "squared Euclidean": lambda: LpDistance(power=2),
}


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
    with shared_cosines(anchors, rows, distance):
        mat = distance(anchors, rows)
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
    with shared_cosines(anchors, rows, distance):
        mat = distance(anchors, rows)
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
        SNRDistance(),
        CosineSimilarity(collect_stats=True),
    ],
    ids=repr,
)
def test_other_distances_compute_themselves(other: BaseDistance) -> None:
    anchors, rows = torch.randn(3, 4), torch.randn(5, 4)
    cosine = CosineSimilarity()
    expected = other(anchors, rows)
    with shared_cosines(anchors, rows, cosine, other):
        assert "forward" not in vars(other)
        assert "forward" not in vars(cosine)  # all share the matrix, or none
        assert torch.equal(other(anchors, rows), expected)


def test_distances_are_their_own_again_afterwards() -> None:
    anchors, rows = torch.randn(3, 4), torch.randn(5, 4)
    distance = LpDistance()
    with pytest.raises(ArithmeticError), shared_cosines(anchors, rows, distance, distance):
        raise ArithmeticError
    assert "forward" not in vars(distance)
    assert distance(rows, anchors).shape == (5, 3)


def test_autocast_does_not_round_the_rows() -> None:
    anchors, rows = torch.randn(3, 64), 1e5 * torch.randn(5, 64)
    distance = CosineSimilarity()
    expected = distance(anchors, rows)
    with torch.autocast("cpu", dtype=torch.bfloat16), shared_cosines(anchors, rows, distance):
        mat = distance(anchors, rows)
    torch.testing.assert_close(mat, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DISTANCES)
def test_other_vectors_than_those_of_the_matrix_are_measured(name: str) -> None:
    anchors, rows, others = (torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 6))
    distance = DISTANCES[name]()
    expected = distance(anchors, others), distance(others)
    with shared_cosines(anchors, rows, distance):
        measured = distance(anchors, others), distance(others)
    assert all(torch.equal(a, b) for a, b in zip(measured, expected, strict=True))
