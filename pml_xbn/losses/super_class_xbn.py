"""Super-class cross batch normalization as a drop-in for ``CrossBatchMemory``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..adapters import GroupMomentMatching
from ..adapters.superclass_lookup import Superclasses
from ..pairwise._miners import Miner
from ._options import MemoryOptions, show_memory_options
from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory

if TYPE_CHECKING:
    from typing_extensions import Unpack


@show_memory_options
class SuperClassXBN(AdaptiveCrossBatchMemory):
    """A cross-batch memory whose rows move to the mean and σ of their superclass in the batch.

    SC-XBN, thesis A Study of Cross Batch Memory, Eq. 4.4. The loss still sees the classes.
    Where a batch holds most superclasses, nearly all rows are stored anew. Until the step is over, those of
    before are kept too, in case it fails.

    Args:
        superclasses: label → superclass, a 1-D integer tensor or sequence indexed by label, or a dict.
        mean_lambda: λ_μ in [0, 1], how much of the batch's mean stands in for the superclass's; 0.5 by
            default. 0 takes the superclass's own.
        std_lambda: λ_σ in [0, 1], likewise for σ; 1 by default, which is the batch's, because σ of few rows
            is noisy.
        normalize_absent: whether rows of superclasses that the batch lacks take the map of all rows, as they
            do by default. With ``False`` they stay as they are.
        options: :class:`AdaptiveCrossBatchMemory` describes all other parameters.

    Raises:
        ValueError: superclasses that are no mapping of labels, λ outside [0, 1], or what
            :class:`AdaptiveCrossBatchMemory` refuses. When it is called, a label without a superclass; on a
            GPU a later call tells of it.
        TypeError: an unknown keyword.

    Example:
        >>> import torch
        >>> from pytorch_metric_learning.losses import SupConLoss
        >>> loss_fn = SuperClassXBN(SupConLoss(), 16, memory_size=64, superclasses=[0, 0, 1, 1])
        >>> loss = loss_fn(torch.randn(8, 16), torch.arange(8) % 4)
    """

    def __init__(
        self,
        loss: nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: Miner | None = None,
        *,
        superclasses: Superclasses,
        mean_lambda: float = 0.5,
        std_lambda: float = 1.0,
        normalize_absent: bool = True,
        **options: Unpack[MemoryOptions],
    ) -> None:
        super().__init__(loss, embedding_size, memory_size, miner, **options)
        self.adapter = GroupMomentMatching(
            mean_lambda=mean_lambda,
            std_lambda=std_lambda,
            normalize_absent=normalize_absent,
            superclasses=superclasses,
            collect_stats=self.collect_stats,
        )
        self.register_memory_hook(self.adapter)
