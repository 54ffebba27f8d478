"""Rows and statistics in float32 or better, gradients in the caller's dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity
from pytorch_metric_learning.losses import AngularLoss, ContrastiveLoss, NCALoss, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from pytorch_metric_learning.reducers import AvgNonZeroReducer
from torch import nn

from pml_xbn import XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

D = 5
HALF = [torch.float16, torch.bfloat16]


@pytest.fixture(params=WRAPPERS)
def make(request: pytest.FixtureRequest) -> Callable[..., nn.Module]:
    return KINDS[request.param].memory


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("half", HALF, ids=str)
def test_half_batches_are_stored_and_adapted_as_in_float32(
    make: Callable, half: torch.dtype, device: torch.device
) -> None:
    in_half, in_full = make(SupConLoss(), D, 20).to(device), make(SupConLoss(), D, 20).to(device)
    labels = torch.arange(8, device=device) % 3
    for step in range(5):
        embeddings = (torch.randn(8, D, device=device) + step).to(half)
        first, second = embeddings.requires_grad_(), embeddings.detach().float().requires_grad_()
        loss, expected = in_half(first, labels), in_full(second, labels)
        loss.backward()
        expected.backward()
        assert torch.equal(loss, expected)
        assert first.grad.dtype == half
        assert torch.equal(first.grad, second.grad.to(half))
        assert in_half.embedding_memory.dtype == torch.float32
        assert torch.equal(in_half.embedding_memory, in_full.embedding_memory)


@pytest.mark.parametrize("half", HALF, ids=str)
def test_autocast_does_not_reach_rows_and_statistics(
    make: Callable, half: torch.dtype, device: torch.device
) -> None:
    if half == torch.float16 and device.type == "cpu":
        pytest.skip("float16 autocast needs a GPU")
    inside, outside = make(SupConLoss(), D, 20).to(device), make(SupConLoss(), D, 20).to(device)
    labels = torch.arange(8, device=device) % 3
    layer = nn.Linear(D, D).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)
    # As float16 needs it; from a scale that is too large its first steps would be left out.
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10) if half == torch.float16 else None
    for _ in range(5):
        with torch.autocast(device.type, half):
            embeddings = layer(torch.randn(8, D, device=device))
            assert embeddings.dtype == half
            loss = inside(embeddings, labels)
        expected = outside(embeddings.detach(), labels)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(inside.embedding_memory, outside.embedding_memory, rtol=1e-5, atol=1e-5)
        optimizer.zero_grad()
        (loss if scaler is None else scaler.scale(loss)).backward()
        assert torch.isfinite(layer.weight.grad).all()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


class OwnSupCon(SupConLoss):
    """Is called with all rows."""


@pytest.mark.parametrize("options", [{}, {"warmup": 1}, {"batch_loss_weight": 0.5}], ids=str)
@pytest.mark.parametrize(
    "loss",
    [SupConLoss(), OwnSupCon(), AngularLoss(), ContrastiveLoss(2.0, 0.0, distance=DotProductSimilarity())],
    ids=lambda loss: type(loss).__name__,
)
def test_autocast_does_not_reach_the_loss(loss: nn.Module, options: dict, device: torch.device) -> None:
    inside, outside = (XBNWrapper(loss, D, 20, **options).to(device) for _ in range(2))
    labels = torch.arange(8, device=device) % 3
    for training in (True, True, False):
        embeddings = torch.randn(8, D, device=device, requires_grad=True)
        with torch.autocast(device.type, torch.bfloat16):
            found = inside.train(training)(embeddings, labels)
        expected = outside.train(training)(embeddings, labels)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        gradients = (torch.autograd.grad(x, embeddings, allow_unused=True)[0] for x in (found, expected))
        torch.testing.assert_close(*gradients)


def test_float64_keeps_its_precision_where_asked_for(make: Callable, device: torch.device) -> None:
    ours = make(ContrastiveLoss(), D, 20, memory_dtype=torch.float64).to(device)
    embeddings = torch.randn(4, D, device=device, dtype=torch.float64)
    loss = ours(embeddings.requires_grad_(), torch.arange(4, device=device) % 3)
    assert loss.dtype == ours.embedding_memory.dtype == torch.float64
    torch.testing.assert_close(ours.embedding_memory[:4], embeddings.detach(), rtol=1e-13, atol=1e-13)
    ours.reset_queue()
    assert ours.embedding_memory.dtype == torch.float64


def test_float64_batches_meet_a_float32_memory_in_float64(make: Callable, device: torch.device) -> None:
    ours = make(ContrastiveLoss(), D, 20).to(device)
    for _ in range(4):
        embeddings = torch.randn(4, D, device=device, dtype=torch.float64, requires_grad=True)
        loss = ours(embeddings, torch.arange(4, device=device) % 3)
        loss.backward()
        assert loss.dtype == embeddings.grad.dtype == torch.float64
        assert ours.embedding_memory.dtype == torch.float32


def test_a_batch_that_is_seen_again_has_no_distance_to_itself() -> None:
    embeddings, labels = torch.randn(40, D), torch.arange(40) % 4
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), D, 100)
    memory(embeddings, labels)
    loss = memory(embeddings, labels)
    unit = nn.functional.normalize(embeddings.double())
    distances = (unit[:, None] - torch.cat([unit, unit])[None]).norm(dim=2)
    is_same = labels[:, None] == torch.cat([labels, labels])
    is_own = torch.cat([torch.zeros(40, 40), torch.eye(40)], dim=1).bool()
    positive, negative = distances[is_same & ~is_own], (1 - distances[~is_same]).relu()
    expected = sum(terms[terms > 0].mean() for terms in (positive, negative))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("num_rows", [60, 5000])
@pytest.mark.parametrize("name", ["SupCon", "NCA"])
def test_small_terms_are_counted_as_in_float64(name: str, num_rows: int, device: torch.device) -> None:
    """Anchors with one positive at a cosine near 1, and negatives near 0: e⁻²⁰ is lost beside 1 in float32.

    AvgNonZeroReducer, which is SupConLoss's own, divides by the number of terms above zero.
    """
    draw = torch.Generator().manual_seed(0)
    axes = torch.eye(64).repeat(1 + num_rows // 64, 1)[:num_rows]
    rows = axes + 0.01 * torch.randn(num_rows, 64, generator=draw)
    labels = torch.arange(num_rows) + 100
    labels[:30] = torch.arange(30)
    rows[0] = axes[5]  # an anchor that has learned nothing
    anchors, scale = axes[:30] + 0.01 * torch.randn(30, 64, generator=draw), 20.0
    losses = {
        "SupCon": SupConLoss(temperature=1 / scale),
        "NCA": NCALoss(softmax_scale=scale, distance=CosineSimilarity(), reducer=AvgNonZeroReducer()),
    }
    memory = AdaptiveCrossBatchMemory(losses[name], 64, num_rows + 30).to(device)
    memory.fill_memory(rows[30:].to(device), labels[30:].to(device))
    memory.fill_memory(rows[:30].to(device), labels[:30].to(device))
    found = memory.eval()(anchors.to(device), labels[:30].to(device))
    cosines = nn.functional.cosine_similarity(anchors.double()[:, None], rows.double(), dim=2)
    is_positive = labels[:30, None] == labels
    gaps = cosines.masked_fill(is_positive, -torch.inf) - cosines[is_positive].unsqueeze(1)
    terms = (scale * gaps).exp().sum(dim=1).log1p()
    assert (terms > 0).all()
    torch.testing.assert_close(found.cpu().double(), terms.mean(), rtol=1e-4, atol=0)


def test_an_anchor_whose_only_pair_is_positive_does_not_count_among_however_many_rows(
    device: torch.device,
) -> None:
    """Its term is 0, which AvgNonZeroReducer does not count: rows that the miner leaves out add nothing."""
    num_rows, axes = 20_000, torch.eye(40)
    anchors, labels = axes[:4], torch.arange(4)
    positives = 0.5 * anchors + 0.75**0.5 * axes[10]
    negative = 0.9 * axes[:1] + (1 - 0.9**2) ** 0.5 * axes[11:12]
    others = axes[12 + torch.arange(num_rows) % 28]
    memory = AdaptiveCrossBatchMemory(
        SupConLoss(temperature=0.1), 40, num_rows + 5, miner=PairMarginMiner(0.2, 0.8)
    ).to(device)
    rows = torch.cat([positives, negative, others])
    memory.fill_memory(rows.to(device), torch.cat([labels, torch.arange(4, num_rows + 5)]).to(device))
    found = memory.eval()(anchors.to(device), labels.to(device))
    expected = torch.tensor(10 * (0.9 - 0.5), dtype=torch.float64).exp().log1p()  # of the first alone
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=0)


def test_rows_after_a_batch_of_nearly_equal_ones_fit_in_half_precision() -> None:
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), D, 20, memory_dtype=torch.float16)
    memory(1 + 1e-6 * torch.randn(8, D), torch.arange(8))
    embeddings = torch.randn(8, D)
    memory(embeddings, torch.arange(8))
    torch.testing.assert_close(memory.embedding_memory[8:16], embeddings, rtol=2e-3, atol=2e-3)
