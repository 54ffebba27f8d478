"""The queues that are compared: as it is, and adapted to the newest keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.reducers import MeanReducer

from benchmarks.moco.settings import Settings
from pml_xbn.losses import AdaptiveCrossBatchMemory, AXBNWrapper, XBNWrapper

METHODS: dict[str, Callable[..., AdaptiveCrossBatchMemory]] = {
    "moco": AdaptiveCrossBatchMemory,  # without hooks: PML's CrossBatchMemory with a whole state_dict
    "xbn": XBNWrapper,
    "axbn": AXBNWrapper,
    "centre": partial(XBNWrapper, match_std=False),
}


def build_loss(method: str, settings: Settings) -> AdaptiveCrossBatchMemory:
    """InfoNCE between queries and a queue of keys.

    With one positive per query SupConLoss is InfoNCE, and so is PML's NTXentLoss of the notebook. That
    one writes out all positives times all negatives, 128 by 128 · 4,095 numbers with 128 queries and a queue
    of 4,096, several times over 268 MB each; SupConLoss a matrix of 128 by 4,096.
    """
    loss = SupConLoss(settings.temperature, reducer=MeanReducer())
    return METHODS[method](loss, settings.embedding_size, settings.queue)
