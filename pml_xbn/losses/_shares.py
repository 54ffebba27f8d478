"""A loss as sums and counts, of one rank's anchors or of all there are."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import reducers
from torch import Tensor, nn

from ._forms import FORMS
from ._rules import KNOWN_REDUCERS


class Share(NamedTuple):
    """Sums over the terms of some anchors, of which those of all make the loss.

    Attributes:
        sums: of every part of the loss, ``(k,)``, with gradient.
        counts: of what the sums are divided by, ``(k,)``; below 0 where they are not.
        num_pairs: positive and negative pairs.
    """

    sums: Tensor
    counts: Tensor
    num_pairs: list[int]

    def numbers(self) -> Tensor:
        """What the other ranks have to know, ``(2k + 2,)``, float64."""
        counts = torch.cat([self.counts, self.counts.new_tensor(self.num_pairs)])
        return torch.cat([self.sums.detach().double(), counts.double()])

    def loss(self, loss: Any) -> Tensor:
        """The loss, if there are no other anchors."""
        weights = _weights(loss, self.counts.to(self.sums), *self.num_pairs)
        return (self.sums * weights).sum()

    def loss_of_ranks(self, loss: Any, of_ranks: Tensor) -> Tensor:
        """The loss of all ranks, whose gradients on the ranks have that of a single process as their mean.

        Args:
            of_ranks: the numbers of all ranks, ``(ranks, 2k + 2)``, float64.
        """
        k = len(self.sums)
        sums, counts, num_pairs = of_ranks.sum(dim=0).split([k, k, 2])
        weights = _weights(loss, counts, *num_pairs.tolist())
        value: Tensor = (sums * weights).sum()
        mine = len(of_ranks) * (self.sums * weights.to(self.sums)).sum()
        return value.to(mine) + (mine - mine.detach())


def share_of_nothing(loss: Any, anchors: Tensor) -> Share:
    """Of a rank that has no anchors, or nothing to compare them with."""
    none = anchors.new_zeros(len(loss._sub_loss_names()))
    return Share((anchors * 0).sum() + none, none.long(), [0, 0])


def check_reducers(loss: nn.Module) -> None:
    """Refuses a reducer whose result cannot be had from the sums and counts of ranks.

    Raises:
        ValueError: a reducer that is not one of PML's, or ``DoNothingReducer``.
    """
    for module in loss.modules():
        if isinstance(module, reducers.BaseReducer) and type(module) not in KNOWN_REDUCERS:
            names = ", ".join(sorted(cls.__name__ for cls in KNOWN_REDUCERS))
            raise ValueError(
                f"gather_distributed=True with a {type(module).__name__}, whose result for all ranks cannot "
                f"be had from theirs: pass one of {names}"
            )


def _weights(loss: Any, counts: Tensor, num_positive: float, num_negative: float) -> Tensor:
    """What the sums are multiplied with, ``(k,)``; 0 where there is nothing to divide."""
    if FORMS[type(loss)].is_zero(loss, num_positive, num_negative):
        return torch.zeros_like(counts)
    weights: Tensor = counts.clamp_min(1).reciprocal()
    return weights.masked_fill(counts == 0, 0)
