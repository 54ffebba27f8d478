"""Cross Batch Normalization."""

from __future__ import annotations

from ._filtered_moments import FilteredMoments
from .affine import Affine
from .moments import Moments


class MomentMatching(FilteredMoments):
    r"""Gives the memory the mean and standard deviation of the batch.

    .. math:: \hat z = \frac{z - E[R]}{\sigma[R]} \, \sigma[B] + E[B]

    with R the memory before the batch and B the batch (Adaptive Cross Batch Normalization, Eq. 6). With
    ``match_std=False`` the rows are only centred, :math:`\hat z = z - E[R] + E[B]` (Eq. 4.5 of the
    thesis A Study of Cross Batch Memory). With ``momentum=m`` the moments of the batch are replaced by
    their exponential moving average, ``m · old + (1 − m) · new`` (Table 5 of the former).

    Args:
        match_std: scale as well as shift. Without, small batches' noisy σ does no harm, and memory keeps
            a stale spread.
        momentum: in [0, 1). A larger one averages over more batches, and lags behind the model by as many.
        collect_stats: see :class:`~pml_xbn.adapters.BaseAdapter`.

    Raises:
        ValueError: ``momentum`` outside [0, 1).

    Example:
        >>> import torch
        >>> adapter = MomentMatching()
        >>> memory, batch = torch.tensor([[0.0], [2.0]]), torch.tensor([[5.0], [9.0]])
        >>> labels = torch.tensor([0, 1])
        >>> adapter(memory, labels, batch, labels)
        tensor([[5.],
                [9.]])
    """

    def __init__(self, match_std: bool = True, momentum: float = 0.0, *, collect_stats: bool = False) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum!r}: pass a number in [0, 1); 0 is plain XBN")
        super().__init__(collect_stats=collect_stats)
        self.match_std = match_std
        self.momentum = momentum

    def gain(self, batch_size: int) -> float:
        """Weight of the newest batch in the estimate."""
        return 1 - self.momentum

    def map(self, memory: Moments, target: Moments) -> Affine:
        return memory.to(target, self.match_std)
