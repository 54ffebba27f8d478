"""Cross Batch Normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .base_adapter import BaseAdapter
from .moments import Moments, affine_between


class MomentMatching(BaseAdapter):
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
        collect_stats: see :class:`BaseAdapter`.

    Raises:
        ValueError: ``momentum`` outside [0, 1).

    Example:
        >>> adapter = MomentMatching()
        >>> memory, batch = torch.tensor([[0.0], [2.0]]), torch.tensor([[5.0], [9.0]])
        >>> labels = torch.tensor([0, 1])
        >>> adapter(memory, labels, batch, labels)
        tensor([[5.],
                [9.]])
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, match_std: bool = True, momentum: float = 0.0, **kwargs: Any) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum!r}: pass a number in [0, 1); 0 is plain XBN")
        super().__init__(**kwargs)
        self.match_std = match_std
        self.momentum = momentum
        self.register_buffer("mean", None, persistent=False)
        self.register_buffer("std", None, persistent=False)

    def gain(self, batch_size: int) -> float:
        """Weight of the newest batch in the estimate."""
        return 1 - self.momentum

    def estimate(self, batch_moments: Moments, batch_size: int) -> Moments:
        """Moves the estimate towards the moments of the batch by :meth:`gain`, and returns it."""
        gain = self.gain(batch_size)
        if gain == 1:
            return batch_moments
        if self.mean is None or self.std is None:
            self.mean, self.std = batch_moments
        else:
            self.mean = torch.lerp(self.mean.to(batch_moments.mean), batch_moments.mean, gain)
            self.std = torch.lerp(self.std.to(batch_moments.std), batch_moments.std, gain)
        return Moments(self.mean, self.std)

    def adapt(
        self,
        out: Tensor,
        memory: Tensor,
        memory_labels: Tensor,
        batch: Tensor,
        batch_labels: Tensor,
        source: Moments,
        target: Moments,
    ) -> None:
        if not self.match_std:
            target = target._replace(std=source.std)
        affine = affine_between(source, target, len(memory), memory.dtype)
        affine.map(memory, out=out)
        self.running.map(affine)

    # The buffers have no size before the first batch, so they travel as extra state, which may be None.
    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "mean": self.mean, "std": self.std}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.mean, self.std = state["mean"], state["std"]
