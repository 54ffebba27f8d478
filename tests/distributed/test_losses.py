"""Two and three ranks have loss and gradient of one process with the batches of all, whatever the loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from across_ranks import from_first_rank, mean_of_ranks
from pmls_value import PER_ANCHOR
from pytorch_metric_learning import losses, miners, reducers, regularizers
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from ranks import on_ranks
from share_of_cases import SHARE, share_of
from torch import Tensor, distributed, nn

from pml_xbn import XBNWrapper

D, M, CLASSES = 4, 15, 3
WEIGHTS = torch.tensor([0.5, 1.0, 2.5], dtype=torch.float64)
MARGINS = {"pos_margin": 0.3, "neg_margin": 1.1}  # in reach of distances between unit vectors

LOSSES: dict[str, Callable[..., nn.Module]] = {
    name: getattr(losses, name) for name in losses.CrossBatchMemory.supported_losses()
}
REDUCERS: dict[str, Callable[[], nn.Module | None]] = {
    "default": lambda: None,
    "mean": reducers.MeanReducer,
    "sum": reducers.SumReducer,
    "non-zero": reducers.AvgNonZeroReducer,
    "threshold": lambda: reducers.ThresholdReducer(low=0.1, high=1.5),
    "class weights": lambda: reducers.ClassWeightedReducer(WEIGHTS),
    "multiple": lambda: reducers.MultipleReducers(
        {"pos_loss": reducers.SumReducer(), "loss": reducers.AvgNonZeroReducer()},
        default_reducer=reducers.ThresholdReducer(low=0.2),
    ),
    "divisor": reducers.DivisorReducer,
    "per anchor": lambda: reducers.PerAnchorReducer(reducers.ThresholdReducer(high=2.0)),
}
MINERS: dict[str, Callable[[], nn.Module | None]] = {
    "none": lambda: None,
    "pair margin": lambda: miners.PairMarginMiner(**MARGINS),
    "multi-similarity": miners.MultiSimilarityMiner,
    "batch hard": miners.BatchHardMiner,
}
# With the losses' default reducers alone.
MORE_MINERS: dict[str, Callable[[], nn.Module]] = {
    "angular": miners.AngularMiner,
    "easy": lambda: miners.BatchEasyHardMiner("easy", "semihard"),
    "own": lambda: EveryOtherPair(),
    "triplet margin": miners.TripletMarginMiner,
}
LAYOUTS: dict[str, Callable[[int, int], list[int]]] = {
    "equal": lambda ranks, step: [4] * ranks,
    "unequal": lambda ranks, step: [1 + (3 * (rank + step)) % 7 for rank in range(ranks)],
    "one empty": lambda ranks, step: [0 if rank == step % ranks else 3 + step for rank in range(ranks)],
}
MODES = ("plain", "mask", "indices")


class EveryOtherPair(miners.BaseMiner):
    """A miner of somebody's own, whose choice for an anchor depends on the anchors before it."""

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> Any:
        return tuple(numbers[::2] for numbers in lmu.get_all_pairs_indices(labels, ref_labels))


class OwnSupCon(losses.SupConLoss):
    """A loss of somebody's own, whose terms depend on all anchors."""

    def _compute_loss(self, mat: Tensor, *masks: Tensor) -> Any:
        return super()._compute_loss(mat / mat.detach().mean().abs(), *masks)


# With an option, or a loss, of their own.
OTHERS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "warm-up": (losses.ContrastiveLoss, {"warmup": 1}),
    "batch loss": (losses.ContrastiveLoss, {"batch_loss_weight": 0.5}),
    "batch loss of all": (losses.NCALoss, {"batch_loss_weight": 0.5}),
    "margin β": (lambda: losses.MarginLoss(learn_beta=True, nu=0.1, num_classes=CLASSES), {}),
    "margin one β": (lambda: losses.MarginLoss(learn_beta=True, nu=0.1), {}),
    "temperature": (lambda: LearnableTemperature(), {}),
    "regularizer": (
        lambda: losses.ContrastiveLoss(embedding_regularizer=regularizers.LpRegularizer()),
        {},
    ),
    "own": (OwnSupCon, {}),
    "own reducer": (lambda: losses.SupConLoss(reducer=MedianReducer()), {}),
}


class MedianReducer(reducers.MeanReducer):
    """A reducer of somebody's own, whose result does not follow from sums and counts."""

    def element_reduction(self, losses: Any, *_: Any) -> Any:
        return losses.median()


class LearnableTemperature(losses.NTXentLoss):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))


class Case(NamedTuple):
    loss: str
    reducer: str
    miner: str
    layout: str
    mode: str

    def build(self, is_many: bool) -> XBNWrapper:
        options: dict[str, Any] = {"memory_dtype": torch.float64, "gather_distributed": is_many}
        if self.loss in OTHERS:
            make, more = OTHERS[self.loss]
            loss = make()
            options |= more
        else:
            loss = LOSSES[self.loss](reducer=REDUCERS[self.reducer]())
        return XBNWrapper(loss.double(), D, M, (MINERS | MORE_MINERS)[self.miner](), **options)


def cases() -> Iterator[Case]:
    for loss in LOSSES:
        usable = set(REDUCERS)
        usable -= {"divisor"} if loss != "MarginLoss" else set()
        usable -= {"per anchor"} if loss not in PER_ANCHOR else set()
        for reducer in REDUCERS:
            if reducer in usable:
                yield from (Case(loss, reducer, *rest) for rest in itertools.product(MINERS, LAYOUTS, MODES))
        yield from (Case(loss, "default", *rest) for rest in itertools.product(MORE_MINERS, LAYOUTS, MODES))
    for loss in OTHERS:
        yield from (Case(loss, "default", *rest) for rest in itertools.product(MINERS, LAYOUTS, MODES))


class Input(NamedTuple):
    inputs: Tensor
    labels: Tensor
    mask: Tensor | None
    indices: tuple[Tensor, ...] | None


def input_of(case: Case, rank: int, size: int, step: int) -> Input:
    """What a rank brings.

    In the first step all have one class; or every rank has one of its own, and the second is far from the
    others, so that PairMarginMiner finds it no negatives, while a third finds some. Where one of two ranks is
    empty, the other has with a mask one positive pair and one negative.
    """
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(size, D, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, CLASSES, (size,), generator=generator)
    if step == 0:
        labels = torch.full_like(labels, 0 if case.layout == "equal" else rank % CLASSES)
        if case.layout == "one empty":
            labels[2:] = (rank + 1) % CLASSES
        inputs[:, 0] += 4.0 if rank == 1 else -4.0
    mask = torch.arange(size) % 2 == 1 if case.mode == "mask" else None
    indices = None
    if case.mode == "indices" and size:
        pairs = lmu.get_all_pairs_indices(labels)
        triplets = lmu.get_all_triplets_indices(labels)
        indices = pairs if step == 0 else triplets
    return Input(inputs, labels, mask, indices)


def joined(parts: list[Input]) -> Input:
    """What a single process would be given."""
    firsts = itertools.accumulate((len(part.labels) for part in parts), initial=0)
    given = [
        [numbers + first for numbers in part.indices]
        for part, first in zip(parts, firsts, strict=False)
        if part.indices is not None
    ]
    return Input(
        torch.cat([part.inputs for part in parts]),
        torch.cat([part.labels for part in parts]),
        None if parts[0].mask is None else torch.cat([part.mask for part in parts if part.mask is not None]),
        tuple(torch.cat(numbers) for numbers in zip(*given, strict=True)) if given else None,
    )


def train(case: Case, rank: int | None) -> list[tuple[Tensor, Tensor]]:
    """Loss and mean gradient of two steps, as one rank, or on what all bring if ``rank`` is None."""
    torch.manual_seed(0)
    model = nn.Linear(D, D, bias=False).double()
    loss_fn = case.build(is_many=rank is not None)
    results = []
    for step in range(2):
        sizes = LAYOUTS[case.layout](distributed.get_world_size(), step)
        parts = [input_of(case, number, size, step) for number, size in enumerate(sizes)]
        inputs, labels, mask, indices = joined(parts) if rank is None else parts[rank]
        loss = loss_fn(model(inputs), labels, indices, mask)
        parameters = [*model.parameters(), *loss_fn.parameters()]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        gradient = torch.cat([g.flatten() for g in flat])
        results.append((loss.detach(), gradient if rank is None else mean_of_ranks(gradient)))
    return results


def check(case: Case) -> None:
    found, expected = train(case, distributed.get_rank()), from_first_rank(lambda: train(case, None))
    for one, other in zip(found, expected, strict=True):
        assert max(map(difference, one, other)) < 1e-9, (one, other)
    # There is something to compare, though not where all have one class, or what is small counts for nothing.
    may_be_zero = case.reducer in ("threshold", "per anchor") or case.miner == "easy"
    assert may_be_zero or expected[-1][1].abs().max() > 0


def difference(found: Tensor, expected: Tensor) -> float:
    """Relative, but for what is tiny."""
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item()


@pytest.mark.parametrize("case", share_of(cases(), first=2 % SHARE), ids=", ".join)
@on_ranks(2)
def test_two_ranks_have_loss_and_gradient_of_one_process(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", share_of(cases(), first=3 % SHARE), ids=", ".join)  # others than two
@on_ranks(3)
def test_three_ranks_have_loss_and_gradient_of_one_process(case: Case) -> None:
    check(case)
