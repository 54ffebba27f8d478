"""The loss of one rank's anchors, as its share of the loss of the anchors of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from torch import Tensor, nn

from ._seam import loss_against
from ._terms import OF_BOTH_KINDS, Info
from ._twins import is_as_built

# Of an anchor's terms none depends on another anchor, but for whether there are pairs at all.
_LOSSES = (
    losses.AngularLoss,
    losses.CircleLoss,
    losses.ContrastiveLoss,
    losses.GeneralizedLiftedStructureLoss,
    losses.MarginLoss,
    losses.MultiSimilarityLoss,
    losses.NTXentLoss,
    losses.SignalToNoiseRatioContrastiveLoss,
    losses.SupConLoss,
    losses.TripletMarginLoss,
    losses.TupletMarginLoss,
)
# Those that hand their reducer a column, (n, 1), which ClassWeightedReducer multiplies with a row.
_OF_COLUMNS = (
    losses.AngularLoss,
    losses.CircleLoss,
    losses.GeneralizedLiftedStructureLoss,
    losses.MultiSimilarityLoss,
    losses.TupletMarginLoss,
)
# What these choose for an anchor does not depend on another anchor.
_MINERS = (
    type(None),
    miners.AngularMiner,
    miners.BatchEasyHardMiner,
    miners.BatchHardMiner,
    miners.DistanceWeightedMiner,
    miners.MultiSimilarityMiner,
    miners.PairMarginMiner,
    miners.TripletMarginMiner,
)
_DISTANCES = (
    distances.CosineSimilarity,
    distances.DotProductSimilarity,
    distances.LpDistance,
    distances.SNRDistance,
)

Fraction = tuple[Tensor, Tensor]  # a sum, and what the sum over all ranks is to be divided by

# Reducer -> the sum and the count of (reducer, losses, info, labels of the anchors).
_FRACTIONS: dict[type[nn.Module], Callable[[Any, Tensor, Info, Tensor], Fraction]] = {}


class Share(NamedTuple):
    """Sums over this rank's terms, of which those of all ranks make the loss.

    Attributes:
        sums: of every part of the loss, ``(k,)``, with gradient.
        counts: of what the sums are divided by, ``(k,)``, float64.
        num_pairs: positive and negative pairs, ``(2,)``, float64.
    """

    sums: Tensor
    counts: Tensor
    num_pairs: Tensor

    def numbers(self) -> Tensor:
        """What the other ranks have to know, ``(2k + 2,)``, float64."""
        return torch.cat([self.sums.detach().double(), self.counts, self.num_pairs])

    def loss(self, loss: Any, of_ranks: Tensor) -> Tensor:
        """The loss of all ranks, whose gradients on the ranks have that of a single process as their mean.

        Args:
            of_ranks: the numbers of all ranks, ``(ranks, 2k + 2)``, float64.
        """
        k = len(self.sums)
        sums, counts, num_pairs = of_ranks.sum(dim=0).split([k, k, 2])
        is_sum = [type(_reducer_of(loss, name)) is reducers.SumReducer for name in loss.sub_loss_names()]
        divisors = torch.where(torch.tensor(is_sum, device=counts.device), 1.0, counts)
        if _is_zero(loss, *num_pairs.tolist()):
            divisors = torch.zeros_like(divisors)
        weights = torch.where(divisors > 0, 1 / divisors, 0.0)
        value = torch.where(divisors > 0, sums * weights, 0.0).sum()
        mine = len(of_ranks) * (self.sums * weights.to(self.sums)).sum()
        return value.to(mine) + (mine - mine.detach())


def check_reducers(loss: nn.Module) -> None:
    """Refuses a reducer whose result cannot be had from the sums and counts of ranks.

    Raises:
        ValueError: a reducer that is not one of PML's, or ``DoNothingReducer``.
    """
    known = {*_FRACTIONS, reducers.MultipleReducers, reducers.PerAnchorReducer}
    for module in loss.modules():
        if isinstance(module, reducers.BaseReducer) and type(module) not in known:
            raise ValueError(
                f"gather_distributed=True with a {type(module).__name__}, whose result for all ranks cannot "
                f"be had from theirs: pass one of {', '.join(sorted(cls.__name__ for cls in known))}"
            )


def can_be_shared(loss: nn.Module, miner: Any) -> bool:
    """Whether every rank can compute the terms of its own anchors, without seeing those of the others."""
    is_of_columns = type(loss) in _OF_COLUMNS
    return (
        type(loss) in _LOSSES
        and type(miner) in _MINERS
        and is_as_built(loss)
        and all(type(part.distance) in _DISTANCES for part in (loss, miner) if part is not None)
        and not (is_of_columns and any(isinstance(m, reducers.ClassWeightedReducer) for m in loss.modules()))
        # The same on all ranks, whatever their anchors.
        and not getattr(loss, "learn_beta", False)
        and not loss.embedding_regularizer
    )


def share_of_nothing(loss: Any, anchors: Tensor) -> Share:
    """Of a rank that has no anchors, or nothing to compare them with."""
    none = anchors.new_zeros(len(loss.sub_loss_names()), dtype=torch.float64)
    return Share((anchors * 0).sum() + none.to(anchors), none, none.new_zeros(2))


def share_against(loss: Any, *arguments: Any) -> Share:
    """This rank's share of the loss, of the arguments of :func:`loss_against`."""
    summing = _Summing(loss)
    loss_against(loss, *arguments, summing=summing)
    sums, counts = summing.fractions
    return Share(sums, counts, counts.new_tensor(summing.num_pairs))


class _Summing:
    """In the place of a loss's reducer, keeps the sums and counts that the reducer would divide."""

    num_pairs: list[int]
    fractions: tuple[Tensor, Tensor]

    def __init__(self, loss: Any) -> None:
        self.reducer_of = {name: _reducer_of(loss, name) for name in loss.sub_loss_names()}

    def __call__(self, terms: dict[str, Info], anchors: Tensor, labels: Tensor) -> Tensor:
        zero = (anchors * 0).sum()
        sums, counts = [], []
        for name, reducer in self.reducer_of.items():
            losses = terms[name]["losses"]
            total, count = zero, torch.zeros(())
            if isinstance(losses, Tensor):  # and not the 0 that stands for no pairs
                total, count = _FRACTIONS[type(reducer)](reducer, losses, terms[name], labels)
            sums.append(total)
            counts.append(count)
        self.fractions = torch.stack(sums), torch.stack([count.to(zero.device).double() for count in counts])
        return self.fractions[0].sum()


def _is_zero(loss: nn.Module, num_positive: float, num_negative: float) -> bool:
    """Whether PML's loss of so many pairs is zero without a look at them."""
    if isinstance(loss, losses.GenericPairLoss) and max(num_positive, num_negative) <= 1:
        return True
    return isinstance(loss, OF_BOTH_KINDS) and min(num_positive, num_negative) == 0


def _reducer_of(loss: Any, name: str) -> Any:
    """The reducer that the part of a loss with this name ends in."""
    reducer = loss.reducer
    while type(reducer) not in _FRACTIONS:
        if isinstance(reducer, reducers.MultipleReducers):
            has_own = name in reducer.reducers
            reducer = reducer.reducers[name] if has_own else reducer.default_reducer
        else:
            reducer = reducer.reducer  # of a PerAnchorReducer, which hands on what is one per anchor
    return reducer


def _fraction_of_all(_: Any, losses: Tensor, __: Info, ___: Tensor) -> Fraction:
    return losses.sum(), torch.tensor(losses.numel())


def _fraction_within(reducer: Any, losses: Tensor, _: Info, __: Tensor) -> Fraction:
    keep = torch.ones_like(losses, dtype=torch.bool)
    if reducer.low is not None:
        keep &= losses > reducer.low
    if reducer.high is not None:
        keep &= losses < reducer.high
    return losses[keep].sum(), keep.sum()


def _fraction_by_class(reducer: Any, losses: Tensor, info: Info, labels: Tensor) -> Fraction:
    anchors = info["indices"] if info["reduction_type"] == "element" else info["indices"][0]
    return (losses * reducer.weights.to(losses)[labels[anchors]]).sum(), torch.tensor(losses.numel())


def _fraction_by_divisor(_: Any, losses: Tensor, info: Info, __: Tensor) -> Fraction:
    return losses.sum(), info["divisor"]


_FRACTIONS |= {
    reducers.AvgNonZeroReducer: _fraction_within,
    reducers.ClassWeightedReducer: _fraction_by_class,
    reducers.DivisorReducer: _fraction_by_divisor,
    reducers.MeanReducer: _fraction_of_all,
    reducers.SumReducer: _fraction_of_all,
    reducers.ThresholdReducer: _fraction_within,
}
