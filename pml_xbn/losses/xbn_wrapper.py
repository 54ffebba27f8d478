"""Cross Batch Normalization as a drop-in for ``CrossBatchMemory``."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..adapters import MomentMatching
from ..pairwise import Miner
from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory


class XBNWrapper(AdaptiveCrossBatchMemory):
    """A cross-batch memory whose rows take the mean and σ of every new batch.

    Adaptive Cross Batch Normalization, Eq. 6. The one to start with.

    Args:
        loss, embedding_size, memory_size, miner: as PML's ``CrossBatchMemory``.
        match_std, momentum: see :class:`~pml_xbn.adapters.MomentMatching`.
        **kwargs: see :class:`AdaptiveCrossBatchMemory`.

    Example:
        >>> import torch
        >>> from pytorch_metric_learning.losses import SupConLoss
        >>> loss_fn = XBNWrapper(SupConLoss(), embedding_size=16, memory_size=64)
        >>> loss = loss_fn(torch.randn(8, 16), torch.arange(8) % 4)
        >>> loss_fn.num_rows
        8
    """

    def __init__(
        self,
        loss: nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: Miner | None = None,
        *,
        match_std: bool = True,
        momentum: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(loss, embedding_size, memory_size, miner, **kwargs)
        self.adapter = MomentMatching(match_std, momentum, collect_stats=self.collect_stats)
        self.register_memory_hook(self.adapter)
