"""DistanceWeightedMiner with a memory draws as PML's code does, without a row of weights for each triplet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, MarginLoss
from pytorch_metric_learning.miners import DistanceWeightedMiner
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pml_xbn.losses import AdaptiveCrossBatchMemory

A, N = 6, 40
SETTINGS = {
    "default": (6, {}),
    "three dimensions": (3, {}),
    "few dimensions": (2, {"cutoff": 0.1, "nonzero_loss_cutoff": 1.9}),
    "many dimensions": (40, {"cutoff": 0.9}),
    "near alone": (4, {"cutoff": 0.2, "nonzero_loss_cutoff": 0.7}),
}


def rows_of(d: int, num_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Some rows point the same way, so that there are near negatives; classes differ in size."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, d, generator=generator) + 0.5
    return rows, torch.randint(0, 5, (num_rows,), generator=generator).clamp_min(1)


def triplets_of(memory: AdaptiveCrossBatchMemory, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """What the loss of a step is given."""
    given: list[tuple[Tensor, ...]] = []
    handle = memory.loss.register_forward_pre_hook(lambda _, inputs: given.append(inputs[2]))
    memory(embeddings, labels)
    handle.remove()
    (lists,) = given
    return lists


def counted(all_lists: list[tuple[Tensor, ...]], num_rows: int) -> tuple[Tensor, Tensor]:
    """How often an anchor was drawn with each positive and each negative."""
    a, p, n = (torch.cat(lists) for lists in zip(*all_lists, strict=True))
    size = A * num_rows
    return tuple((a * num_rows + x).bincount(minlength=size).view(A, num_rows) for x in (p, n))


def is_same_distribution(one: Tensor, other: Tensor) -> bool:
    """Whether two samples of the anchors' rows, of equal size, may be of one distribution: chi-square."""
    total = (one + other).double()
    common = total >= 10
    chi_square = ((one - other).double().square() / total)[common].sum()
    freedom = common.sum() - common.any(dim=1).sum()
    return bool(chi_square < freedom + 4 * (2.0 * freedom).sqrt())


@pytest.mark.parametrize("setting", SETTINGS)
def test_triplets_have_the_distribution_of_pmls(setting: str) -> None:
    d, options = SETTINGS[setting]
    miner = DistanceWeightedMiner(**options)
    rows, row_labels = rows_of(d, N, 0)
    anchors, labels = rows_of(d, A, 1)
    labels[0] = 99  # of which there is no positive
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), d, N, miner)
    memory.fill_memory(rows, row_labels)
    memory.eval()
    torch.manual_seed(0)
    ours = [triplets_of(memory, anchors, labels) for _ in range(300)]
    theirs = [miner(anchors, labels, rows, row_labels) for _ in range(300)]
    for lists, other in zip(ours, theirs, strict=True):
        assert torch.equal(lists[0].bincount(minlength=A), other[0].bincount(minlength=A))
    for one, other in zip(counted(ours, N), counted(theirs, N), strict=True):
        assert one.sum() > 1000
        assert is_same_distribution(one, other)
    # The test can tell: of other anchors the sample is another.
    anchors_of_other = anchors + 0.3 * torch.randn(A, d)
    others = [miner(anchors_of_other, labels, rows, row_labels) for _ in range(300)]
    assert not is_same_distribution(counted(others, N)[1], counted(theirs, N)[1])


def test_positives_and_negatives_of_a_triplet_are_drawn_independently() -> None:
    rows, row_labels = rows_of(6, N, 0)
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), 6, N, DistanceWeightedMiner())
    memory.fill_memory(rows, row_labels)
    memory.eval()
    torch.manual_seed(0)
    drawn = [triplets_of(memory, rows[:1] + 0.3, row_labels[:1]) for _ in range(600)]
    _, p, n = (torch.cat(lists) for lists in zip(*drawn, strict=True))
    both = (p * N + n).bincount(minlength=N * N).view(N, N).double()
    expected = both.sum(1, keepdim=True) * both.sum(0, keepdim=True) / both.sum()
    common = expected >= 5
    assert common.sum() > 20
    chi_square = ((both - expected).square() / expected)[common].sum()
    assert chi_square < common.sum() + 4 * (2.0 * common.sum()).sqrt()


def test_no_anchor_is_drawn_with_its_own_copy_and_others_as_often_as_by_pml() -> None:
    miner = DistanceWeightedMiner(collect_stats=True)
    ours, theirs = [], []
    torch.manual_seed(0)
    rows, row_labels = rows_of(6, N, 0)
    batch, labels = rows[-A:], row_labels[-A:]
    for _ in range(300):
        memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), 6, N, miner)
        memory.fill_memory(rows[:-A], row_labels[:-A])
        ours.append(triplets_of(memory, batch, labels))
        assert miner.num_triplets == len(ours[-1][0])
        a, p, n = miner(batch, labels, rows, row_labels)
        is_other = p != memory.curr_batch_idx[a]
        theirs.append((a[is_other], p[is_other], n[is_other]))
    for one, other in zip(counted(ours, N), counted(theirs, N), strict=True):
        assert is_same_distribution(one, other)
    positives, _ = counted(ours, N)
    assert (positives[torch.arange(A), torch.arange(N - A, N)] == 0).all()


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made while it is entered."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, tuple | list) else (made,):
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.numel())
        return made


@pytest.mark.parametrize("num_classes", [2, 10, 400])
def test_no_tensor_is_larger_than_anchors_times_rows(num_classes: int) -> None:
    num_rows, d = 2000, 8
    memory = AdaptiveCrossBatchMemory(MarginLoss(), d, num_rows, DistanceWeightedMiner())
    memory.fill_memory(torch.randn(num_rows, d), torch.arange(num_rows) % num_classes)
    embeddings = torch.randn(A * 4, d).requires_grad_()
    with Largest() as largest:
        memory(embeddings, torch.arange(A * 4) % num_classes).backward()
    assert largest.numbers <= A * 4 * num_rows


def test_a_miner_of_ones_own_is_called() -> None:
    class Own(DistanceWeightedMiner):
        def mine(self, *inputs: Tensor) -> tuple[Tensor, ...]:
            return tuple(x[:5] for x in super().mine(*inputs))

    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), 6, N, Own())
    memory.fill_memory(*rows_of(6, N, 0))
    assert len(triplets_of(memory.eval(), *rows_of(6, A, 1))[0]) == 5
