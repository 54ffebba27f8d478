"""Adaptation by as much of a difference as is no noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._arithmetic import widest
from .._checks import check_integer
from .base_adapter import BaseAdapter
from .moments import NO_SPREAD, Affine, Moments

# Tensors that it keeps beside the moments of the newest batch.
_STATE = ("_noise", "_num_noise", "_square", "_num_square", "gains")


class MeasuredGain(BaseAdapter):
    r"""Moves the rows by the part K of the difference between batch and memory that is no noise of a batch.

    .. math::
        \hat z = \left( z - E[R] \right) \left( \frac{\sigma[B]}{\sigma[R]} \right)^{K_\sigma}
        + E[R] + K_\mu (E[B] - E[R]), \qquad
        K_\mu = \max\left(0,\ 1 - \frac{\overline{v}}{\overline{(E[B] - E[R])^2}}\right), \qquad
        v = \tfrac{1}{2} (E[B] - E[B'])^2

    with R the memory, B the batch and B' the batch before it. A bar is an average over the last ``window``
    steps and over all dimensions. v is the sampling noise of a batch's mean: two batches differ by twice
    that, and by the little that the model moves in a step. A difference between batch and memory is the sum
    of how far the rows are behind and of noise, and K is the first one's part of it: where the model moves
    slowly, the gain of a Kalman filter in its steady state. :math:`K_\sigma` is the same of the logarithms
    of σ. It is in none of the papers.

    So rows' mean follows by 0.5 to 0.7 of the difference while the model moves fast, where it follows wholly
    in XBN, and hardly at all when the model hardly moves; σ follows less. You may want it where you would
    not choose between XBN and no adaptation; docs/many_classes.md has what it gave.

    As long as rows follow wholly, the difference to the next batch is the noise of two. So where the model
    hardly moves, K is about 1/2 once the window has passed, and falls to its level in some four windows more.

    Args:
        window: steps over which the averages are taken (default 20). K is 1 until these have passed.
        match_std: whether the rows are scaled as well as shifted (default True).
        per_dimension: a K for every dimension, in place of one for all (default False). It needs a longer
            window. The averages begin anew when this or ``match_std`` is changed.
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
        super().__init__(collect_stats=collect_stats)
        self.window = window
        self._match_std, self._per_dimension = match_std, per_dimension
        self.record_stats("mean_gain")
        self._begin(0, widest(torch.zeros(0, device="cpu")))

    @property
    def window(self) -> int:
        return self._window

    @window.setter
    def window(self, window: int) -> None:
        check_integer("window", window, at_least=1)
        self._window = window

    @property
    def match_std(self) -> bool:
        return self._match_std

    @match_std.setter
    def match_std(self, match_std: bool) -> None:
        self._match_std = match_std
        self._begin(len(self._previous.mean), self.gains)

    @property
    def per_dimension(self) -> bool:
        return self._per_dimension

    @per_dimension.setter
    def per_dimension(self, per_dimension: bool) -> None:
        self._per_dimension = per_dimension
        self._begin(len(self._previous.mean), self.gains)

    def _begin(self, embedding_size: int, like: Tensor) -> None:
        """Begins without batches, in the dtype and on the device of a tensor."""
        zeros = like.new_zeros(embedding_size)
        # Of the newest batch, or of one before where that had NaN; and whether any had a number, ``(2, d)``.
        self._previous, self._has_previous = Moments(zeros, zeros.clone()), like.new_zeros(2, embedding_size)
        none = like.new_zeros(self._shape(embedding_size))
        # Averages of noise and squared difference, of the mean and of the logarithm of σ, with the number of
        # values that went into each, ``(parts, d or 1)``.
        self._noise, self._num_noise = none, none.clone()
        self._square, self._num_square = none.clone(), none.clone()
        self.gains = none + 1

    def _shape(self, embedding_size: int) -> tuple[int, int]:
        """Returns how many gains there are, for mean and σ, and dimensions or 1."""
        return 2 if self.match_std else 1, embedding_size if self.per_dimension else 1

    def set_embedding_size(self, embedding_size: int) -> None:
        size = len(self._previous.mean)
        if size not in (0, embedding_size):
            raise ValueError(
                f"embeddings of {embedding_size} numbers, where this {type(self).__name__} has seen those "
                f"of {size}: build an adapter for each"
            )
        if size == 0:
            self._begin(embedding_size, self.gains)

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        self.set_embedding_size(len(batch.mean))
        if self.gains.is_meta:
            self._begin(len(batch.mean), batch.mean)
        for name in ("_has_previous", *_STATE):
            setattr(self, name, getattr(self, name).to(batch.mean))
        previous = torch.stack([x.to(batch.mean) for x in self._previous])
        known = Moments(*torch.where(self._has_previous > 0, previous, torch.nan))
        noise = (self._levels(batch) - self._levels(known)).square() / 2
        self._noise, self._num_noise = self._averaged(self._noise, noise, self._num_noise)
        newest = torch.stack([*batch])
        has_number = torch.isfinite(newest)
        self._previous = Moments(*torch.where(has_number, newest, previous))
        self._has_previous = torch.maximum(self._has_previous, has_number.to(previous))
        return batch

    def map(self, memory: Moments, target: Moments) -> Affine:
        gap, num_before = self._levels(target) - self._levels(memory), self._num_square
        self._square, self._num_square = self._averaged(self._square, gap.square(), num_before)
        is_measured = (num_before >= self.window) & (self._num_noise > 0)
        is_drift = self._square > self._noise
        part = torch.where(is_drift, 1 - self._noise / torch.where(is_drift, self._square, 1.0), 0.0)
        self.gains = torch.where(is_measured, part, 1.0)
        if self.collect_stats:
            self.mean_gain = self.gains[0].mean().item()
        moved = gap * self.gains
        if not self.match_std:
            return Affine(torch.ones_like(memory.std), moved[0])
        # Where there is no spread to compare, rows keep theirs, but at first, where they take the batch's.
        is_known = torch.isfinite(gap[1])
        unknown = torch.where(num_before[0] < self.window, memory.affine_to(target).scale, 1.0)
        scale = torch.where(is_known, torch.where(is_known, moved[1], 0.0).exp(), unknown)
        return Affine(scale, torch.addcmul(memory.mean + moved[0], memory.mean, scale, value=-1))

    def _levels(self, moments: Moments) -> Tensor:
        """Returns the mean, and the logarithm of σ, NaN where there is none, ``(parts, d)``."""
        if not self.match_std:
            return moments.mean.unsqueeze(0)
        has_spread = moments.std > NO_SPREAD
        log = torch.where(has_spread, torch.where(has_spread, moments.std, 1.0).log(), torch.nan)
        return torch.stack([moments.mean, log])

    def _averaged(self, before: Tensor, now: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the moving average, a plain one at first, and of how many values; NaN is left out."""
        is_known = torch.isfinite(now)
        if not self.per_dimension:
            total = torch.where(is_known, now, 0.0).sum(dim=1, keepdim=True)
            number = is_known.sum(dim=1, keepdim=True)
            now, is_known = total / number.clamp_min(1), number > 0
        count = count + is_known
        weight = is_known / count.clamp(1, self.window)
        return before.lerp(torch.where(is_known, now, 0.0), weight), count

    def get_extra_state(self) -> Tensor:
        held = [*self._previous, *self._has_previous, *(getattr(self, name) for name in _STATE)]
        shape = held[0].new_tensor([len(held[0]), *self.gains.shape])
        return torch.cat([shape, *(x.flatten() for x in held)])

    def set_extra_state(self, state: Tensor) -> None:
        with torch.inference_mode(False), torch.no_grad():  # as it may be in the caller's
            self._take_state(state)

    def _take_state(self, state: Tensor) -> None:
        if isinstance(state, Tensor) and state.is_meta and self.gains.is_meta:
            return
        is_list = isinstance(state, Tensor) and state.ndim == 1 and not state.is_meta
        header = state[:3].tolist() if is_list else []
        size = len(self._previous.mean) or int(header[0] if header and math.isfinite(header[0]) else 0)
        shape = self._shape(size)
        sizes = [3, *(4 * [size]), *(len(_STATE) * [math.prod(shape)])]
        if size < 0 or header != [size, *shape] or len(state) != sum(sizes):
            raise ValueError(
                f"the state is not that of a {type(self).__name__} with these settings and embeddings: build "
                "the memory as it was built then"
            )
        if not torch.isfinite(state).all():
            raise ValueError(f"the state of this {type(self).__name__} holds NaN or inf: load an older one")
        parts = [x.clone() for x in state.split(sizes)]
        self._previous, self._has_previous = Moments(*parts[1:3]), torch.stack(parts[3:5])
        for name, values in zip(_STATE, parts[5:], strict=True):
            setattr(self, name, values.reshape(shape))
