"""Which of PML's losses can be computed against a memory."""

from __future__ import annotations

from pytorch_metric_learning.losses import CrossBatchMemory, MultipleLosses
from pytorch_metric_learning.reducers import PerAnchorReducer
from torch import nn

# Losses that hand their reducer one value per anchor; the others hand it one per pair or triplet.
_PER_ANCHOR = {
    "CircleLoss",
    "GeneralizedLiftedStructureLoss",
    "MultiSimilarityLoss",
    "NCALoss",
    "SupConLoss",
}


def check_supported(loss: nn.Module) -> None:
    """Refuses a loss that cannot be computed between a batch and a memory of another size.

    Raises:
        ValueError: the loss is no subclass of a supported one; ``TripletMarginLoss(swap=True)``; a
            ``PerAnchorReducer`` on a loss that reduces pairs. The last two index a matrix of distances
            within the batch with rows of the memory.
    """
    supported = CrossBatchMemory.supported_losses()
    names = {cls.__name__ for cls in type(loss).__mro__}
    name = type(loss).__name__
    if isinstance(loss, MultipleLosses):
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
    per_anchor = any(isinstance(module, PerAnchorReducer) for module in loss.modules())
    if per_anchor and names.isdisjoint(_PER_ANCHOR):
        raise ValueError(
            f"{name} with PerAnchorReducer assumes as many references as anchors, which a memory does "
            "not have: pass another reducer, such as MeanReducer or AvgNonZeroReducer"
        )
