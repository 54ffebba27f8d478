"""Cross Batch Normalization."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arithmetic import widest
from .affine import Affine
from .base_adapter import BaseAdapter
from .moments import Moments


class MomentMatching(BaseAdapter):
    r"""Gives the memory the mean and standard deviation of the batch.

    .. math:: \hat z = \frac{z - E[R]}{\sigma[R]} \, \sigma[B] + E[B]

    with R the memory before the batch and B the batch (Adaptive Cross Batch Normalization, Eq. 6).

    Args:
        match_std: whether rows are scaled as well as shifted (default True). With False they are only
            shifted (thesis A Study of Cross Batch Memory, Eq. 4.5). Then the noisy σ of a small batch does no
            harm, but the memory keeps the spread of an older model.
        momentum: m in [0, 1), default 0. Rows are adapted to the moving average m · old + (1 − m) · new of
            the batches' moments (Table 5 of the paper). A larger m averages over more batches and lags
            further behind the model.
        collect_stats: see :class:`~pml_xbn.adapters.BaseAdapter`.

    Attributes:
        estimated: the moments that rows are adapted to, ``(d,)`` each, float64. They are zero before the
            first batch.
        num_batches: how many batches the estimate has seen.
        current_gain: the weight of the newest batch in the estimate, from 0 to 1.

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

    _state: tuple[str, ...] = ("num_batches",)  # numbers that a checkpoint holds besides the estimate

    def __init__(self, match_std: bool = True, momentum: float = 0.0, *, collect_stats: bool = False) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum!r}: pass a number in [0, 1); 0 is plain XBN")
        super().__init__(collect_stats=collect_stats)
        self.match_std, self.momentum = match_std, momentum
        self.current_gain = 1 - momentum
        none = widest(torch.zeros(0))
        self.estimated, self.num_batches = Moments(none, none), 0

    def set_embedding_size(self, embedding_size: int) -> None:
        if (
            len(self.estimated.mean) != embedding_size
        ):  # an adapter that is registered again keeps its estimate
            zeros = self.estimated.mean.new_zeros(embedding_size)
            self.estimated, self.num_batches = Moments(zeros, zeros), 0

    def gain(self, batch_size: int) -> float:
        """Returns the weight of a new batch of this size, from 0 to 1."""
        return 1 - self.momentum

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        """Moves the estimate towards the moments of the batch by the gain, and returns it."""
        self.current_gain = self.gain(batch_size)
        if self.num_batches > 0 and self.current_gain < 1:
            mean, std = (
                x.to(y).lerp(y, self.current_gain) for x, y in zip(self.estimated, batch, strict=True)
            )
            is_lost = std != std  # NaN would stay for ever
            batch = Moments(torch.where(is_lost, batch.mean, mean), torch.where(is_lost, batch.std, std))
        self.estimated = batch
        self.num_batches += 1
        return batch

    def map(self, memory: Moments, target: Moments) -> Affine:
        return memory.to(target, self.match_std)

    def get_extra_state(self) -> Tensor:
        numbers = [float(getattr(self, name)) for name in self._state]
        return torch.cat([self.estimated.mean.new_tensor(numbers), *self.estimated])

    def set_extra_state(self, state: Tensor) -> None:
        numbers, estimated = state.tensor_split([len(self._state)])
        size = len(self.estimated.mean)
        if size and len(estimated) != 2 * size:
            raise ValueError(
                f"the state of a {type(self).__name__} holds {len(estimated)} moments, not {2 * size}: build "
                "the memory as it was built then"
            )
        for name, number in zip(self._state, numbers.tolist(), strict=True):
            setattr(self, name, number)
        self.estimated = Moments(*estimated.clone().chunk(2))
