from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kinds import MEMORIES, PLAIN
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor

from pml_xbn import XBNWrapper
from pml_xbn.diagnostics import WatchedLoss, common_mode_push


def test_push_is_the_mean_gradient_along_the_displacement(dtype: torch.dtype) -> None:
    gradient, anchors, memory = (torch.randn(n, 4).to(dtype) for n in (6, 6, 9))
    g, z, r = (rows.double().numpy() for rows in (gradient, anchors, memory))
    mean = sum(g) / 6
    delta = sum(r) / 9 - sum(z) / 6
    size, length = np.sqrt(mean @ mean), np.sqrt(delta @ delta)
    expected = {
        "push": mean @ delta / length,
        "share": size / np.sqrt(sum(row @ row for row in g) / 6),
        "cosine": mean @ delta / length / size,
        "displacement": length,
    }
    measured = common_mode_push(gradient, anchors, memory)
    for name, value in expected.items():
        assert getattr(measured, name).item() == pytest.approx(value, rel=1e-5), name
        assert getattr(measured, name).dtype == torch.promote_types(dtype, torch.float32)


def test_positive_push_moves_the_anchors_away_from_the_memory() -> None:
    """A pure drift: memory behind the batch, every row a negative, and a loss on plain distances."""
    anchors = torch.randn(6, 4, dtype=torch.float64)
    memory = anchors - torch.tensor([3.0, 0.0, 0.0, 0.0])
    leaf = anchors.clone().requires_grad_()
    (-torch.cdist(leaf, memory)).mean().backward()
    measured = common_mode_push(leaf.grad, anchors, memory)
    assert measured.push > 0
    assert measured.cosine > 0.9
    before, after = (
        (rows.mean(dim=0) - memory.mean(dim=0)).norm() for rows in (anchors, anchors - 0.1 * leaf.grad)
    )
    assert after > before
    towards = common_mode_push(-leaf.grad, anchors, memory)
    assert towards.push == -measured.push
    assert towards.share == measured.share


@given(
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1e-30, 1e-6, 1.0, 1e10]),
    shift=st.sampled_from([-2.0, 0.5, 100.0]),
)
def test_share_and_cosine_do_not_depend_on_size_or_place(seed: int, scale: float, shift: float) -> None:
    torch.manual_seed(seed)
    gradient, anchors, memory = (torch.randn(n, 3, dtype=torch.float64) for n in (5, 5, 8))
    one = common_mode_push(gradient, anchors, memory)
    other = common_mode_push(gradient * scale, anchors + shift, memory + shift)
    np.testing.assert_allclose(other.push, one.push * scale, rtol=1e-6)
    np.testing.assert_allclose(other[1:], one[1:], rtol=1e-6)
    assert 0 <= one.share <= 1
    assert -1 <= one.cosine <= 1
    same = common_mode_push(gradient[:1].expand(5, -1), anchors, memory)
    assert same.share == pytest.approx(1)
    opposite = common_mode_push(torch.cat([gradient, -gradient]), anchors.repeat(2, 1), memory)
    assert opposite.share < 1e-12


def test_numbers_in_half_precision_are_what_they_are() -> None:
    gradient, anchors, memory = torch.randn(3, 50, 4) / 10
    halves = [x.bfloat16() for x in (gradient, anchors + 1, memory + 1.05)]
    expected = common_mode_push(*(x.double() for x in halves))
    torch.testing.assert_close(common_mode_push(*halves), expected, check_dtype=False)
    assert common_mode_push(*halves).displacement > 0.01
    anchors[0, 0] = torch.nan
    assert common_mode_push(gradient, anchors, memory).push.isnan()


def step(memory: str, rows: list[Tensor], labels: list[Tensor]) -> WatchedLoss:
    options = {} if memory == "pml" else {"memory_dtype": rows[0].dtype}
    loss = ContrastiveLoss(neg_margin=2, distance=LpDistance(normalize_embeddings=False))
    loss_fn = MEMORIES[memory](loss, 4, 20, **options)
    for batch, of_batch in zip(rows, labels, strict=True):
        with WatchedLoss(loss_fn) as seen:
            loss_fn(batch.clone().requires_grad_(), of_batch)
    return seen


@pytest.mark.parametrize("memory", MEMORIES)
def test_empty_memory_pushes_nothing(memory: str, dtype: torch.dtype) -> None:
    measured = step(memory, [torch.randn(8, 4).to(dtype).float()], [torch.arange(8) % 4]).common_mode_push()
    assert measured.push == measured.cosine == measured.displacement == 0


@pytest.mark.parametrize("memory", PLAIN)
def test_memory_of_the_same_images_and_model_pushes_nothing(memory: str) -> None:
    rows = 5 + torch.randn(8, 4)
    order = torch.randperm(8)
    labels = torch.arange(8) % 4
    seen = step(memory, [rows, rows[order]], [labels, labels[order]])
    assert seen.gradient.any()
    measured = seen.common_mode_push()
    assert measured.push == measured.cosine == measured.displacement == 0


@pytest.mark.parametrize("memory", ["xbn", "centre"])
def test_matched_means_push_nothing(memory: str) -> None:
    """Whatever the drift: the rows take the mean of the batch."""
    rows, labels = torch.randn(2, 8, 4, dtype=torch.float64), torch.arange(8) % 4
    drifted = [rows[0], rows[1] + 1]
    seen = step(memory, drifted, [labels, labels])
    assert seen.memory_gradient.any()
    measured = seen.common_mode_push()
    assert measured.push == measured.cosine == measured.displacement == 0
    assert step("pml", drifted, [labels, labels]).common_mode_push().displacement > 0.5


@pytest.mark.parametrize("memory", PLAIN)
def test_memory_without_a_gradient_pushes_nothing(memory: str) -> None:
    """Its rows are of other classes, and further away than the margin."""
    rows, labels = torch.randn(2, 8, 4, dtype=torch.float64), torch.arange(8) % 4
    seen = step(memory, [rows[0] + 100, rows[1]], [labels + 4, labels])
    assert seen.gradient.any()
    measured = seen.common_mode_push(memory_only=True)
    assert measured.push == measured.share == measured.cosine == 0
    assert measured.displacement > 100


@pytest.mark.parametrize("memory", PLAIN)
def test_lagging_memory_of_negatives_pushes_further(memory: str) -> None:
    rows, labels = torch.randn(2, 8, 4, dtype=torch.float64) / 4, torch.arange(8) % 4
    seen = step(memory, [rows[0] - 0.5, rows[1]], [labels + 4, labels])
    assert seen.common_mode_push(memory_only=True).push > 0


@pytest.mark.parametrize(("memory_size", "is_displaced"), [(24, False), (20, True)])
def test_xbn_is_displaced_only_where_the_oldest_batch_is_cut(memory_size: int, is_displaced: bool) -> None:
    memory = XBNWrapper(ContrastiveLoss(), embedding_size=4, memory_size=memory_size)
    for step in range(8):
        embeddings = (step + torch.randn(8, 4)).requires_grad_()
        with WatchedLoss(memory) as seen:
            memory(embeddings, torch.arange(8) % 4)
    assert (seen.common_mode_push().displacement > 0) == is_displaced
