"""Which losses, miners and reducers of PML's can be computed against a memory, on one process and on many."""

from __future__ import annotations

from typing import Any

from pytorch_metric_learning import distances, losses, miners, reducers
from torch import nn

from ._forms import FORMS, Recipe, recipe_of
from ._miners import is_function_of_pairs
from ._plain import has_hooks, is_plain
from ._reductions import REDUCERS

# Losses that hand their reducer one value per anchor; the others hand it one per pair or triplet.
_PER_ANCHOR = {
    "CircleLoss",
    "GeneralizedLiftedStructureLoss",
    "MultiSimilarityLoss",
    "NCALoss",
    "SupConLoss",
}

# Of the others an anchor's terms follow from reductions over its rows.
_NEED_ALL_ROWS = (
    losses.AngularLoss,
    losses.LiftedStructureLoss,
    losses.MarginLoss,
    losses.TripletMarginLoss,
)
SHARDED_LOSSES = tuple(kind for kind in FORMS if kind not in _NEED_ALL_ROWS)
SHARDED_MINERS = (
    miners.BatchEasyHardMiner,
    miners.BatchHardMiner,
    miners.MultiSimilarityMiner,
    miners.PairMarginMiner,
)

# Of which the distance of an anchor does not depend on the others.
_DISTANCES = (
    distances.CosineSimilarity,
    distances.DotProductSimilarity,
    distances.LpDistance,
    distances.SNRDistance,
)


def check_supported(loss: nn.Module) -> None:
    """Refuses a loss that cannot be computed between a batch and a memory of another size.

    Raises:
        ValueError: the loss is no subclass of a supported one; ``TripletMarginLoss(swap=True)``; a
            ``PerAnchorReducer`` on a loss that reduces pairs. The last two index a matrix of distances
            within the batch with rows of the memory.
    """
    supported = losses.CrossBatchMemory.supported_losses()
    names = {cls.__name__ for cls in type(loss).__mro__}
    name = type(loss).__name__
    if isinstance(loss, losses.MultipleLosses):
        raise ValueError(
            f"{name} cannot be used with a cross-batch memory: build a memory for each of its losses, and "
            "add what they return"
        )
    if names.isdisjoint(supported):
        raise ValueError(
            f"{name} cannot be used with a cross-batch memory: pass one of {', '.join(supported)}, "
            "or a subclass"
        )
    if getattr(loss, "swap", False):
        raise ValueError(
            f"{name}(swap=True) compares positives with negatives, which a memory has no distances "
            "for: pass swap=False"
        )
    per_anchor = any(isinstance(module, reducers.PerAnchorReducer) for module in loss.modules())
    if per_anchor and names.isdisjoint(_PER_ANCHOR):
        raise ValueError(
            f"{name} with PerAnchorReducer assumes as many references as anchors, which a memory does "
            "not have: pass another reducer, such as MeanReducer or AvgNonZeroReducer"
        )


def check_reducers(loss: nn.Module) -> None:
    """Refuses a reducer whose result cannot be had from the sums and counts of ranks.

    Raises:
        ValueError: a reducer that is not one of PML's, or ``DoNothingReducer``.
    """
    known = (*REDUCERS, reducers.MultipleReducers, reducers.PerAnchorReducer)
    for module in loss.modules():
        if isinstance(module, reducers.BaseReducer) and type(module) not in known:
            names = ", ".join(sorted(cls.__name__ for cls in known))
            raise ValueError(
                f"gather_distributed=True with a {type(module).__name__}, whose result for all ranks cannot "
                f"be had from theirs: pass one of {names}"
            )


def recipe_to_share(loss: Any, miner: Any) -> Recipe | None:
    """Returns the recipe if every rank can compute the terms of its own anchors, without the others'."""
    if miner is not None and not is_function_of_pairs(miner):
        return None
    recipe = _recipe_on_ranks(loss, miner)
    is_by_anchor = recipe is not None and recipe.form.is_by_anchor and not getattr(loss, "learn_beta", False)
    return recipe if is_by_anchor else None


def can_be_sharded(loss: Any, miner: Any) -> bool:
    """Returns whether the rows may be spread over ranks, all of which have all anchors."""
    if miner is not None and not (type(miner) in SHARDED_MINERS and is_plain(miner)):
        return False
    return type(loss) in SHARDED_LOSSES and _recipe_on_ranks(loss, miner) is not None


def _recipe_on_ranks(loss: Any, miner: Any) -> Recipe | None:
    """Returns the recipe of a loss of which no part and no distance belongs to all anchors together."""
    recipe = recipe_of(loss)
    if recipe is None or has_hooks(loss) or loss.embedding_regularizer:
        return None
    are_known = all(type(part.distance) in _DISTANCES for part in (loss, miner) if part is not None)
    return recipe if are_known else None
