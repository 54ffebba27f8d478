"""Cross Batch Normalization as a drop-in for ``CrossBatchMemory``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..adapters import MomentMatching
from ..pairwise._miners import Miner
from ._options import MemoryOptions, show_memory_options
from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory

if TYPE_CHECKING:
    from typing_extensions import Unpack


@show_memory_options
class XBNWrapper(AdaptiveCrossBatchMemory):
    """A cross-batch memory whose rows take the mean and standard deviation σ of every new batch.

    This is Adaptive Cross Batch Normalization, Eq. 6, and the wrapper to start with. It takes the place of
    PML's ``CrossBatchMemory`` without other changes to the training loop.

    Args:
        loss: one of PML's pair or triplet losses. It is computed between the batch and the memory, with its
            own distance and reducer: PML's defaults for that loss, unless you pass it others.
        embedding_size: number of dimensions d of the embeddings.
        memory_size: number of rows M that the memory holds, 1,024 by default. It has to be at least as large
            as a batch.
        miner: chooses among the pairs of batch and memory. By default the loss sees all pairs.
        match_std: whether the rows take the σ of the batch as well as its mean, as they do by default. With
            ``False`` they are only shifted, which avoids the noisy σ of small batches, but the memory keeps
            its stale spread (thesis A Study of Cross Batch Memory, Eq. 4.5).
        momentum: m in [0, 1), 0 by default. The rows take the moving average m · old + (1 − m) · new of the
            moments of the batches (Table 5 of the paper). A larger m averages over more batches, and lags
            further behind the model.
        options: :class:`AdaptiveCrossBatchMemory` describes all other parameters.

    Raises:
        ValueError: a ``momentum`` outside [0, 1), or what :class:`AdaptiveCrossBatchMemory` refuses.
        TypeError: an unknown keyword.

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
        **options: Unpack[MemoryOptions],
    ) -> None:
        super().__init__(loss, embedding_size, memory_size, miner, **options)
        self.adapter = MomentMatching(match_std, momentum, collect_stats=self.collect_stats)
        self.register_memory_hook(self.adapter)
