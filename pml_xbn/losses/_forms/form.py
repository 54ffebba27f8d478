"""A loss of PML as a function of one matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pytorch_metric_learning.losses import GenericPairLoss
from torch import Tensor

from .._choice import Choice
from .._cosines import Distances
from .._rules import Terms
from .pairs import Pairs


def measured(loss: Any, distances: Distances) -> Tensor:
    """What the loss's distance measures."""
    return distances.measured(loss.distance)


class Form(NamedTuple):
    """
    Attributes:
        terms: of ``(loss, pairs)``, by the names of the loss's parts. The pairs may be those of some anchors.
        matrix: of ``(loss, distances)``, the matrix that the terms are computed from.
        weights: of all that has been chosen, ``(a,)``, what the terms of every anchor are multiplied with.
        also: of ``(loss, pairs)``, further parts of the loss, as PML hands them to its reducer.
        needs_both_kinds: the loss is zero unless there are positive and negative pairs.
        is_by_anchor: an anchor's terms depend on no other anchor, but for its weight.
        is_sliced: the form is called for some anchors at a time; else it bounds its memory itself.
        is_column: PML hands its reducer a column of terms, ``(a, 1)``.
        has_divisor: the terms have one, for PML's DivisorReducer.
        takes_triplets: the loss is one of triplets, not of pairs.
    """

    terms: Callable[[Any, Pairs], dict[str, Terms]]
    matrix: Callable[[Any, Distances], Tensor] = measured
    weights: Callable[[Choice], Tensor] | None = None
    also: Callable[[Any, Pairs], dict[str, Any]] | None = None
    needs_both_kinds: bool = False
    is_by_anchor: bool = True
    is_sliced: bool = True
    is_column: bool = False
    has_divisor: bool = False
    takes_triplets: bool = False

    def is_zero(self, loss: Any, num_positive: float, num_negative: float) -> bool:
        """Whether PML's loss of so many pairs is zero without a look at them."""
        if isinstance(loss, GenericPairLoss) and max(num_positive, num_negative) <= 1:
            return True
        return self.needs_both_kinds and min(num_positive, num_negative) == 0
