"""Adaptive Cross Batch Normalization as a drop-in for ``CrossBatchMemory``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..adapters import KalmanMomentMatching
from ..pairwise._miners import Miner
from ._options import MemoryOptions, show_memory_options
from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory

if TYPE_CHECKING:
    from typing_extensions import Unpack


@show_memory_options
class AXBNWrapper(AdaptiveCrossBatchMemory):
    """A cross-batch memory whose rows take a Kalman filter's estimate of the data set's mean and σ.

    Adaptive Cross Batch Normalization, Algorithm 1. With its default noises it is all but XBN: K ≥ 0.999
    from ten rows a batch on. A larger ``measurement_noise`` smooths over more batches.

    Args:
        process_noise: q, the variance by which the moments of the data set move between two updates of the
            gain; 1 by default.
        measurement_noise: r, the variance of the moments of a batch of one row; 0.01 by default. A larger one
            smooths over more batches.
        initial_variance: p₀, the variance of the first estimate; 1 by default. It is forgotten after a few
            updates.
        gain_update_interval: number of batches from one update of the gain to the next, 100 by default.
        options: :class:`AdaptiveCrossBatchMemory` describes all other parameters.

    Raises:
        ValueError: a negative or non-finite noise or variance, an interval below 1, or what
            :class:`AdaptiveCrossBatchMemory` refuses.
        TypeError: an unknown keyword.

    Example:
        >>> import torch
        >>> from pytorch_metric_learning.losses import SupConLoss
        >>> loss_fn = AXBNWrapper(SupConLoss(), embedding_size=16, memory_size=64)
        >>> loss = loss_fn(torch.randn(8, 16), torch.arange(8) % 4)
        >>> round(loss_fn.adapter.current_gain, 4)
        0.9994
    """

    def __init__(
        self,
        loss: nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: Miner | None = None,
        *,
        process_noise: float = 1.0,
        measurement_noise: float = 0.01,
        initial_variance: float = 1.0,
        gain_update_interval: int = 100,
        **options: Unpack[MemoryOptions],
    ) -> None:
        super().__init__(loss, embedding_size, memory_size, miner, **options)
        self.adapter = KalmanMomentMatching(
            process_noise=process_noise,
            measurement_noise=measurement_noise,
            initial_variance=initial_variance,
            gain_update_interval=gain_update_interval,
            collect_stats=self.collect_stats,
        )
        self.register_memory_hook(self.adapter)
