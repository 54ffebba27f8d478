"""Which losses, miners and reducers of PML's can be computed against a memory, on one process and on many."""

from __future__ import annotations

from typing import Any

from pytorch_metric_learning import losses, miners, reducers
from torch import nn

from ._forms import FORMS, Recipe, recipe_of
from ._miners import MINERS, is_function_of_pairs
from ._plain import is_plain

SHARDED_LOSSES = tuple(kind for kind, form in FORMS.items() if form.is_reduced)
SHARDED_MINERS = tuple(kind for kind in MINERS if kind is not miners.TripletMarginMiner)


def check_supported(loss: nn.Module) -> None:
    """Refuses a loss that cannot be computed between a batch and a memory of another size.

    Raises:
        ValueError: the loss is no subclass of a supported one; ``TripletMarginLoss(swap=True)``; a
            ``PerAnchorReducer`` on a loss that reduces pairs. The last two index a matrix of distances
            within the batch with rows of the memory.
    """
    name = type(loss).__name__
    form = next((FORMS[kind] for kind in type(loss).__mro__ if kind in FORMS), None)
    if isinstance(loss, losses.MultipleLosses):
        raise ValueError(
            f"{name} cannot be used with a cross-batch memory: build a memory for each of its losses, and "
            "add what they return"
        )
    if form is None:
        raise ValueError(
            f"{name} cannot be used with a cross-batch memory: pass one of "
            f"{', '.join(losses.CrossBatchMemory.supported_losses())}, "
            "or a subclass"
        )
    if getattr(loss, "swap", False):
        raise ValueError(
            f"{name}(swap=True) compares positives with negatives, which a memory has no distances "
            "for: pass swap=False"
        )
    per_anchor = any(isinstance(module, reducers.PerAnchorReducer) for module in loss.modules())
    if per_anchor and not form.is_per_anchor:
        raise ValueError(
            f"{name} with PerAnchorReducer assumes as many references as anchors, which a memory does "
            "not have: pass another reducer, such as MeanReducer or AvgNonZeroReducer"
        )


def recipe_to_share(loss: Any, miner: Any) -> Recipe | None:
    """Returns the recipe if every rank can compute the terms of its own anchors, without the others'."""
    recipe = recipe_of(loss)
    can_share = (miner is None or is_function_of_pairs(miner)) and not loss._forward_hooks  # which see all
    return recipe if can_share and recipe is not None and recipe.is_by_anchor else None


def can_be_sharded(loss: Any, miner: Any) -> bool:
    """Returns whether the rows may be spread over ranks, all of which have all anchors."""
    can_mine = miner is None or (type(miner) in SHARDED_MINERS and is_plain(miner))
    is_reduced = type(loss) in SHARDED_LOSSES and recipe_of(loss) is not None
    return can_mine and is_reduced and not loss._forward_hooks
