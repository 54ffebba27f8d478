"""Cross Batch Normalization as a drop-in for ``CrossBatchMemory``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch
from torch import nn

from .._keywords import parameters_of
from ..adapters import MomentMatching
from ..pairwise._miners import Miner
from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class XBNWrapper(AdaptiveCrossBatchMemory):
    """A cross-batch memory whose rows take the mean and σ of every new batch.

    Adaptive Cross Batch Normalization, Eq. 6. The one to start with.

    Args:
        loss: one of PML's pair or triplet losses, computed between the batch and the memory.
        embedding_size, memory_size: numbers of dimensions d and of rows M.
        miner: chooses among the pairs of batch and memory; default all pairs.
        match_std, momentum: see :class:`~pml_xbn.adapters.MomentMatching`.
        others: see :class:`AdaptiveCrossBatchMemory`.

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
        delay: int = 0,
        warmup: int = 0,
        batch_loss_weight: float = 0.0,
        normalize_memory: bool = False,
        gather_distributed: bool = False,
        shard_distributed: bool = False,
        process_group: ProcessGroup | DeviceMesh | None = None,
        nonfinite: str = "raise",
        memory_dtype: torch.dtype = torch.float32,
        update: str = "queue",
        update_momentum: float = 0.0,
        collect_stats: bool | None = None,
        **unknown: NoReturn,
    ) -> None:
        super().__init__(**parameters_of(AdaptiveCrossBatchMemory, locals()), **unknown)
        self.adapter = MomentMatching(match_std, momentum, collect_stats=self.collect_stats)
        self.register_memory_hook(self.adapter)
