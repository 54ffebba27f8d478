"""Adaptation by as much of a difference as is no noise."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arithmetic import widest
from .._checks import check_integer
from .base_adapter import BaseAdapter
from .moments import NO_SPREAD, Affine, Moments


class MeasuredGain(BaseAdapter):
    r"""Moves the rows by the part K of the difference between batch and memory that is no noise of a batch.

    .. math::
        \hat z = \left( z - E[R] \right) \left( \frac{\sigma[B]}{\sigma[R]} \right)^{K_\sigma}
        + E[R] + K_\mu (E[B] - E[R]), \qquad
        K_\mu = 1 - \frac{\overline{v}}{\overline{(E[B] - E[R])^2}}

    with R the memory and B the batch. v, half of the squared difference between the means of one batch and
    the next, is the sampling noise of a batch's mean, and what is drawn over is a moving average over steps
    and dimensions. A difference is the sum of how far the rows are behind and of noise, and K is the first
    one's part of it: the gain of a Kalman filter in its steady state. :math:`K_\sigma` is the same of the
    logarithms of σ. It is in none of the papers.

    So K is near 1 while the model moves fast, which is XBN, and near 0 when it hardly does, where rows stay
    as they are. You may want it where you would not choose between the two; docs/many_classes.md has what it
    gave.

    Args:
        window: steps over which the averages are taken (default 20). K is 1 until these have passed.
        match_std: whether the rows are scaled as well as shifted (default True).
        per_dimension: a K for every dimension, in place of one for all (default False). It needs a longer
            window.
        collect_stats: also records ``mean_gain``, :math:`K_\mu`; see :class:`BaseAdapter`.

    Attributes:
        gains: K of the mean, and of σ, of the last step, ``(2, 1)``, or ``(2, d)`` per dimension; without
            ``match_std`` that of the mean alone.

    Raises:
        ValueError: ``window`` below 1.

    Example:
        >>> adapter, labels = MeasuredGain(window=2, match_std=False), torch.tensor([0, 1])
        >>> memory = torch.tensor([[-1.0], [1.0]])
        >>> for mean in (2.0, -2.0, 2.0):  # batches that differ by noise alone
        ...     moved = adapter(memory, labels, memory + mean, labels)
        >>> float(adapter.gains[0]), moved.flatten().tolist()
        (0.0, [-1.0, 1.0])
    """

    def __init__(
        self,
        window: int = 20,
        match_std: bool = True,
        per_dimension: bool = False,
        *,
        collect_stats: bool = False,
    ) -> None:
        check_integer("window", window, at_least=1)
        super().__init__(collect_stats=collect_stats)
        self.window, self.match_std, self.per_dimension = window, match_std, per_dimension
        self.record_stats("mean_gain")
        self._begin(torch.zeros(0))

    def _begin(self, like: Tensor) -> None:
        """Begins without batches, for embeddings of the size and on the device of this one, ``(d,)``."""
        zeros = widest(torch.zeros_like(like, device=None if like.is_meta else like.device))
        self._counts = zeros.new_zeros(2)  # of batches, and of those that rows were adapted to
        self._previous = Moments(zeros, zeros.clone())  # of the newest batch
        parts = 2 if self.match_std else 1
        averages = zeros.new_zeros(parts, len(zeros) if self.per_dimension else 1)
        # Of noise and squared difference, of the mean, and of the logarithm of σ, ``(parts, d or 1)`` each.
        self._noise, self._square, self.gains = averages, averages.clone(), averages + 1

    def set_embedding_size(self, embedding_size: int) -> None:
        if len(self._previous.mean) != embedding_size:
            self._begin(self._previous.mean.new_zeros(embedding_size))

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        if self._previous.mean.is_meta or len(self._previous.mean) != len(batch.mean):
            self._begin(batch.mean)
        for name in ("_counts", "_noise", "_square", "gains"):
            setattr(self, name, getattr(self, name).to(batch.mean))
        previous = Moments(*(x.to(batch.mean) for x in self._previous))
        num_batches, num_adapted = self._counts.unbind()
        noise = (self._levels(batch) - self._levels(previous)).square() / 2
        noise = torch.where(num_batches > 0, noise, torch.nan)
        self._noise = self._average(self._noise, noise, num_batches)
        self._counts = torch.stack([num_batches + 1, num_adapted])
        self._previous = Moments(
            *(torch.where(torch.isfinite(x), x, y) for x, y in zip(batch, previous, strict=True))
        )
        return batch

    def map(self, memory: Moments, target: Moments) -> Affine:
        num_batches, num_adapted = self._counts.unbind()
        gap = self._levels(target) - self._levels(memory)
        self._square = self._average(self._square, gap.square(), num_adapted + 1)
        self._counts = torch.stack([num_batches, num_adapted + 1])
        is_drift = (self._square > self._noise) & (num_adapted >= self.window)
        of_drift = 1 - self._noise / torch.where(is_drift, self._square, 1.0)
        at_first = (num_adapted < self.window).to(gap)
        self.gains = torch.where(is_drift, of_drift, at_first)
        if self.collect_stats:
            self.mean_gain = self.gains[0].mean().item()
        moved = gap * self.gains
        if not self.match_std:
            return Affine(torch.ones_like(memory.std), moved[0])
        # Where there is no spread to compare, rows keep theirs, but at first, where they take the batch's.
        is_known = torch.isfinite(gap[1])
        unknown = torch.where(self.gains[1] < 1, 1.0, memory.affine_to(target).scale)
        scale = torch.where(is_known, torch.where(is_known, moved[1], 0.0).exp(), unknown)
        return Affine(scale, torch.addcmul(memory.mean + moved[0], memory.mean, scale, value=-1))

    def _levels(self, of: Moments) -> Tensor:
        """Returns the mean, and the logarithm of σ, NaN where there is none, ``(parts, d)``."""
        if not self.match_std:
            return of.mean.unsqueeze(0)
        has_spread = of.std > NO_SPREAD
        log = torch.where(has_spread, torch.where(has_spread, of.std, 1.0).log(), torch.nan)
        return torch.stack([of.mean, log])

    def _average(self, before: Tensor, now: Tensor, count: Tensor) -> Tensor:
        """Returns the moving average, a plain one at first, after so many values; NaN is left out."""
        is_known = torch.isfinite(now)
        if not self.per_dimension:
            total = torch.where(is_known, now, 0.0).sum(dim=1, keepdim=True)
            number = is_known.sum(dim=1, keepdim=True)
            now, is_known = total / number.clamp_min(1), number > 0
        weight = 1 / count.clamp(1, self.window)
        return torch.where(is_known, before.lerp(torch.where(is_known, now, 0.0), weight), before)

    def get_extra_state(self) -> Tensor:
        averages = (x.flatten() for x in (self._noise, self._square, self.gains))
        return torch.cat([self._counts, *self._previous, *averages])

    def set_extra_state(self, state: Tensor) -> None:
        parts, d = (2 if self.match_std else 1), len(self._previous.mean)
        if not d and self.per_dimension:
            d = (len(state) - 2) // (2 + 3 * parts)
        elif not d:
            d = (len(state) - 2 - 3 * parts) // 2
        width = d if self.per_dimension else 1
        sizes = [2, d, d, *(3 * [parts * width])]
        if len(state) != sum(sizes):
            raise ValueError(
                f"the state of a {type(self).__name__} holds {len(state)} numbers, not {sum(sizes)}: build "
                "the memory as it was built then"
            )
        self._counts, mean, std, *averages = (x.clone() for x in state.split(sizes))
        self._previous = Moments(mean, std)
        self._noise, self._square, self.gains = (x.reshape(parts, width) for x in averages)
