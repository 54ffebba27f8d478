"""Cross Batch Normalization."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arithmetic import widest
from .base_adapter import BaseAdapter
from .moments import Affine, Moments


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
            first batch, and ``(0,)`` before a memory has told the adapter its d.

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
        self.match_std, self.momentum = match_std, momentum
        self._numbers = self._first_numbers()
        none = self._numbers[:0]
        self.estimated = Moments(none, none)

    def _first_numbers(self) -> Tensor:
        """Returns what a checkpoint holds besides the estimate, before the first batch: how many it has seen.

        A subclass puts more behind it, in float64.
        """
        return widest(torch.zeros(1))

    @property
    def num_batches(self) -> int:
        """How many batches the estimate has seen."""
        return int(self._numbers[0])

    @property
    def current_gain(self) -> float:
        """The weight of the newest batch in the estimate, from 0 to 1."""
        return 1 - self.momentum

    def set_embedding_size(self, embedding_size: int) -> None:
        # An adapter that is registered again keeps its estimate.
        if len(self.estimated.mean) != embedding_size:
            zeros = self.estimated.mean.new_zeros(embedding_size)
            self.estimated, self._numbers = Moments(zeros, zeros.clone()), self._first_numbers()

    def gain(self, batch_size: int) -> float | Tensor:
        """Returns the weight of a new batch of this size, from 0 to 1."""
        return 1 - self.momentum

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        """Moves the estimate towards the moments of the batch by the gain, and returns it."""
        # Of a size or a device not known yet.
        if len(self.estimated.mean) == 0 or self.estimated.mean.is_meta:
            self.estimated = Moments(*torch.zeros_like(torch.stack(batch)).unbind())
        if self._numbers.is_meta:
            self._numbers = self._first_numbers()
        self._numbers = self._numbers.to(batch.mean)
        gain = self.gain(batch_size)
        if isinstance(gain, Tensor) or gain < 1:
            # The first batch is the estimate, whatever the gain.
            weight = torch.where(self._numbers[0] == 0, torch.ones_like(self._numbers[0]), gain)
            mean, std = (x.to(y).lerp(y, weight) for x, y in zip(self.estimated, batch, strict=True))
            is_lost = std != std  # NaN would stay for ever
            batch = Moments(torch.where(is_lost, batch.mean, mean), torch.where(is_lost, batch.std, std))
        self.estimated, self._numbers = batch, self._count_batch(self._numbers)
        return batch

    def _count_batch(self, numbers: Tensor) -> Tensor:
        return numbers + 1

    def map(self, memory: Moments, target: Moments) -> Affine:
        return memory.affine_to(target, self.match_std)

    def get_extra_state(self) -> Tensor:
        return torch.cat([self._numbers.to(self.estimated.mean), *self.estimated])

    def set_extra_state(self, state: Tensor) -> None:
        numbers, estimated = state.tensor_split([len(self._first_numbers())])
        size = len(self.estimated.mean)
        if size and len(estimated) != 2 * size:
            raise ValueError(
                f"the state of a {type(self).__name__} holds {len(estimated)} moments, not {2 * size}: build "
                "the memory as it was built then"
            )
        with torch.inference_mode(False), torch.no_grad():  # as it may be in the caller's
            self._numbers = numbers.clone()
            self.estimated = Moments(*estimated.clone().chunk(2))
