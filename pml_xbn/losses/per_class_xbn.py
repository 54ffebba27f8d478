"""Per-class cross batch normalization as a drop-in for ``CrossBatchMemory``."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..adapters import GroupMomentMatching
from ..pairwise import Miner
from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory


class PerClassXBN(AdaptiveCrossBatchMemory):
    """A cross-batch memory whose rows take the mean and σ of their class in the batch.

    PC-XBN, thesis A Study of Cross Batch Memory, Eq. 4.3 and Algorithm 2. It needs many rows per class,
    in the batch and in memory, and shrinks the distances within a class: a ``PairMarginMiner`` with the
    default margins may find no positives left (thesis, Table 5.15).

    Args:
        loss, embedding_size, memory_size, miner: as PML's ``CrossBatchMemory``.
        mean_lambda, std_lambda, normalize_absent: see :class:`~pml_xbn.adapters.GroupMomentMatching`.
        **kwargs: see :class:`AdaptiveCrossBatchMemory`.

    Example:
        >>> import torch
        >>> from pytorch_metric_learning.losses import SupConLoss
        >>> loss_fn = PerClassXBN(SupConLoss(), embedding_size=16, memory_size=64)
        >>> loss = loss_fn(torch.randn(8, 16), torch.arange(8) % 4)
    """

    def __init__(
        self,
        loss: nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: Miner | None = None,
        *,
        mean_lambda: float = 0.5,
        std_lambda: float = 1.0,
        normalize_absent: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(loss, embedding_size, memory_size, miner, **kwargs)
        self.adapter = GroupMomentMatching(
            mean_lambda, std_lambda, normalize_absent, collect_stats=self.collect_stats
        )
        self.register_memory_hook(self.adapter)
