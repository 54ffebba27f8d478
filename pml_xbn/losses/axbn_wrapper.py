"""Adaptive Cross Batch Normalization as a drop-in for ``CrossBatchMemory``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch
from torch import nn

from .._keywords import describe_others, parameters_of
from ..adapters import KalmanMomentMatching
from ..pairwise._miners import Miner
from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


@describe_others
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
        others: :class:`AdaptiveCrossBatchMemory` describes all other parameters. The distance and the reducer
            are those of ``loss``.

    Raises:
        ValueError: a negative or non-finite noise or variance, an interval below 1, or what
            :class:`AdaptiveCrossBatchMemory` refuses.
        TypeError: an unknown keyword.

    Example:
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
        settings = process_noise, measurement_noise, initial_variance, gain_update_interval
        self.adapter = KalmanMomentMatching(*settings, collect_stats=self.collect_stats)
        self.register_memory_hook(self.adapter)
